"""Admission of a client's request: anything that could make ``apply`` fail is refused here.

The typed decoders have checked shapes, and each operation checks its own columns (``Operation.problem``).
Here is what concerns more than one: that a PREPARE is followed by what it announces, that these fit it, and
that clients send no operations that only a leader may write.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.errors import CorruptLog, InvalidMessage, UnknownVersion
from escrowmq.replication.format.codec import Op, decode_ops
from escrowmq.replication.format.operation import OpType, Sender
from escrowmq.replication.format.ops import (
    BY_HOME,
    UNNUMBERED,
    CreateTopic,
    PreMessage,
    PreOffsets,
    Prepare,
    brokers_topic_problem,
    claim_group,
    id_problem,
)
from escrowmq.replication.format.share_ops import PreLetters
from escrowmq.replication.format.timer_ops import PreScheduled
from escrowmq.replication.limits import MOVED_OFFSETS_MAX


def brings_new_work(ops: Sequence[Op]) -> bool:
    """Whether a request adds messages, transactions or topics, rather than settling existing ones. This is
    refused when only the disk reserve is left."""
    return any(op.meta.NEW_WORK for op in ops)


def level_needed(ops: Sequence[Op]) -> int:
    """The lowest format level of a group whose log may have these operations."""
    return max((op.meta.level_needed() for op in ops), default=1)


def parse_request(
    request: bytes, *, from_broker: bool = False, group_and_count: tuple[int, int] | None = None
) -> list[Op]:
    """Decode and check a request; raises InvalidMessage that names the operation and the problem.

    ``from_broker``: it may decide in the name of a home group. ``group_and_count``: the number of this group
    and the number of groups, if references to groups are to be checked too.
    """
    try:
        ops = decode_ops(request)
    except (CorruptLog, UnknownVersion) as error:
        raise InvalidMessage(f"request cannot be decoded: {error}") from error
    at = 0
    while at < len(ops):
        op = ops[at]
        problem = _problem(op, from_broker)
        if problem is not None:
            pass
        elif op.type == OpType.PREPARE:
            attached = ops[at + 1 : at + 1 + max(op.meta.attached, 0)]
            problem = _attached_problem(op.meta, attached) or (
                group_and_count and _groups_problem(op.meta, *group_and_count)
            )
            at += len(attached)
        elif op.type == OpType.CREATE_TOPIC:
            problem = op.meta.placing_problem(group_and_count and group_and_count[1])
        elif op.meta.ATTACHED:
            problem = f"{op.meta.KIND.name} without its PREPARE before it"
        elif op.type == OpType.DELETE_TOPIC and any(_creates(o, op.meta.name) for o in ops[:at]):
            # A leader writes no deletion while a creation of that name is under way (admission.py).
            problem = f"it creates topic {op.meta.name!r} and deletes it again; send the deletion by itself"
        if problem is not None:
            raise InvalidMessage(f"operation {at} of the request: {problem}")
        at += 1
    return ops


def _problem(op: Op, from_broker: bool) -> str | None:
    if op.meta.SENDER is Sender.LEADER:
        return f"operations of type {op.type} are written by leaders only"
    if op.type in (OpType.COMMIT, OpType.ROLLBACK) and not from_broker and op.meta.by.startswith(BY_HOME):
        return f"only brokers decide in the name of a home group ({op.meta.by!r})"
    problem: str | None = op.meta.problem(op.body_size)
    return problem


def _creates(op: Op, name: str) -> bool:
    return isinstance(op.meta, CreateTopic) and op.meta.name == name


def _attached_problem(prepare: Prepare, attached: Sequence[Op]) -> str | None:
    """What is wrong with what follows a PREPARE, or None."""
    if prepare.attached < 0 or len(attached) != prepare.attached:
        return f"PREPARE announces {prepare.attached} operations and {len(attached)} follow"
    ordinals: set[tuple[int, int]] = set()
    for op in attached:
        part = op.meta
        if not part.ATTACHED:
            return f"PREPARE is followed by an operation of type {op.type} instead of PRE_MESSAGE"
        if (problem := part.problem(op.body_size)) is not None:
            return str(problem)
        if not isinstance(part, PreMessage | PreScheduled):
            continue
        if (problem := _rows_problem(part, len(prepare.tx_ids), op.body_size)) is not None:
            return problem
        if isinstance(part, PreScheduled):
            before = len(ordinals)
            ordinals.update(zip(part.txs, part.ordinals, strict=True))
            if len(ordinals) != before + len(part.txs):
                return "PRE_SCHEDULED gives an ordinal twice in one transaction"
    return _letters_problem(prepare, attached) or _offsets_problem(prepare, attached)


def _rows_problem(part: PreMessage | PreScheduled, transactions: int, body_bytes: int) -> str | None:
    problem = brokers_topic_problem(part.topic) or id_problem(part.topic_id)
    if problem is not None:
        return problem
    txs, sizes = part.txs, part.sizes
    if part.partition < 0 or not txs or len(txs) != len(sizes) or sum(sizes) != body_bytes:
        return f"{part.KIND.name}'s columns do not fit its body"
    if min(txs) < 0 or max(txs) >= transactions or min(sizes) < 1:
        return f"{part.KIND.name} refers to a transaction that its PREPARE does not name"
    return None


def _letters_problem(prepare: Prepare, attached: Sequence[Op]) -> str | None:
    found = [at for at, op in enumerate(attached) if isinstance(op.meta, PreLetters)]
    if not found:
        return None
    if len(prepare.tx_ids) != 1 or prepare.part or prepare.home_group >= 0 or not prepare.extra.on_timeout:
        return "PRE_LETTERS follows the first PREPARE, at home, of a transaction with on_timeout"
    if found != [len(attached) - 1]:
        return "there is one PRE_LETTERS, behind everything else"
    return None


def _offsets_problem(prepare: Prepare, attached: Sequence[Op]) -> str | None:
    moving = [op.meta for op in attached if isinstance(op.meta, PreOffsets)]
    if not moving:
        return None
    if len(prepare.tx_ids) != 1 or prepare.part:
        return "PRE_OFFSETS follows the first PREPARE of one transaction"
    if any(not isinstance(op.meta, PreOffsets) for op in attached[-len(moving) :]):
        return "PRE_OFFSETS stands behind the messages"
    if len({(part.group, part.topic) for part in moving}) != len(moving):
        return "a transaction moves the offsets of a group in a topic once"
    if sum(len(part.moves) for part in moving) > 3 * MOVED_OFFSETS_MAX:
        return f"a transaction moves at most {MOVED_OFFSETS_MAX} offsets"
    return None


def _groups_problem(prepare: Prepare, gid: int, groups: int) -> str | None:
    """Why this group, one of ``groups``, may not take the PREPARE, or None."""
    home_group, participants, claim = (
        prepare.home_group,
        prepare.extra.participants,
        prepare.extra.claim,
    )
    if home_group < 0 and claim is not None:
        home = claim_group(claim[0], groups)
        if claim[2] != UNNUMBERED and home != gid:
            text = f"group {home} of {groups} is home to the numbered transactions of {claim[0]!r}"
            return f"{text}, not group {gid}"
    if home_group >= groups or home_group == gid:
        return f"group {gid} of {groups} has no branch of group {home_group}"
    if any(group >= groups or group == gid for group in participants):
        return f"not all of {list(participants)} can have branches of group {gid} of {groups}"
    return None
