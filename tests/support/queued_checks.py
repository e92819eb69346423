"""How many checks a ``DueQueue`` holds in memory, by counting them."""

from __future__ import annotations

from escrowmq.replication.state.due_queue import DueQueue


def queued_checks(due: DueQueue) -> int:
    """Ids in buckets and due queues, those of settled transactions included."""
    queued = sum(len(ids) for chunks in due.buckets.values() for _, ids in chunks)
    return queued + sum(map(len, due.queues.values()))
