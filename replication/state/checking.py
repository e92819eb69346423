"""Applies CHECKED: a check of open transactions was answered without a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from escrowmq.replication.state.due_queue import DueQueue, next_due_ms
from escrowmq.replication.state.topics import TopicTable
from escrowmq.replication.state.transactions import TransactionTable


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
