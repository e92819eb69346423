"""Admission of claims, and of what is sent under them: what decoders cannot check. See validation.py, which
calls this."""

from __future__ import annotations

from typing import Final

from escrowmq.replication.format.timer_ops import (
    CLAIM_EPOCH_MAX,
    DIGEST_BYTES,
    OF_DELAYED,
    UNNUMBERED,
    claim_group,
)

NUMBER_MAX: Final = (1 << 53) - 1
NAME_CHARS_MAX: Final = 500


def claim_problem(name: str, epoch: int, claimant: str) -> str | None:
    """What is wrong with a CLAIM, or None."""
    if not 0 < len(claimant) <= NAME_CHARS_MAX:
        return f"a claimant must have 1 to {NAME_CHARS_MAX} characters"
    return _of_claim(name, epoch)


def _of_claim(name: str, epoch: int) -> str | None:
    if not 0 < len(name) <= NAME_CHARS_MAX:
        return f"the name of a claim must have 1 to {NAME_CHARS_MAX} characters"
    if name.endswith(OF_DELAYED):
        return f"the name of a claim must not end in {OF_DELAYED!r}"
    if not 0 < epoch <= CLAIM_EPOCH_MAX:
        return f"the epoch of a claim must be 1 to {CLAIM_EPOCH_MAX}"
    return None


def claimed_problem(claim: tuple[str, int, int, bytes] | None, transactions: int) -> str | None:
    """What is wrong with what a PREPARE says about its claim, or None."""
    if claim is None:
        return None
    name, epoch, number, digest = claim
    if (problem := _of_claim(name, epoch)) is not None:
        return problem
    if not UNNUMBERED <= number <= NUMBER_MAX:
        return f"the number of a transaction must be {UNNUMBERED} to {NUMBER_MAX}"
    if number != UNNUMBERED and transactions != 1:
        return "a PREPARE with a number has one transaction"
    if len(digest) != (0 if number == UNNUMBERED else DIGEST_BYTES):
        return f"a transaction with a number has a digest of {DIGEST_BYTES} bytes, and no other has one"
    return None


def claimed_place_problem(claim: tuple[str, int, int, bytes], gid: int, groups: int) -> str | None:
    """Why this group may not be home to a transaction of the claim, or None."""
    name, _, number, _ = claim
    home = claim_group(name, groups)
    if number != UNNUMBERED and home != gid:
        return f"group {home} of {groups} is home to the numbered transactions of {name!r}, not group {gid}"
    return None
