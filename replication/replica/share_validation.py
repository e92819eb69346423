"""Admission of requests about share groups, retries and internal topics: what decoders cannot check.

See validation.py, which calls this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from escrowmq.replication.format.codec import NO_EXTRA, Op, OpType
from escrowmq.replication.format.internal_topics import dead_topic, is_internal, owner_of, owner_problem
from escrowmq.replication.format.share_ops import (
    ANY_NUMBER,
    DROPPED,
    EARLIEST,
    LATEST,
    LETTER_RANGES_MAX,
    REDRIVEN,
    REJECT,
)
from escrowmq.replication.format.share_settings import DELAY_MS_MAX, group_settings_problem
from escrowmq.replication.model import NO_ID

#: What clients send: added with level 9.
SHARES: Final = frozenset((OpType.SHARE_ACK, OpType.NACK, OpType.GROUP_SETTINGS, OpType.PLACES))
#: Ranges or offsets of one operation.
RANGES_MAX: Final = 20_000
#: Offsets of one NACK: each may need a row to be read.
NACKED_MAX: Final = 1_000
NUMBER_MAX: Final = (1 << 53) - 1
#: A member's id is 32 hexadecimal digits; a name is something a person has given.
NAME_CHARS_MAX: Final = 512
#: Characters of a reason. In the copy it is cut to ``REASON_BYTES_MAX`` bytes.
REASON_CHARS_MAX: Final = 65_536


def share_problem(op: Op) -> str | None:
    """What is wrong with a client's operation of ``SHARES``, or None."""
    meta = op.meta
    if op.type == OpType.PLACES:
        return _places_problem(meta[2]) or owner_problem("group", meta[0])
    if op.type == OpType.GROUP_SETTINGS:
        if not ANY_NUMBER <= meta[2] <= NUMBER_MAX:
            return f"the number of a change must be {ANY_NUMBER} to {NUMBER_MAX}"
        if len(meta) > 3 and len(meta[3]) > NAME_CHARS_MAX:
            return f"a name has at most {NAME_CHARS_MAX} characters"
        return group_settings_problem(meta[1]) or owner_problem("group", meta[0])
    if meta[2] < 0 or not NO_ID <= meta[-1] <= NUMBER_MAX:
        return f"a partition is 0 or more, and a topic's id {NO_ID} to {NUMBER_MAX}"
    if op.type == OpType.NACK:
        problem = _nack_problem(op)
    elif type(meta[3]) is str:
        problem = _reply_problem(op)
    else:
        problem = _ack_problem(op)
    return problem or owner_problem("group", meta[0]) or _foreign_problem(meta[0], meta[1])


def _foreign_problem(group: str, topic: str) -> str | None:
    if is_internal(topic) and owner_of(topic) != group:
        return f"{topic!r} is not a topic of group {group!r}"
    return None


def _ack_problem(op: Op) -> str | None:
    ranges, create = op.meta[3], op.meta[4]
    if create.startswith((f"{DROPPED} ", f"{REDRIVEN} ")) and op.meta[1] == dead_topic(op.meta[0]):
        if len(create) > NAME_CHARS_MAX:
            return f"who settles dead letters is named in up to {NAME_CHARS_MAX} characters"
    elif create:
        if create not in (EARLIEST, LATEST) or ranges:
            return f"a group begins at {EARLIEST!r} or {LATEST!r}, with an operation of its own"
        return None
    return _ranges_problem(OpType.SHARE_ACK, ranges)


def _ranges_problem(kind: OpType, ranges: Sequence[int]) -> str | None:
    if not 2 <= len(ranges) <= 2 * RANGES_MAX or len(ranges) % 2:
        return f"{kind.name} needs 1 to {RANGES_MAX} pairs of first and last offset"
    firsts, lasts = ranges[::2], ranges[1::2]
    if firsts[0] < 0 or lasts[-1] > NUMBER_MAX:
        return f"an offset must be 0 to {NUMBER_MAX}"
    if any(map(int.__gt__, firsts, lasts)) or any(map(int.__ge__, lasts, firsts[1:])):
        return "ranges must be in ascending order, and must not overlap"
    return None


def letters_problem(prepare: Op, attached: Sequence[Op]) -> str | None:
    """What is wrong with the PRE_LETTERS behind a PREPARE, or None."""
    places = [at for at, op in enumerate(attached) if op.type == OpType.PRE_LETTERS]
    if not places:
        return None
    extra = prepare.meta[9] if len(prepare.meta) > 9 else NO_EXTRA
    if len(prepare.meta[2]) != 1 or prepare.meta[5] or prepare.meta[7] >= 0 or not extra.on_timeout:
        return "PRE_LETTERS follows the first PREPARE, at home, of a transaction with on_timeout"
    if places != [len(attached) - 1]:
        return "there is one PRE_LETTERS, behind everything else"
    group, partition, ranges, topic_id, to, by = attached[-1].meta
    if attached[-1].body_size or partition < 0 or not NO_ID <= topic_id <= NUMBER_MAX:
        return f"a partition is 0 or more, and a topic's id {NO_ID} to {NUMBER_MAX}"
    if len(ranges) > 2 * LETTER_RANGES_MAX or max(len(to), len(by)) > NAME_CHARS_MAX:
        most = LETTER_RANGES_MAX
        return f"PRE_LETTERS has up to {most} ranges, and names of up to {NAME_CHARS_MAX} characters"
    return _ranges_problem(OpType.PRE_LETTERS, ranges) or owner_problem("group", group)


def _reply_problem(op: Op) -> str | None:
    _, _, _, app, offsets, sizes, _ = op.meta
    if not offsets or len(offsets) > RANGES_MAX or len(offsets) != len(sizes):
        return f"a SHARE_ACK with replies needs 1 to {RANGES_MAX} offsets, and a size for each"
    if min(sizes) < 1 or sum(sizes) != op.body_size:
        return "SHARE_ACK's columns do not fit its body"
    return _offsets_problem(offsets) or owner_problem("app", app)


def _nack_problem(op: Op) -> str | None:
    _, _, _, offsets, delays_ms, reasons, member, by, attempt, _ = op.meta
    if not offsets or len(offsets) > NACKED_MAX or not len(offsets) == len(delays_ms) == len(reasons):
        return f"NACK needs 1 to {NACKED_MAX} offsets, and a delay and a reason for each"
    if min(delays_ms) < REJECT or max(delays_ms) > DELAY_MS_MAX:
        return f"a delay must be 0 to {DELAY_MS_MAX} ms"
    if not 0 <= attempt <= NUMBER_MAX:
        return f"the number of an attempt must be 0 to {NUMBER_MAX}"
    if max(map(len, reasons)) > REASON_CHARS_MAX or max(len(member), len(by)) > NAME_CHARS_MAX:
        return f"a reason has at most {REASON_CHARS_MAX} characters, and a name {NAME_CHARS_MAX}"
    return _offsets_problem(offsets)


def _offsets_problem(offsets: Sequence[int]) -> str | None:
    if offsets[0] < 0 or offsets[-1] > NUMBER_MAX or any(map(int.__ge__, offsets, offsets[1:])):
        return f"offsets must be 0 to {NUMBER_MAX}, in ascending order, and each once"
    return None


def _places_problem(flat: Sequence[int]) -> str | None:
    if len(flat) % 3 or not all(0 <= n <= NUMBER_MAX for n in flat):
        return "PLACES needs triples of partition, offset and attempts, all of them 0 or more"
    return None


def internal_topic_problem(op: Op, groups: int | None) -> str | None:
    """What is wrong with a CREATE_TOPIC of an internal topic, or None. ``groups``: None if not known."""
    name, settings, *placed = op.meta
    if not is_internal(name):
        return None
    if (problem := owner_problem("its owner", owner_of(name))) is not None:
        return problem
    if groups is None:
        return None
    begins = groups == 1 or (placed and placed[0] == 0)
    if settings.get("partitions", 1) != groups or not begins:
        return f"topic {name!r} has one partition in each of {groups} broker groups, from group 0 on"
    return None
