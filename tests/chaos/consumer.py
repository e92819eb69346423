"""A consumer process: ``python -m tests.chaos.consumer SETTINGS``; a member of a group, or a reader.

The member polls, commits offsets now and then, sometimes leaves and joins again, and sometimes crashes
between a poll and its commit. The reader follows all partitions without a group and takes a stable cut every
second: the ends of partitions from one answer of the leader, and everything up to them.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from escrowmq import Cluster, Consumer, EscrowMQError, StaleMember, UnknownTopic
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.model import ConsumerRecord
from tests.chaos.client import ClientSettings, Parent, connected, crash, say_ready
from tests.history.events import Recorder, identify

GROUP = "auditors"
CUT_EVERY_S = 1.0
Place = tuple[str, int]


def places(topics: Mapping[str, int]) -> list[Place]:
    """All partitions."""
    return [(topic, partition) for topic, count in sorted(topics.items()) for partition in range(count)]


def by_partition(records: Sequence[ConsumerRecord]) -> dict[Place, list[tuple[int, str]]]:
    """The records of one poll in the form that the history uses."""
    found: dict[Place, list[tuple[int, str]]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append((record.offset, identify(record.value)))
    return found


def read_range(info: ClusterInfo, gid: int, place: Place, start: int, end: int) -> list[tuple[int, str]]:
    """Everything in ``[start, end)`` of a partition of a broker group."""
    with PartitionReader(info, *place, start, end, group=gid, timeout_s=15.0) as blocks:
        return [
            (block.base_offset + n, identify(value))
            for block in blocks
            for n, (_, value, _, _) in enumerate(decode_rows(block.rows, block.messages))
        ]


class Progress:
    """What a member has polled, for the history and for its commits."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder = name, recorder
        self.epoch = 0
        self.polled: dict[Place, int] = {}  # the next offset of all that this membership has polled
        self.begun: set[Place] = set()  # partitions that this epoch's reader has read

    def joins(self) -> None:
        """Start a new membership, which has polled nothing."""
        self.polled = {}
        self.new_epoch()

    def new_epoch(self) -> None:
        """Use a new reader in the history, since partitions may have moved. ``polled`` stays, because a
        partition that did not move may bring no further message to commit."""
        self.epoch += 1
        self.begun = set()

    def assigned(self, partitions: Sequence[Place]) -> None:
        """Partitions were added, or given up and added again: they are read from the group's places."""
        self.begun.difference_update(partitions)

    def record(self, records: Sequence[ConsumerRecord]) -> None:
        for place, found in by_partition(records).items():
            start = found[0][0] if place not in self.begun else None
            self.begun.add(place)
            self.recorder.read(f"{self.name}#{self.epoch}", *place, found, start=start)
            self.polled[place] = found[-1][0] + 1

    def _still_there(self, consumer: Consumer) -> dict[Place, int]:
        """The polled offsets that are still the consumer's position. A partition that moved away and came
        back starts at the group's committed offset."""
        there: dict[Place, int] = {}
        for place, offset in self.polled.items():
            with suppress(EscrowMQError):
                if consumer.position(*place) == offset:
                    there[place] = offset
        return there

    def commit(self, consumer: Consumer) -> None:
        offsets = self._still_there(consumer)
        if not offsets:
            return
        ops = [
            self.recorder.invoke("offset-commit", group=GROUP, topic=t, partition=p, offset=offset)
            for (t, p), offset in offsets.items()
        ]
        try:
            consumer.commit(offsets)
        except EscrowMQError as error:
            for op in ops:
                self.recorder.unknown(op, repr(error))
            if isinstance(error, StaleMember):
                self.new_epoch()
        else:
            for op in ops:
                self.recorder.ok(op)


class Member:
    """A member of the group. It has a new name each time it joins, so that its positions are separate."""

    def __init__(
        self, cluster: Cluster, settings: ClientSettings, recorder: Recorder, parent: Parent
    ) -> None:
        self.cluster, self.settings, self.parent = cluster, settings, parent
        self.rng = random.Random(f"{settings.seed}/{settings.name}")
        self.progress = Progress(settings.name, recorder)

    def run(self) -> None:
        """Join again and again, until the end. Every second time it is told what it is assigned."""
        while not self.parent.ending.is_set():
            told = self.progress.assigned if self.rng.random() < 0.5 else None
            try:
                consumer = self._consumer(told)
            except UnknownTopic:  # a topic that is created again does not exist for a moment
                time.sleep(0.1)
                continue
            with consumer:
                self._attend(consumer)

    def _consumer(self, told: Callable[[list[Place]], None] | None) -> Consumer:
        return self.cluster.consumer(
            group=GROUP,
            topics=sorted(self.settings.topics),
            auto_offset_reset="earliest",
            session_timeout_s=3.0,
            heartbeat_interval_s=0.5,
            on_assign=told,
        )

    def _attend(self, consumer: Consumer) -> None:
        """Poll some hundred times."""
        assigned: list[Place] = []
        self.progress.joins()
        for _ in range(self.rng.randint(100, 400)):
            if self.parent.ending.is_set():
                return
            try:
                records = consumer.poll(timeout_s=0.3)
            except EscrowMQError:
                continue  # no broker answers: the next poll tries again
            now = consumer.assignment()
            if now != assigned:
                assigned = now
                self.progress.new_epoch()
            self.progress.record(records)
            if self.rng.random() < self.settings.crashes and not self.parent.resting.is_set():
                crash()
            if self.rng.random() < 0.3:
                self.progress.commit(consumer)


class Reader:
    """Reads everything and takes stable cuts."""

    def __init__(
        self, cluster: Cluster, settings: ClientSettings, recorder: Recorder, parent: Parent
    ) -> None:
        self.cluster, self.settings, self.recorder, self.parent = cluster, settings, recorder, parent
        self.places = places(settings.topics)
        self.ends = dict.fromkeys(self.places, 0)
        self.cuts = 0

    def run(self) -> None:
        """Read until the end."""
        router = Router(self.cluster.info)
        offsets = OffsetReader(router)
        with self.cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign(self.places)
            started: set[Place] = set()
            for due in self._cuts_due():
                try:
                    if due:
                        self._cut(offsets, router.placement)
                    records = consumer.poll(timeout_s=0.3)
                except EscrowMQError:
                    continue
                for place, found in by_partition(records).items():
                    start = None if place in started else 0
                    started.add(place)
                    self.recorder.read(self.settings.name, *place, found, start=start)
        router.close()

    def _cuts_due(self) -> Iterator[bool]:
        last = time.monotonic()
        while not self.parent.ending.is_set():
            due = time.monotonic() - last >= CUT_EVERY_S
            last = time.monotonic() if due else last
            yield due

    def _cut(self, offsets: OffsetReader, where: TopicPlacement) -> None:
        """Read what has come since the previous cut, up to ends from one answer. One cut per broker group,
        since a transaction becomes readable at one instant only within a group."""
        bounds = offsets.bounds(self.places, 5.0)
        self.cuts += 1
        for place in self.places:
            found = bounds[place]
            assert not isinstance(found, Exception), found
            gid = where.group_of(*place)
            records = read_range(self.cluster.info, gid, place, self.ends[place], found[1])
            self.recorder.read(
                f"{self.settings.name}/cuts-{gid}",
                *place,
                records,
                start=self.ends[place],
                cut=f"{self.settings.name}/{gid}/{self.cuts}",
            )
            self.ends[place] = found[1]


def main() -> int:
    """Run until the parent closes the standard input."""
    settings = ClientSettings(**json.loads(sys.argv[1]))
    parent, recorder = Parent(), settings.recorder()
    kind = Member if settings.role == "consumer" else Reader
    with connected(settings) as cluster:
        say_ready()
        kind(cluster, settings, recorder, parent).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
