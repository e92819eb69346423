"""What a leader decides about messages that wait long: which are stored anew, so that old segments can go.

Retention asks, about every ten seconds, what else needs the log. If much older log is kept for messages
that wait alone, a pass begins: the leader reads what waits in the order of delivery, a slice at a time, and
carries what lies before the pass's bound: one entry at a time, so many bytes a second. A pass writes less
than half of what can go afterwards, so the log grows little by it, however long messages wait.

What may never meet in entries under way:

- a release and a carried message: the release ends before the earliest of them (``Releases.coming``);
- a cancellation and a carried message: what is about to be cancelled is left behind, and a cancellation of
  what is under way waits until that is applied (``waits``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from escrowmq.replication.format import ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.timer_ops import Cancel
from escrowmq.replication.format.timer_ops import carry as build_carry
from escrowmq.replication.log.segment import SegmentInfo
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.replica.agenda import AT_ONCE, Duty
from escrowmq.replication.replica.entry_writing import Submission
from escrowmq.replication.replica.releases import PrefetchedBodies, Releases, Timing, is_lacking
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition, Topic
from escrowmq.replication.timers.record import (
    FIRST_KEY,
    KEY_BYTES,
    LOCATION,
    deliver_ms_of,
    key_bytes,
    key_of,
    last_key,
    log_index_of,
    size_of,
    slot_of,
)

#: Messages, and their bytes, of one entry, unless one is larger: some 15 ms of the leader's thread.
CARRIED_MAX, CARRIED_BYTES = 1_024, 256 << 10
#: Bytes that are carried in a second, and the least time that a message costs of it: 16,000 a second.
BYTES_PER_S, MESSAGES_PER_S = 4 << 20, 16_000
#: Records that are read at a time, and how long the leader rests after a slice in which nothing was to be
#: carried: a hundred million are looked through in some 20 minutes, for a tenth of the leader's thread.
SLICE, REST_MS = 4_096, 50
#: Who wants bodies, here.
WHO = "carry"
#: What can be read sooner goes by itself.
AHEAD_MS = 60_000
#: Of times up to the end of one of these, what is in memory is put in order together.
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Pass:
    """``bound``: what lies in earlier entries is carried. ``position``: the key up to which all has been
    read; ``before``: before the last slice."""

    bound: int
    position: bytes = FIRST_KEY
    before: bytes = FIRST_KEY


class Compaction:
    """The passes of one leader. Used in its thread."""

    def __init__(
        self,
        state: StateMachine,
        releases: Releases,
        read: Callable[[int, int, int], bytes],
        bodies: PrefetchedBodies,
        duty: Duty,
        ahead_ms: int = AHEAD_MS,
    ) -> None:
        """``read(log_index, position, size)`` of an entry's bytes, after ``bodies`` has them in memory.
        ``duty``: calls ``write`` if it is due."""
        self._bodies, self._duty = bodies, duty
        self._state, self._releases, self._read, self._ahead_ms = state, releases, read, ahead_ms
        self._pass: _Pass | None = None
        #: Keys of what is being carried.
        self.under_way: frozenset[bytes] = frozenset()
        self._next_ms = 0
        #: Entries that carried messages, these, and their bytes: of this process, as leader.
        self.entries = self.carried = self.carried_bytes = 0
        #: Bytes of the log that were kept for waiting messages alone when retention looked last, as leader.
        self.pinned_bytes = 0

    def forget(self) -> None:
        """Leadership is lost."""
        self._pass, self.under_way, self._next_ms, self.pinned_bytes = None, frozenset(), 0, 0

    # -------------------------------------------------------------- passes

    def plan(self, needed: int, segments: Sequence[SegmentInfo]) -> None:
        """Begin a pass, if it is worth it and none is under way. ``needed``: the first entry that anything
        but waiting messages needs. ``segments``: of the log."""
        counts = self._state.timers.counts
        waiting = counts.oldest_index()
        self.pinned_bytes = 0 if waiting is None else pinned(segments, waiting, needed)
        if counts.total and self._pass is None:
            bound = worth_carrying(segments, counts.sizes(), counts.block_entries, needed)
            if bound is not None:
                self.begin(bound)

    def begin(self, bound: int) -> None:
        """Carry what lies before entry ``bound``. No transaction that is open now may lie before it: what it
        schedules may have the key of an older message."""
        if self._pass is None:
            self._pass = _Pass(bound)
            self._duty.due = AT_ONCE

    is_active = property(attrgetter("_pass"), doc="Of a true value while a pass is under way. (No call.)")

    def is_due(self, now_ms: int) -> bool:
        """Whether ``write`` may have something to carry."""
        return self._pass is not None and not self.under_way and now_ms >= self._next_ms

    def wake_ms(self) -> int | None:
        """When ``is_due`` should be asked next, if nothing happens until then; None: not before."""
        return None if self._pass is None or self.under_way else self._next_ms

    def write(
        self, now_ms: int, deleting: Container[int | Topic], timing: Callable[[], Timing]
    ) -> bytes | None:
        """The CARRY of the next messages, or None. One call reads one slice. ``deleting``: slots of topics
        that are about to be deleted; ``timing``: of the entry. Raises CorruptLog."""
        look = self._pass
        assert look is not None
        timers = self._state.timers
        near = last_key(now_ms + self._ahead_ms)
        after = max(look.position, timers.released, self._releases.releasing, near)
        begin_ms = timers.store.next_ms(after)
        if begin_ms is None:
            self._pass = None
            return None
        end_ms = (begin_ms // _HOUR_MS + 1) * _HOUR_MS - 1
        look.before = after
        found, look.position = timers.store.due(after, end_ms, SLICE)
        chosen = self._chosen(found, look, deleting)
        self._next_ms = now_ms + REST_MS
        if not chosen:
            return None
        if any(is_lacking(record, self._bodies) for record in chosen):
            self._bodies.want(WHO, chosen)
            look.position = look.before
            return None
        self._bodies.want(WHO, ())
        rows = [self._read(*LOCATION.unpack_from(record, KEY_BYTES)) for record in chosen]
        self.under_way = frozenset(map(key_bytes, chosen))
        brings = timing()
        brings.carried = len(chosen)
        self._releases.coming(brings, deliver_ms_of(chosen[0]))
        size = brings.carried_bytes = sum(map(len, rows))
        self._next_ms = now_ms + max(size * 1000 // BYTES_PER_S, len(chosen) * 1000 // MESSAGES_PER_S)
        return build_carry(b"".join(chosen), rows)

    def _chosen(self, found: Sequence[bytes], look: _Pass, deleting: Container[int | Topic]) -> list[bytes]:
        """What of these is carried now: all copies of a key or none. The rest is for the next slice."""
        slots, chosen, size = self._state.topics.slots, list[bytes](), 0
        old = {key_bytes(record) for record in found if log_index_of(record) < look.bound}
        before = b""
        for record in found if old else ():
            key = key_bytes(record)
            if key not in old or self._releases.is_cancelling(key):
                continue
            if (slot := slot_of(key)) not in slots or slot in deleting:
                continue
            size += size_of(record)
            if key != before and chosen and (size > CARRIED_BYTES or len(chosen) >= CARRIED_MAX):
                look.position = before
                break
            chosen.append(record)
            before = key
        return chosen

    # -------------------------------------------------------------- beside other operations

    def waits(self, submission: Submission) -> bool:
        """Whether a request cancels what is just being carried: it has to wait until that is applied."""
        return bool(self.under_way) and any(
            key in self.under_way
            for unit in submission.units
            if unit.ops[0].type == OpType.CANCEL
            for key in self._keys(unit.ops[0].meta)
        )

    def _keys(self, meta: Cancel) -> list[bytes]:
        partition = self._state.topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition):
            return []
        it, slot = iter(meta.keys), partition.slot
        return [key_of(time_ms, slot, owner, n) for time_ms, owner, n in zip(it, it, it, strict=True)]

    def ended(self, timing: Timing) -> None:
        """An entry is applied, or certainly in no log."""
        if timing.carried:
            self.under_way = frozenset()

    def count(self, timing: Timing) -> None:
        """The entry is applied, at this leader."""
        if timing.carried:
            self.entries += 1
            self.carried += timing.carried
            self.carried_bytes += timing.carried_bytes

    def again(self, now_ms: int) -> None:
        """The entry is in no log, and the log takes none now: what it carried is to be read again."""
        if self._pass is not None:
            self._pass.position, self._next_ms = self._pass.before, now_ms + REST_MS


def pinned(segments: Sequence[SegmentInfo], waiting: int, needed: int) -> int:
    """Bytes of the segments that would go if no message waited. ``waiting``: the first entry with one that
    does; ``needed``: the first one that anything else needs."""
    return sum(
        segment.size
        for segment, following in pairwise(segments)
        if segment.sealed and waiting < following.first <= needed
    )


def worth_carrying(
    segments: Sequence[SegmentInfo], sizes: Sequence[tuple[int, int]], block_entries: int, needed: int
) -> int | None:
    """The highest end of a block such that waiting messages are less than half of the segments that can go
    once what waits before it is carried; None: there is none.

    ``sizes``: first entry and waiting bytes of each block of so many entries in which any wait. ``needed``:
    the bound is no higher.
    """
    found: int | None = None
    log_bytes = waiting = at = 0
    for segment, following in pairwise(segments):
        bound = -(-following.first // block_entries) * block_entries
        log_bytes += segment.size
        if not segment.sealed or bound > needed:
            break
        while at < len(sizes) and sizes[at][0] < following.first:
            waiting += sizes[at][1]
            at += 1
        if at and 2 * waiting < log_bytes:
            found = bound
    return found


# ------------------------------------------------------------------------------------------------------------
# What may be deleted. The leader decides it and writes it into the log, so that all replicas delete alike.
#
# Two steps. TRIM moves the start of partitions by the topic's ``retention_ms`` and ``retention_bytes``.
# RETAIN then names the first log entry that anything still needs: live messages, open transactions,
# messages that wait, the older of the two kept snapshots. Segments entirely before it are dropped.
#
# Both result from one pass over all partitions, made in slices between applied entries, since the same thread
# also sends heartbeats. What is applied meanwhile needs no entry before those that were needed when the
# pass began: it refers to transactions that were open then, or to itself.

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
