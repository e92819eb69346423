"""What operators may ask about share groups: how far a group is here, and what is final for it.

Nothing is decoded: counts come from the state and from the leader's leases.
"""

from __future__ import annotations

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.calling.share_reports import FinalRanges, SharePlace, SharePlaces
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.state.topics import Partition


class ShareReports:
    """Questions about one replica's share groups. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._state = running, running.replica.state

    def places(self, group: str) -> Reply:
        """``("ok", SharePlaces)``: the partitions of this broker group that the group reads, and its internal
        topics; leader only."""

        def read() -> SharePlaces | None:
            later = self._later()
            rows = [self._place(group, partition, later) for partition in self._partitions(group)]
            return SharePlaces.of(rows) if rows else SharePlaces()

        return self._running.led(read)

    def members(self, group: str) -> Reply:
        """``("ok", [member, ...])``: who holds messages of the group at this leader, or waits for some."""
        return self._running.led(lambda: self._running.replica.lease_dispatcher.members(group))

    def final(self, group: str, topic: str, partition: int) -> Reply:
        """``("ok", FinalRanges | None)``; None: there is no such partition here, or the group has not begun
        to read it. Leader only."""

        def read() -> FinalRanges | None:
            found = self._state.topics.find(topic, partition)
            if not isinstance(found, Partition):
                return None
            pair = self._state.shares.get(group, found)
            if pair is None:
                return None
            return FinalRanges(pair.start, found.index.end, pair.flat(), found.topic_id)

        return self._running.led(read)

    def _partitions(self, group: str) -> list[Partition]:
        """Those that it has begun to read, and its own, by topic."""
        table = self._state.topics
        begun = [table.slots[slot] for name, slot in self._state.shares.pairs if name == group]
        for name in (retry_topic(group), dead_topic(group)):
            if (topic := table.topics.get(name)) is not None:
                begun += topic.partitions.values()
        return sorted({p.slot: p for p in begun}.values(), key=lambda p: (p.topic, p.number))

    def _place(self, group: str, partition: Partition, later: dict[int, int]) -> SharePlace:
        pair = self._state.shares.get(group, partition)
        assert pair is not None
        return SharePlace(
            partition.topic,
            partition.number,
            pair.start,
            partition.index.end,
            pair.waiting,
            self._running.replica.lease_dispatcher.leases.held((group, partition.slot)),
            later.get(partition.slot, 0),
            pair.expired,
            pair.ranges,
        )

    def _later(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        flat = self._state.timers.counts.flat()
        for slot, timers in zip(flat[::4], flat[2::4], strict=True):
            counts[slot] = counts.get(slot, 0) + timers
        return counts
