"""What may be deleted, decided by the leader and written into the log, so that replicas delete alike.

Two steps. TRIM moves the start of partitions by the topic's ``retention_ms`` and ``retention_bytes``.
RETAIN then names the first log entry that anything still needs: live messages, open transactions, the
older of the two kept snapshots. Segments wholly before it are dropped.
"""

from __future__ import annotations

from escrowmq.replication.format import ops
from escrowmq.replication.state.machine import StateMachine


def plan_trims(state: StateMachine, now_ms: int) -> list[bytes]:
    """TRIM operations for all topics whose policy lets something go now."""
    frames: list[bytes] = []
    for name, topic in state.topics.topics.items():
        starts: dict[int, int] = {}
        for number, partition in topic.partitions.items():
            index = partition.index
            start = index.start
            if topic.info.retention_ms >= 0:
                start = max(start, index.offset_at_time(now_ms - topic.info.retention_ms))
            if topic.info.retention_bytes >= 0:
                start = max(start, index.start_for_bytes(topic.info.retention_bytes))
            if start > index.start:
                starts[number] = start
        if starts:
            frames.append(ops.trim(name, starts))
    return frames


def first_needed_index(state: StateMachine, snapshot_index: int | None) -> int:
    """First log entry that must be kept. ``snapshot_index``: recovery redoes what follows it."""
    if snapshot_index is None:
        return state.first_index  # without two snapshots nothing may go
    needed = snapshot_index
    oldest_open = state.transactions.oldest_index()
    if oldest_open is not None:
        needed = min(needed, oldest_open)
    for partition in state.topics.slots.values():
        oldest = partition.index.oldest_log_index()
        if oldest is not None:
            needed = min(needed, oldest)
    return needed
