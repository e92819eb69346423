"""What share groups have left: the world waits until it is nothing, and then the history is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.sharing.records import named, rows_of

if TYPE_CHECKING:
    from escrowmq.replication.state.topics import Topic
    from tests.sim.sharing.groups import ShareGroups


class GroupsEnd:
    """The end of these groups in one world."""

    def __init__(self, world: ShareGroups, groups: Sequence[str]) -> None:
        self._world, self._groups = world, groups

    def left(self, gid: int) -> int:
        """Messages of a broker group that are neither done nor dead letters. 1 if nobody can be asked."""
        leader = next((app for replica, app in self._world.desks[gid].leaders() if replica.node.ready), None)
        if leader is None:
            return 1
        state = leader.replica.state
        topics = state.topics.topics
        retries = [topics[topic] for topic in map(retry_topic, self._groups) if topic in topics]
        slots = {partition.slot for topic in retries for partition in topic.partitions.values()}
        left = sum(timers for slot, timers in timers_of(state.timers.counts.flat()) if slot in slots)
        for group in self._groups:
            for topic in (*self._world.topics, retry_topic(group)):
                for partition in topics[topic].partitions.values() if topic in topics else ():
                    pair = state.shares.get(group, partition)
                    left += 0 if pair is None else pair.waiting
        return left

    def tell(self, leaders: Sequence[BrokerApplication]) -> bool:
        """Record what is left, one leader of each broker group asked; False: a replica found damage, and has
        ended, and nothing is recorded."""
        found: list[tuple[str, dict[str, Any]]] = []
        for leader in leaders:
            topics = leader.replica.state.topics.topics
            for group in self._groups:
                kinds = [(topic, "") for topic in self._world.topics if topic in topics]
                internal = (retry_topic(group), "retry"), (dead_topic(group), "dead")
                kinds += [(topic, of) for topic, of in internal if topic in topics]
                for topic, of in kinds:
                    for number in topics[topic].partitions:
                        told = self._found(leader, group, topics[topic], number, of)
                        if told is None:
                            return False
                        found.append((group, told))
        recorder = self._world.recorder
        for group, told in found:
            recorder.ok(recorder.invoke("share-end", group=group), **told)
        self._world.changes.check([leader.replica.state.shares for leader in leaders])
        return True

    def _found(
        self, app: BrokerApplication, group: str, topic: Topic, number: int, of: str
    ) -> dict[str, Any] | None:
        partition = topic.partitions[number]
        name = named(topic.info.name, partition.topic_id)
        pair = app.replica.state.shares.get(group, partition)
        begin, end = self._world.start_of(group, name, number), partition.index.end
        if begin is None:  # a group that was deleted has perhaps begun anywhere
            begin = end if group == self._world.deletions.group and not of else 0
        records, at = list[Any](), partition.index.start
        while at < end:
            result = app.fetch(topic.info.name, number, at)
            if result is None:
                return None
            rows = [row for row in rows_of(result[5], result[6]) if row[0] >= at]
            if not rows:
                break
            records += [row[:3] if of else row[:2] for row in rows if pair is not None and row[0] >= begin]
            at = rows[-1][0] + 1
        flat = [] if pair is None else pair.flat()
        start = end if pair is None else pair.start
        # Retention may have moved the start past ranges that the pair still has.
        ranges = [(first, last) for first, last in zip(flat[::2], flat[1::2], strict=True) if last >= start]
        told: dict[str, Any] = {"topic": name, "partition": number, "start": start, "ranges": ranges}
        told |= {"end": end, "records": records}
        return told | {"of": of} if of else told


def timers_of(flat: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The slot and the number of those that wait, of what ``TimerCounts.flat`` says."""
    return zip(flat[::4], flat[2::4], strict=True)
