"""The calls that a broker answers once its replica runs, without Ray.

The Broker actor (broker.py) adds the life of a process to these calls; the cluster in memory
(cluster/testing) calls them directly. The answers are defined in replication/calling/answers.py and
client/consumer_groups.py. ``concurrency`` names the group of the actor's threads that executes a call.
"""

from __future__ import annotations

import functools
import operator
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.calling.answers import (
    FetchEnds,
    Leadership,
    MembersReport,
    PartitionRanges,
    Reply,
)
from escrowmq.replication.calling.finding_answers import FoundRows
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host.running_replica import NOT_RUNNING
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.replica.fetching import FetchRequest

# ------------------------------------------------------------------------------------------------------------
# Reusable memory for large answers.
#
# An answer of megabytes in fresh memory costs more in page faults than in copying: that was more than half of
# a broker's time per fetched megabyte. Here the memory is kept, and Ray copies it directly into its shared
# memory, beside the pickle and not through it (pickle protocol 5, out of band). Measured for answers of 8
# MiB: 0.26 ms of an actor's processor time per MB this way, 2.5 as ``bytes``.
#
# A buffer is reused only when nothing refers to it any more, so an answer is never overwritten.

#: Answers smaller than this fit into memory that the allocator keeps (glibc maps larger blocks
#: afresh each time).
SHARED_BYTES_MIN = 128 << 10


class AnswerBuffers:
    """At most ``count`` buffers of ``size`` bytes each, allocated when first needed. Thread-safe."""

    def __init__(self, count: int, size: int) -> None:
        assert count >= 1 and size >= SHARED_BYTES_MIN
        self._size, self._left = size, count
        self._free: list[bytearray] = []
        self._lock = threading.Lock()

    def join(self, parts: Iterable[bytes], size: int) -> bytes | memoryview:
        """``parts`` of ``size`` bytes in total, in one of our buffers if one is free and large enough."""
        if not SHARED_BYTES_MIN <= size <= self._size or (buffer := self._take()) is None:
            return b"".join(parts)
        view = memoryview(buffer)[:size]
        weakref.finalize(view, self._free.append, buffer).atexit = False  # append is atomic
        at = 0
        for part in parts:
            view[at : at + len(part)] = part
            at += len(part)
        assert at == size, f"{at} bytes instead of {size}"
        return view

    def _take(self) -> bytearray | None:
        with self._lock:
            if self._free:
                return self._free.pop()
            if not self._left:
                return None
            self._left -= 1
        return bytearray(self._size)


def out_of_band(blob: bytes | memoryview) -> bytes | pickle.PickleBuffer:
    """The form in which to answer, so that Ray takes a large blob's bytes without another copy."""
    return blob if isinstance(blob, bytes) else pickle.PickleBuffer(blob)


# ------------------------------------------------------------------------------------------------------------
# The list of all topics for clients, packed once per change instead of once per client.
#
# Two hundred clients that start together ask for it two hundred times, and packing 10,000 topics takes 50 ms.
# So one thread packs it, in pieces: one call of that length would keep the thread that sends heartbeats
# waiting for the interpreter, and sixteen threads packing the same list would do so for most of a second.

#: Topics in one piece: about 2 ms of work, less than the interpreter's switch interval (5 ms).
PIECE_TOPICS = 400


class PackedTopics:
    """Arrives as a plain list."""

    def __init__(self, topics: Sequence[TopicInfo]) -> None:
        """``topics`` must not change afterwards."""
        self.topics = topics
        self._pieces: list[_Piece] | None = None
        self._packing = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        with self._packing:
            if self._pieces is None:
                starts = range(0, len(self.topics), PIECE_TOPICS)
                self._pieces = [_Piece(list(self.topics[at : at + PIECE_TOPICS])) for at in starts]
        return functools.reduce, (operator.iconcat, self._pieces, [])


class _Piece:
    """Some of the topics; arrives as a plain list too."""

    def __init__(self, topics: list[TopicInfo]) -> None:
        self._packed = pickle.dumps(topics, protocol=5)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._packed,)


class TopicPacker:
    """Keeps the last list that was packed. Thread-safe."""

    def __init__(self) -> None:
        self._last = PackedTopics(())

    def packed(self, topics: Sequence[TopicInfo]) -> PackedTopics:
        """``topics``: the same object as long as nothing has changed."""
        last = self._last
        if last.topics is not topics:
            last = self._last = PackedTopics(topics)
        return last


#: Memory for large fetch answers, 32 MiB in total; a fetch that finds none free is answered without it.
FETCH_BUFFERS, FETCH_BUFFER_BYTES = 4, 8 << 20

M = TypeVar("M", bound=Callable[..., Any])


def concurrency(group: str) -> Callable[[M], M]:
    """Marks a method to be executed by the actor's threads of this group, so that parked calls never delay
    others."""

    def mark(method: M) -> M:
        method.concurrency = group  # type: ignore[attr-defined]
        return method

    return mark


def marked(kind: type) -> Iterator[tuple[Callable[..., Any], str]]:
    """The methods that ``concurrency`` has marked, with their groups."""
    for method in vars(kind).values():
        if hasattr(method, "concurrency"):
            yield method, method.concurrency


class BrokerCalls:
    """See the module's text. Thread-safe. ``parts`` is set once the replica runs."""

    def __init__(self) -> None:
        self.parts: Parts | None = None
        self._topic_packer = TopicPacker()
        self._fetch_buffers = AnswerBuffers(FETCH_BUFFERS, FETCH_BUFFER_BYTES)

    def _not_open(self) -> Unavailable:
        """The error as long as there are no parts."""
        return Unavailable("the replica is not open", 1.0)

    def _led(self, ask: Callable[[Parts], Reply]) -> Reply:
        """A call that only a leader serves."""
        parts = self.parts
        return NOT_RUNNING if parts is None else ask(parts)

    def _running(self) -> Parts:
        """For calls that every replica serves. Raises Unavailable until it is open."""
        parts = self.parts
        if parts is None:
            raise self._not_open()
        return parts

    # -------------------------------------------------------------- produce

    @concurrency("produce")
    def submit(self, request: bytes) -> Reply:
        return self._led(lambda parts: parts.requests.submit(request))

    @concurrency("control")
    def client_link(self) -> tuple[str, int, bytes] | None:
        """Where a client may connect for its requests, and the key that it proves there; None: it must use
        ``submit``."""
        parts = self.parts
        return None if parts is None else parts.client_link()

    @concurrency("settle")
    def follow(self, request: bytes) -> Reply:
        """For brokers only: decisions of another group, the home of transactions that have branches here."""
        return self._led(lambda parts: parts.requests.follow(request))

    # -------------------------------------------------------------- fetch

    @concurrency("fetch")
    def fetch(self, requests: Sequence[FetchRequest], max_bytes: int, wait_s: float) -> list[Any]:
        results = self._running().reads.fetch(requests, max_bytes, wait_s, self._fetch_buffers.join)
        return [(*head, out_of_band(blob)) for *head, blob in results]

    @concurrency("fetch")
    def watch(self, requests: Sequence[tuple[str, int, int]], wait_s: float) -> Reply:
        return self._running().watching.watch(requests, wait_s)

    @concurrency("control")
    def spans(self, requests: Sequence[tuple[str, int, int, int, int]]) -> Reply:
        return self._running().watching.spans(requests)

    @concurrency("control")
    def fetch_ends(
        self, topic: str, partition: int, offset: int, until: int, max_bytes: int, count: int
    ) -> FetchEnds:
        return self._running().reads.fetch_ends(topic, partition, offset, until, max_bytes, count)

    # -------------------------------------------------------------- share groups

    @concurrency("share")
    def share_acquire(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        max_records: int,
        max_bytes: int,
        lease_s: float | None,
        wait_s: float,
        call: int = -1,
        received: int = -1,
    ) -> Reply:
        asked = group, member, topics, max_records, max_bytes, lease_s, wait_s
        told = call, received
        answer = self._led(lambda parts: parts.sharing.acquire(*asked, self._fetch_buffers.join, *told))
        if answer[0] != "ok":
            return answer
        status, rows, *rest = answer
        return status, [(*row[:5], out_of_band(row[5]), *row[6:]) for row in rows], *rest

    @concurrency("control")
    def share_extend(
        self, group: str, member: str, ranges: Sequence[PartitionRanges], lease_s: float
    ) -> Reply:
        return self._led(lambda parts: parts.sharing.extend(group, member, ranges, lease_s))

    @concurrency("control")
    def share_release(
        self, group: str, member: str, ranges: Sequence[PartitionRanges], call: int = -1
    ) -> Reply:
        return self._led(lambda parts: parts.sharing.release(group, member, ranges, call))

    # -------------------------------------------------------------- single messages

    @concurrency("control")
    def find(
        self,
        source: tuple[str, int, int],
        what: tuple[int, bytes, str],
        start: int,
        until: int,
        limit: int,
        wait_s: float,
    ) -> FoundRows:
        return self._running().messages.find(source, what, start, until, limit, wait_s)

    @concurrency("control")
    def message_at(self, topic: str, partition: int, topic_id: int, offset: int, origin: bool) -> Reply:
        return self._led(lambda parts: parts.messages.message_at(topic, partition, topic_id, offset, origin))

    @concurrency("control")
    def share_states(self, topic: str, partition: int, offset: int, streams: Sequence[str]) -> Reply:
        return self._led(lambda parts: parts.messages.shares.progress(topic, partition, offset, streams))

    @concurrency("control")
    def group_places(self, topic: str, partition: int) -> Reply:
        return self._led(lambda parts: parts.messages.group_places(topic, partition))

    # -------------------------------------------------------------- feedback

    @concurrency("feedback")
    def due_pairs(self, term: int, seen: int, part: int, parts: int, wait_s: float) -> Reply:
        return self._led(lambda brokers: brokers.due_checks.due_pairs(term, seen, part, parts, wait_s))

    @concurrency("control")
    def lock_pairs(self, wanted: Sequence[tuple[str, str, int]], lease_s: float, owner: str) -> Reply:
        return self._led(lambda parts: parts.due_checks.lock_pairs(wanted, lease_s, owner))

    @concurrency("control")
    def open_pairs(self, apps: Sequence[str], part: int, parts: int) -> Reply:
        return self._led(lambda brokers: brokers.due_checks.open_pairs(apps, part, parts))

    @concurrency("control")
    def release_locks(
        self, app: str, topic: str, tx_ids: Sequence[str], owner: str, waits_ms: Sequence[int] = ()
    ) -> Reply:
        return self._led(lambda parts: parts.due_checks.release_locks(app, topic, tx_ids, owner, waits_ms))

    @concurrency("control")
    def check_again(self, app: str, tx_id: str) -> Reply:
        return self._led(lambda parts: parts.due_checks.check_again(app, tx_id))

    @concurrency("control")
    def tx_states(self, app: str, tx_ids: Sequence[str]) -> Reply:
        return self._led(lambda parts: parts.inspection.tx_states(app, tx_ids))

    # -------------------------------------------------------------- control

    @concurrency("control")
    def offsets(self, requests: Sequence[tuple[str, int, int]], leader: bool = False) -> Any:
        return self._running().reads.offsets(requests, leader)

    @concurrency("control")
    def topics(self, leader: bool | Sequence[str] = False) -> Reply:
        if leader and leader is not True:
            return self._led(lambda parts: parts.reads.topics(leader))
        answer = (
            self._led(lambda parts: parts.reads.topics(leader)) if leader else self._running().reads.topics()
        )
        return ("ok", self._topic_packer.packed(answer[1])) if answer[0] == "ok" else answer

    @concurrency("control")
    def topic_names(self, term: int, version: int) -> Reply:
        return self._led(lambda parts: parts.reads.topic_names(term, version))

    @concurrency("control")
    def partition_bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return self._running().reads.partition_bounds(topic)

    @concurrency("control")
    def committed(self, group: str, topics: Sequence[str] | None = None) -> Reply:
        return self._led(lambda parts: parts.reads.committed(group, topics))

    @concurrency("control")
    def failed_attempts(self, group: str, messages: Sequence[tuple[str, int, int]]) -> Reply:
        return self._led(lambda parts: parts.reads.attempts(group, messages))

    @concurrency("control")
    def held_places(self, group: str, topics: Sequence[str]) -> Reply:
        return self._led(lambda parts: parts.reads.places(group, topics))

    @concurrency("control")
    def transactions(
        self, state: str | None = None, app: str | None = None, topic: str | None = None, limit: int = 1000
    ) -> Reply:
        return self._led(lambda parts: parts.inspection.transactions(state, app, topic, limit))

    @concurrency("control")
    def scheduled(self, topic: str, before_ms: int | None, limit: int, after: bytes = b"") -> Reply:
        return self._led(lambda parts: parts.scheduled.messages(topic, before_ms, limit, after))

    @concurrency("control")
    def share_places(self, group: str) -> Reply:
        return self._led(lambda parts: parts.share_reports.places(group))

    @concurrency("control")
    def share_members(self, group: str) -> Reply:
        return self._led(lambda parts: parts.share_reports.members(group))

    @concurrency("control")
    def share_final(self, group: str, topic: str, partition: int) -> Reply:
        return self._led(lambda parts: parts.share_reports.final(group, topic, partition))

    @concurrency("control")
    def find_transaction(self, tx_id: str, app: str | None = None) -> Reply:
        return self._led(lambda parts: parts.inspection.find_transaction(tx_id, app))

    @concurrency("control")
    def audit(self) -> Reply:
        return self._led(lambda parts: parts.inspection.audit())

    @concurrency("control")
    def whoami(self) -> Leadership:
        parts = self.parts
        return Leadership(False, None, 0) if parts is None else parts.running.whoami()

    # -------------------------------------------------------------- members

    @concurrency("peer")
    def members(self) -> MembersReport:
        """The members of this group according to this replica's log."""
        return self._running().members.members()

    @concurrency("control")
    def change_members(
        self, change_id: str, add: Sequence[int], remove: Sequence[int], version: int
    ) -> Reply:
        """One step of a change; call again with the same id until the answer is DONE. ``version``: the
        version of the members that the caller has seen; with any other version nothing is done."""
        return self._led(lambda parts: parts.members.change(change_id, add, remove, version))

    @concurrency("control")
    def hand_over(self, to: int) -> Reply:
        """Make another voter the leader."""
        return self._led(lambda parts: parts.members.hand_over(to))

    # -------------------------------------------------------------- consumer groups

    @concurrency("control")
    def group_join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        session_timeout_s: float,
        owned: Sequence[tuple[str, int]] = (),
        ids: Mapping[str, int] | None = None,
        generation: int = -1,
    ) -> Reply:
        asked = group, member, topics, session_timeout_s, owned, ids, generation
        return self._led(lambda parts: parts.groups.join(*asked))

    @concurrency("control")
    def group_heartbeat(self, group: str, member: str, generation: int) -> Reply:
        return self._led(lambda parts: parts.groups.heartbeat(group, member, generation))

    @concurrency("control")
    def group_leave(self, group: str, member: str) -> Reply:
        return self._led(lambda parts: parts.groups.leave(group, member))

    @concurrency("settle")
    def commit_offsets(
        self,
        group: str,
        member: str,
        generation: int,
        offsets: Mapping[str, Mapping[int, int]],
        ids: Mapping[str, int] | None = None,
        attempts: Mapping[str, Mapping[int, int]] | None = None,
    ) -> Reply:
        asked = group, member, generation, offsets, ids, attempts
        return self._led(lambda parts: parts.groups.commit(*asked))

    @concurrency("settle")
    def group_delete(self, group: str, seen: Mapping[str, Mapping[int, int]]) -> Reply:
        return self._led(lambda parts: parts.groups.delete(group, seen))

    @concurrency("control")
    def group_list(self) -> Reply:
        return self._led(lambda parts: parts.groups.names())

    @concurrency("control")
    def group_describe(self, group: str) -> Reply:
        return self._led(lambda parts: parts.groups.describe(group))
