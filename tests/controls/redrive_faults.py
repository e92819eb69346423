"""Planted faults in redrives of dead letters into topics: what holds them, and what makes them final."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from escrowmq.replication.format.codec import Op
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.held_letters import HeldLetters
from escrowmq.replication.state.machine import StateMachine
from tests.controls.planting import plant
from tests.controls.share_faults import shared
from tests.sim.clients.ledger import REDIRECTS
from tests.sim.sharing import members, redirects


def redirected(patch: pytest.MonkeyPatch) -> None:
    """Members of share groups reject most of their messages, and operators redrive these into topics."""
    shared(patch)
    patch.setattr(redirects, "SHARE", 1.0)
    patch.setattr(redirects, "EVERY_S", 0.1)
    patch.setitem(members.FATES, "reject", 60)


@plant("letters-held-for-ever", "held-for-ever", "unbounded", conditions=redirected, chaos_s=5.0, start=9)
def letters_held_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What a transaction that was rolled back has held of dead letters is not given back."""
    settled = HeldLetters.settled

    def of_commits(self: HeldLetters, app: str, tx_ids: Iterable[str], *, committed: bool) -> None:
        if committed:
            settled(self, app, tx_ids, committed=committed)

    patch.setattr(HeldLetters, "settled", of_commits)


@plant("redrive-without-its-rows", "redrive-lost", conditions=redirected, chaos_s=5.0, start=9)
def redrive_without_its_rows(patch: pytest.MonkeyPatch) -> None:
    """A COMMIT makes the dead letters final that its transaction holds, and drops their copies."""
    commit = StateMachine._commit

    def dropping(self: StateMachine, index: int, op: Op) -> Any:
        if op.meta.app == REDIRECTS:
            self._pending_refs = []
        return commit(self, index, op)

    patch.setattr(StateMachine, "_commit", dropping)


@plant("redrive-of-final-letters", "redriven-twice", conditions=redirected, chaos_s=5.0, start=9)
def redrive_of_final_letters(patch: pytest.MonkeyPatch) -> None:
    """A transaction copies dead letters that somebody has redriven already."""
    refusal = HeldLetters.refusal

    def overlooking(self: HeldLetters, attached: Sequence[Op]) -> list[Any] | None:
        found = refusal(self, attached)
        return None if found is not None and found[0] == ResultCode.OFFSETS_MOVED else found

    patch.setattr(HeldLetters, "refusal", overlooking)


@plant("final-by-a-rollback", "redrive-lost", conditions=redirected, chaos_s=5.0, start=9, long=True)
def final_by_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """The dead letters of a transaction are final also when it was rolled back."""
    settled = HeldLetters.settled

    def always(self: HeldLetters, app: str, tx_ids: Iterable[str], *, committed: bool) -> None:
        settled(self, app, tx_ids, committed=True)

    patch.setattr(HeldLetters, "settled", always)
