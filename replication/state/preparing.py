"""Small parts of applying a PREPARE: where its messages are, and whether it comes too late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from escrowmq.replication.format.codec import NO_EXTRA, Op, OpType, PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.due_queue import DueQueue, next_due_ms
from escrowmq.replication.state.open_tx import OpenTx, Rows
from escrowmq.replication.state.timers import TimedRows
from escrowmq.replication.state.topics import Partition, TopicTable
from escrowmq.replication.state.transactions import TransactionTable

#: What follows a PREPARE and is no message.
_WITHOUT_MESSAGES = frozenset((OpType.PRE_OFFSETS, OpType.PRE_LETTERS))
UNTRACKED = "a transaction over several broker groups needs a producer that knows format level 2: upgrade it"


def untracked_branch(level: int, home_group: int, extra: PrepareExtra) -> list[object] | None:
    """Why this PREPARE may not open a branch, or None. From level 3 on home tracks every branch: without a
    home index its leader could not tell a late copy from a branch that is owed a decision."""
    if level > 2 and home_group >= 0 and not extra.home_index:
        return [int(ResultCode.MALFORMED), UNTRACKED]
    return None


def is_simple(home_group: int, extra: PrepareExtra, timed: Sequence[TimedRows]) -> bool:
    """Whether a PREPARE is about transactions of this group alone, schedules nothing, and somebody is asked:
    then they may form a block."""
    alone = home_group < 0 and not extra.participants and not extra.home_index
    return alone and not timed and not extra.on_timeout


def refusal_of_repeated(level: int, record: OpenTx, extra: PrepareExtra) -> list[object] | None:
    """Why a PREPARE does not take over an open transaction, or None. It is a late copy, or may be one.

    A PREPARE of version 1 does not tell when it was sent. From level 3 on it takes nothing from a known
    owner: that owner may be running its local transaction, and would no longer be asked. One of another
    fence is another database's transaction that happens to have the same id.
    """
    if extra is NO_EXTRA:
        return [int(ResultCode.TX_CONFLICT), "PREPARE"] if level > 2 and record.instance else None
    if extra.fence and record.fence and extra.fence != record.fence:
        return [int(ResultCode.TX_CONFLICT), "PREPARE"]
    return [int(ResultCode.STALE), None] if is_overtaken(record, extra) else None


def is_overtaken(record: OpenTx, extra: PrepareExtra) -> bool:
    """Whether a PREPARE of version 2 may have been sent before the one, by another instance, under which this
    transaction is open: its sender had heard of nothing later. A sender that is still alive sends it again
    with what it has heard since. (For a branch, no check asks the owner.)"""
    return (
        record.instance != extra.instance and record.home_group < 0 and extra.heard_ms <= record.prepared_ms
    )


def places(
    topics: TopicTable, attached: Sequence[Op]
) -> tuple[list[Rows], list[TimedRows], list[object] | None]:
    """Where the messages that follow a PREPARE are, those with a time apart, and the reason to refuse them,
    or None."""
    found: list[Rows] = []
    timed: list[TimedRows] = []
    for pre in attached:
        if pre.type in _WITHOUT_MESSAGES:
            continue
        meta = pre.meta
        partition = topics.find(meta[0], meta[1])
        if not isinstance(partition, Partition):
            return found, timed, [int(partition), [meta[0], meta[1]]]
        if len(meta) > 4 and meta[-1] != partition.topic_id:
            return found, timed, [int(ResultCode.OTHER_TOPIC), [meta[0], meta[1], partition.topic_id]]
        if pre.type == OpType.PRE_SCHEDULED:
            timed.append((partition.slot, pre.body_pos, *meta[2:6]))
        else:
            found.append((partition.slot, pre.body_pos, meta[2], meta[3]))
    return found, timed, None


# ------------------------------------------------------------------ checks
# Applies CHECKED: a check of open transactions was answered without a decision.


class Checked(Protocol):
    """What is needed of the state."""

    level: int
    now_ms: int
    transactions: TransactionTable
    topics: TopicTable
    due: DueQueue


def count_check(state: Checked, meta: Sequence[Any]) -> list[Any]:
    """``meta``: app, ids, and in version 2 the reason to park them. From level 5 on the check's time is
    kept."""
    app, tx_ids = meta[:2]
    reason = meta[2] if len(meta) > 2 else ""
    now_ms, due_queue, table = state.now_ms, state.due, state.transactions.look(app)
    for tx_id in tx_ids:
        record = table.open.get(tx_id)
        if record is None:
            continue  # settled meanwhile: nothing to count
        record = record._replace(checked_ms=now_ms if state.level > 4 else 0)
        if reason:
            table.open.replace(tx_id, record._replace(due_ms=-1, parked_for=reason))
            table.parked.add(tx_id)
            due_queue.forget(app, tx_id)
            continue
        topic = state.topics.topics.get(record.topic)
        checks = record.checks + 1
        due = next_due_ms(now_ms, checks, topic.info if topic else None)
        table.open.replace(tx_id, record._replace(checks=checks, due_ms=due))
        (table.parked.add if due < 0 else table.parked.discard)(tx_id)
        due_queue.forget(app, tx_id)
        due_queue.schedule(app, (tx_id,), due)
    return [0]
