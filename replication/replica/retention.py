"""What may be deleted. The leader decides it and writes it into the log, so that all replicas delete alike.

Two steps. TRIM moves the start of partitions by the topic's ``retention_ms`` and ``retention_bytes``.
RETAIN then names the first log entry that anything still needs: live messages, open transactions,
messages that wait, the older of the two kept snapshots. Segments entirely before it are dropped.

Both result from one pass over all partitions, made in slices between applied entries, since the same thread
also sends heartbeats. What is applied meanwhile needs no entry before those that were needed when the
pass began: it refers to transactions that were open then, or to itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from escrowmq.replication.format import ops
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Topic

#: What summing a block of runs costs, in visits to a partition.
VISITS_PER_BLOCK = 8


class RetentionRound:
    """One pass over all partitions. Only in the applying thread, of a leader."""

    def __init__(self, state: StateMachine, now_ms: int, snapshot_index: int | None) -> None:
        """``snapshot_index``: recovery redoes what follows it; None: there are fewer than two snapshots, so
        nothing may be dropped."""
        self._state, self._now_ms = state, now_ms
        self._frames: list[bytes] = []
        self._waiting = state.timers.counts.oldest_index()
        self._needed = state.first_index
        if snapshot_index is not None:
            oldest_open = state.transactions.oldest_index()
            self._needed = snapshot_index if oldest_open is None else min(snapshot_index, oldest_open)
        self._visits = self._visit(list(state.topics.topics.values()))
        self.done = False

    @property
    def first_needed_index(self) -> int:
        """First log entry that must be kept, once the round is done."""
        return self._needed if self._waiting is None else min(self._needed, self._waiting)

    @property
    def needed_otherwise(self) -> int:
        """The same, if no delayed message waited: those can be carried to the end of the log."""
        return self._needed

    def step(self, visits: int) -> list[bytes]:
        """Continue for about as long as ``visits`` visits to partitions take; returns the TRIM operations
        found."""
        while visits > 0 and not self.done:
            cost = next(self._visits, None)
            if cost is None:
                self.done = True
            else:
                visits -= cost
        frames, self._frames = self._frames, []
        return frames

    def _visit(self, topics: list[Topic]) -> Iterator[int]:
        for topic in topics:
            info, starts = topic.info, dict[int, int]()
            for number, partition in topic.partitions.items():
                index = partition.index
                while index.sum_up(1):
                    yield VISITS_PER_BLOCK
                start = index.start
                wanted = _wanted_start(index, start, info, self._now_ms)
                if wanted > start:
                    starts[number] = wanted
                oldest = index.oldest_log_index()
                if oldest is not None and oldest < self._needed:
                    self._needed = oldest
                yield 1
            if starts and self._is_there(topic):
                self._frames.append(ops.trim(info.name, starts))

    def _is_there(self, topic: Topic) -> bool:
        """Whether it was not deleted since the round began; another topic may have its name by now."""
        return self._state.topics.topics.get(topic.info.name) is topic


def _wanted_start(index: PartitionIndex, start: int, info: TopicInfo, now_ms: int) -> int:
    """Where a partition that begins at ``start`` should begin now."""
    if start == index.end:
        return start
    if info.retention_ms >= 0:
        start = max(start, index.offset_at_time(now_ms - info.retention_ms))
    if info.retention_bytes >= 0:
        start = max(start, index.start_for_bytes(info.retention_bytes))
    return start
