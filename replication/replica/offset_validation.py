"""Admission of transactions that move places of consumer groups, or about which nobody is asked.

What decoders cannot check. See validation.py, which calls this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from escrowmq.replication.format.codec import NO_EXTRA, Op, OpType, PrepareExtra
from escrowmq.replication.format.offset_ops import NONE_YET, ROLLBACK

NUMBER_MAX: Final = (1 << 53) - 1
NAME_CHARS_MAX: Final = 512
#: Of one transaction: about a megabyte of memory while it is open.
PLACES_MAX: Final = 10_000


def on_timeout_problem(extra: PrepareExtra, home_group: int) -> str | None:
    """What is wrong with a PREPARE's ``on_timeout``, or None."""
    if extra.on_timeout not in ("", ROLLBACK):
        return f"on_timeout must be {ROLLBACK!r} or empty, not {extra.on_timeout!r}"
    if extra.on_timeout and home_group >= 0:
        return "a branch follows its home: it has no on_timeout"
    return None


def offsets_problem(prepare: Op, attached: Sequence[Op]) -> str | None:
    """What is wrong with the PRE_OFFSETS behind a PREPARE, or None."""
    moving = [op for op in attached if op.type == OpType.PRE_OFFSETS]
    if not moving:
        return None
    extra = prepare.meta[9] if len(prepare.meta) > 9 else NO_EXTRA
    if len(prepare.meta[2]) != 1 or prepare.meta[5] or extra is NO_EXTRA:
        return "PRE_OFFSETS follows the first PREPARE, of version 2, of one transaction"
    if any(op.type != OpType.PRE_OFFSETS for op in attached[-len(moving) :]):
        return "PRE_OFFSETS stands behind the messages"
    if len({tuple(op.meta[:2]) for op in moving}) != len(moving):
        return "a transaction moves the places of a group in a topic once"
    if sum(len(op.meta[2]) for op in moving) > 3 * PLACES_MAX:
        return f"a transaction moves at most {PLACES_MAX} places"
    return next((problem for op in moving if (problem := _problem(op)) is not None), None)


def _problem(op: Op) -> str | None:
    group, _, flat, topic_id = op.meta
    if not 0 < len(group) <= NAME_CHARS_MAX:
        return f"group must have 1 to {NAME_CHARS_MAX} characters"
    if op.body_size or not flat or len(flat) % 3 or not 0 <= topic_id <= NUMBER_MAX:
        return "PRE_OFFSETS needs triples of partition, from and to, and the id of its topic"
    partitions, begins, ends = flat[::3], flat[1::3], flat[2::3]
    if min(partitions) < 0 or len(set(partitions)) != len(partitions):
        return "PRE_OFFSETS needs partitions of 0 or more, each once"
    if min(begins) < NONE_YET or min(ends) < 0 or max(ends) > NUMBER_MAX:
        return f"PRE_OFFSETS goes from {NONE_YET} or more to 0 or more"
    if any(begin > end for begin, end in zip(begins, ends, strict=True)):
        return "PRE_OFFSETS goes forwards: `from` is at most `to`"
    return None
