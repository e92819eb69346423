"""Questions from planners of bulk reads: bounds of many partitions, changes of them, bytes of offset ranges.

A streaming query asks all day whether there is anything new. ``watch`` answers that with a few numbers
per partition and no messages, and waits for news instead of being called again and again. The leader
answers, since a follower's end may lag: an end that moved backwards then means that the topic was
deleted and created again. ``spans`` reads only the index, whole runs at a time, never bodies.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.calling.answers import PartitionBounds, PartitionSpans, Reply
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

#: Maximum partitions of one call: bounds the work that a parked call repeats at each piece of news.
PARTITIONS_MAX = 10_000

WatchRequest = tuple[str, int, int]  # topic, partition, the end that the caller knows (-1: none)
SpanRequest = tuple[str, int, int, int, int]  # topic, partition, start, end, maximum bytes


class Watching:
    """Both calls for one replica. Thread-safe; ``watch`` parks where fetches park."""

    def __init__(self, running: RunningReplica) -> None:
        self._running = running

    def watch(self, requests: Sequence[WatchRequest], wait_s: float) -> Reply:
        """``("ok", PartitionBounds)`` once an end differs from the known one, or after ``wait_s``."""
        running = self._running
        known = [end for _, _, end in requests[:PARTITIONS_MAX]]

        def read(state: StateMachine) -> PartitionBounds:
            return bounds(state, requests)

        def attempt() -> Reply | None:
            answer = running.if_leading(read)
            if answer[0] == "ok" and answer[1].ends == known:
                return None
            return running.confirmed(read)

        # Also "nothing new" is an answer that a leader without a majority may not give.
        return running.news.wait_for(attempt, wait_s) or running.confirmed(read)

    def spans(self, requests: Sequence[SpanRequest]) -> Reply:
        """``("ok", PartitionSpans)``: see :func:`span`."""

        def read(state: StateMachine) -> PartitionSpans:
            found = PartitionSpans([], [], [])
            for request in requests[:PARTITIONS_MAX]:
                code, offset, size = span(state, *request)
                found.codes.append(code)
                found.offsets.append(offset)
                found.sizes.append(size)
            return found

        return self._running.if_leading(read)


def bounds(state: StateMachine, requests: Sequence[WatchRequest]) -> PartitionBounds:
    """All read at one moment: all of a transaction or nothing of it."""
    found = PartitionBounds([], [], [])
    with state.cut:
        for topic, number, _ in requests[:PARTITIONS_MAX]:
            partition = state.topics.find(topic, number)
            if isinstance(partition, Partition):
                code, start, end = int(ResultCode.OK), partition.index.start, partition.index.end
            else:
                code, start, end = int(partition), 0, 0
            found.codes.append(code)
            found.starts.append(start)
            found.ends.append(end)
    return found


def span(
    state: StateMachine, topic: str, number: int, start: int, end: int, max_bytes: int
) -> tuple[int, int, int]:
    """``(code, offset, bytes)``: how far ``max_bytes`` reach from ``start`` towards ``end``, and the
    bytes up to there. A run that does not fit is split as if all its messages had the same size.
    """
    partition = state.topics.find(topic, number)
    if not isinstance(partition, Partition):
        return int(partition), 0, 0
    return int(ResultCode.OK), *partition.index.span(start, end, max_bytes)
