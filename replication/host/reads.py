"""Reads: committed messages, where partitions begin and end, topics, and positions of consumer groups.

Messages are read in the caller's thread, in parallel with the driver. Unless a method says "leader only", any
replica answers from its own state, which may lag. "Leader only" answers are linearizable: a majority confirms
that this replica leads, after the question. Once the replica is closed,
these methods raise Unavailable, and the others answer as a follower.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from escrowmq.replication.calling.answers import FetchEnds, FoundOffsets, Reply, TopicNames
from escrowmq.replication.calling.offset_answers import HeldPlaces
from escrowmq.replication.errors import CorruptLog, DamagedEntry, DiskFailed, Unavailable
from escrowmq.replication.format.settings import GroupSettings
from escrowmq.replication.host.running_replica import NOT_RUNNING, RunningReplica
from escrowmq.replication.model import NO_ID, TopicInfo
from escrowmq.replication.replica import fetching
from escrowmq.replication.replica.fetching import (
    FETCH_BYTES_MAX,
    FETCH_ENDS_MAX,
    FetchRequest,
    FetchResult,
    Join,
    in_bytes,
)
from escrowmq.replication.state.machine import StateMachine

#: Maximum number of topics that one call may name.
TOPICS_NAMED_MAX = 10_000
#: When a reader may retry what is damaged here: mending takes as long as a call or two.
MENDING_S = 0.2


class Reads:
    """Reads of one replica. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._replica = running, running.replica
        self._all_topics: tuple[int, Sequence[TopicInfo]] = -1, ()
        self._listing = threading.Lock()

    # -------------------------------------------------------------- messages

    def fetch(
        self, requests: Sequence[FetchRequest], max_bytes: int, wait_s: float, join: Join = in_bytes
    ) -> list[FetchResult]:
        """Committed messages; waits up to ``wait_s`` if there are neither messages nor an error."""
        self._running.check_open()
        replica, max_bytes = self._replica, min(max_bytes, FETCH_BYTES_MAX)

        def attempt() -> list[FetchResult] | None:
            results = replica.fetch(requests, max_bytes, join)
            return results if any(code or runs for _, _, code, _, _, runs, _ in results) else None

        try:
            return self._running.news.wait_for(attempt, wait_s) or replica.fetch(requests, max_bytes, join)
        except DamagedEntry as error:  # it is being mended; another replica has it
            raise Unavailable(str(error), MENDING_S) from error
        except (CorruptLog, DiskFailed) as error:
            raise self._running.leave(error) from error

    def fetch_ends(
        self, topic: str, partition: int, offset: int, until: int, max_bytes: int, count: int
    ) -> FetchEnds:
        """Where the next fetches end (see fetching.py), at most ``FETCH_ENDS_MAX`` of them."""
        self._running.check_open()
        max_bytes, count = min(max_bytes, FETCH_BYTES_MAX), min(count, FETCH_ENDS_MAX)
        state = self._replica.state
        with self._running.leaving():
            return FetchEnds(*fetching.fetch_ends(state, topic, partition, offset, until, max_bytes, count))

    # -------------------------------------------------------------- partitions and topics

    def offsets(self, requests: Sequence[tuple[str, int, int]], leader: bool = False) -> FoundOffsets | Reply:
        """Per (topic, partition, ts_ms): the first offset at or after it; ts_ms -1 = end, -2 = start.

        ``leader``: only if this replica leads, as ``("ok", FoundOffsets)``: another one's end may lag.
        """

        def read(state: StateMachine) -> FoundOffsets:
            # Ids first: a topic that is created again meanwhile must not lend its id to the earlier one.
            known = [state.topics.topics.get(topic) for topic, *_ in requests]
            ids = [NO_ID if topic is None else topic.info.topic_id for topic in known]
            with self._running.leaving(), state.cut:
                found = [fetching.offset_for_time(state, *request) for request in requests]
            return FoundOffsets([code for code, _ in found], [offset for _, offset in found], ids)

        if leader:
            return self._running.confirmed(read)
        self._running.check_open()
        return read(self._replica.state)

    def topics(self, leader: bool | Sequence[str] = False) -> Reply:
        """``("ok", [TopicInfo, ...])``; from this replica's state, or the leader's if requested.

        With names instead of True: from the leader, and only the existing ones of these topics. In the
        caller's thread, since a thousand clients may start at once. The list of all topics is the same object
        until a topic changes; callers must not change it.
        """
        if not leader:
            self._running.check_open()
            return ("ok", self._topics(self._replica.state))
        if self._running.closed:
            return NOT_RUNNING
        if leader is True:
            return self._running.confirmed(self._topics)
        names = list(leader)[:TOPICS_NAMED_MAX]
        return self._running.confirmed(lambda state: _named(state, names))

    def _topics(self, state: StateMachine) -> Sequence[TopicInfo]:
        with self._listing:  # otherwise many callers at once would each create a list, and each pack it
            version, topics = self._all_topics
            if version != state.topics.version:
                version = state.topics.version  # read first: a change meanwhile makes the list stale
                topics = [topic.info for topic in list(state.topics.topics.values())]
                self._all_topics = version, topics
            return topics

    def topic_names(self, term: int, version: int) -> Reply:
        """``("ok", TopicNames)`` of the leader: the names, unless ``term`` and ``version`` are those of its
        last answer and no topic has changed since. A leader that begins again has another term."""
        if self._running.closed:
            return NOT_RUNNING

        def read(state: StateMachine) -> TopicNames:
            now = self._running.node.term, state.topics.version  # before the names
            return TopicNames(*now, None if now == (term, version) else list(state.topics.topics))

        return self._running.confirmed(read)

    def partition_bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """partition -> (start, end) of those that this group hosts."""
        self._running.check_open()
        known = self._replica.state.topics.topics.get(topic)
        if known is None:
            return {}
        with self._running.leaving():
            return {n: (p.index.start, p.index.end) for n, p in known.partitions.items()}

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has in the whole cluster; None if it does not exist."""
        known = self._replica.state.topics.topics.get(topic)
        return None if known is None else known.info.partitions

    def which_topic(self, name: str) -> object:
        """The topic that has this name now: another object after it was deleted and created again. None: no
        topic has it."""
        return self._replica.state.topics.topics.get(name)

    # -------------------------------------------------------------- positions of consumer groups

    def last_void(self, group: str) -> int:
        """See ``DeletedGroups``."""
        return self._replica.state.deleted_groups.last_void(group)

    def committed(self, group: str, topics: Sequence[str] | None = None) -> Reply:
        """``("ok", {topic: {partition: next offset}})`` of a consumer group; leader only."""
        return self._running.confirmed(lambda _: self.group_offsets(group, topics), in_loop=True)

    def group_offsets(self, group: str, topics: Sequence[str] | None = None) -> dict[str, dict[int, int]]:
        """As ``committed``, from this replica's state, without asking whether it leads."""
        offsets = self._replica.state.group_offsets.get(group, {})
        wanted = list(offsets) if topics is None else topics
        return {topic: dict(offsets.get(topic, {})) for topic in wanted}

    def places(self, group: str, topics: Sequence[str]) -> Reply:
        """``("ok", HeldPlaces)``: as ``committed``, with those that open transactions hold; leader only."""

        def read(_: StateMachine) -> HeldPlaces:
            held = self._replica.state.held.holders.get(group, {})
            by_topic = {topic: list(held[topic]) for topic in topics if topic in held}
            return HeldPlaces(self.group_offsets(group, topics), by_topic)

        return self._running.confirmed(read, in_loop=True)

    def attempts(self, group: str, messages: Sequence[tuple[str, int, int]]) -> Reply:
        """``("ok", [number, ...])``: how often the message at each of these addresses (topic, partition, next
        offset) of a consumer group has failed; leader only."""

        def read(state: StateMachine) -> list[int]:
            return [state.attempts.at(group, *message) for message in messages]

        return self._running.confirmed(read, in_loop=True)

    def has_failed(self, group: str, topic: str, partition: int) -> bool:
        """Whether failed attempts are noted for the group's committed offset in the partition."""
        return (group, topic, partition) in self._replica.state.attempts

    def group_names(self) -> list[str]:
        """Groups that have committed offsets or settings."""
        state = self._replica.state
        return list({**state.group_offsets, **state.shares.groups})

    def group_settings(self, group: str) -> GroupSettings | None:
        """Those of the group; None: none were ever set. From this replica's state, as ``group_offsets``."""
        found = self._replica.state.shares.groups.get(group)
        return None if found is None else found.settings


def _named(state: StateMachine, names: Sequence[str]) -> list[TopicInfo]:
    known = state.topics.topics
    return [topic.info for name in names if (topic := known.get(name)) is not None]
