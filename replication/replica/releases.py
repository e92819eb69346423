"""What a leader decides about delayed messages: which are due, and which are still there to be cancelled.

A release moves the cursor to the key of the last message in it. Whatever is at or before the cursor is never
looked at again, so

- one release is under way at a time: the next one begins where it ends;
- none goes as far as the earliest time of any message in an entry that is proposed and not applied: the store
  does not have that message yet, and the cursor would pass it;
- one that is about to be cancelled is left out: its CANCEL stands before the release in the log.

What a lost leadership leaves behind is forgotten: the next leader has applied everything in its log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from escrowmq.replication.format import timer_ops as build
from escrowmq.replication.metrics import LATENCY_S, Histogram
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.open_tx import OpenTx
from escrowmq.replication.state.timers import due_ms, records_of
from escrowmq.replication.state.topics import Partition, is_another
from escrowmq.replication.timers.record import (
    KEY_BYTES,
    LOCATION,
    RECORD,
    deliver_ms_of,
    key_of,
    last_key,
    log_index_of,
)

# ------------------------------------------------------------------------------------------------------------
# Bodies of waiting messages that somebody reads from the log before the leader's thread needs them.
#
# A message that has waited long lies in an older segment and is copied when it is released, or carried. To
# read it from a disk can take ten milliseconds, and a release holds a thousand: in the thread that sends
# heartbeats that would cost the leadership. So the leader takes only what is in memory, and asks for the
# rest. Who reads is passed in (``host/body_prefetcher.py``); without anybody, bodies are read where they are
# needed.

#: When the leader looks again for bodies that it has asked for.
AGAIN_MS = 5


class LogReader(Protocol):
    """What admission needs from the journal."""

    @property
    def last_index(self) -> int: ...
    def segment_start(self, index: int) -> int: ...
    def read_range(self, index: int, pos: int, size: int) -> bytes: ...


class PrefetchedBodies(Protocol):
    """Whoever reads. All of it returns at once."""

    def has(self, index: int, pos: int) -> bool:
        """Whether that body was read, or could not be: then its error is met where it is needed."""

    def get(self, index: int, pos: int, size: int) -> bytes | None:
        """That part of an entry, if it is in memory."""

    def want(self, who: str, records: Sequence[bytes]) -> None:
        """Read the bodies of these next, and keep them; what the same one wanted before is not needed any
        more. Bounded by the caller."""

    def wake(self) -> None:
        """Some are released: there is room for others."""


class NobodyReads:
    """Bodies are read where they are needed: in one thread there is nobody else."""

    def has(self, index: int, pos: int) -> bool:
        return True

    def get(self, index: int, pos: int, size: int) -> bytes | None:
        return None

    def want(self, who: str, records: Sequence[bytes]) -> None: ...

    def wake(self) -> None: ...


class LogBehindBodies:
    """Reads what is in memory from there, everything else from the log."""

    def __init__(self, log: LogReader, bodies: PrefetchedBodies) -> None:
        self._log, self._bodies = log, bodies

    @property
    def last_index(self) -> int:
        return self._log.last_index

    def segment_start(self, index: int) -> int:
        return self._log.segment_start(index)

    def read_range(self, index: int, pos: int, size: int) -> bytes:
        found = self._bodies.get(index, pos, size)
        return self._log.read_range(index, pos, size) if found is None else found


def needed(records: Iterable[bytes], segment: int, copied: int) -> list[bytes]:
    """Those whose bodies must be read. ``segment``: later entries are referred to, or were written just now;
    ``copied``: larger bodies are referred to, too."""
    found = []
    for record in records:
        index, _, size = LOCATION.unpack_from(record, KEY_BYTES)
        if index < segment and size <= copied:
            found.append(record)
    return found


def is_lacking(record: bytes, bodies: PrefetchedBodies) -> bool:
    """Whether its body is still to be read."""
    index, pos, _ = LOCATION.unpack_from(record, KEY_BYTES)
    return not bodies.has(index, pos)


# ------------------------------------------------------------------ pace
# How many delayed messages a leader releases at a time, so that clients' requests need not wait for them.
#
# An entry with a release of a thousand messages takes 10 ms and more. A million of them, due in one second,
# once left clients an eighth of their commits. So while requests come, releases get a share of the time: a
# number for each millisecond, in entries that are written anyway.


#: Messages of one release, if nothing else waits and if something does: some 15 ms of the leader's thread.
RELEASED_MAX, RELEASED_BESIDE = 1_024, 512
#: Beside requests: so many for each ms since the last release, a tenth of the leader's thread; four tenths if
#: each of them must be copied from a place of its own in older segments.
PER_MS = 24
#: Requests count for so long after they came: those of clients that wait for their answers come again.
REQUESTS_MS = 50
#: Fewer get no entry of their own while requests are expected: an entry costs its syncs, whatever is in it.
ALONE_MIN = 4 * PER_MS


class ReleasePace:
    """Of one leader. All times are those of entries."""

    def __init__(self) -> None:
        #: When an entry with requests was written last, perhaps while a release was under way.
        self.requests_ms = -1 << 62
        self._released_ms = -1 << 62
        self._full = False

    def room(self, now_ms: int, beside: bool) -> int:
        """So many messages may be released now; 0: none before the next ms. ``beside``: requests wait."""
        if not beside and now_ms - self.requests_ms >= REQUESTS_MS:
            return RELEASED_MAX
        if not self._full:
            return RELEASED_BESIDE
        room = min((now_ms - self._released_ms) * PER_MS, RELEASED_BESIDE)
        return room if beside or room >= ALONE_MIN else 0

    def released(self, now_ms: int, full: bool) -> None:
        """A release is written. ``full``: more is due than there was room for."""
        self._released_ms, self._full = now_ms, full


# ------------------------------------------------------------------ releases


#: When a refused release is composed again: the log takes no entry now.
PAUSE_MS = 50
#: After every time.
NEVER = 1 << 63
#: Who wants bodies, here.
WHO = "release"


@dataclass(slots=True)
class Timing:
    """What an entry does to delayed messages. ``earliest_ms``: the first time of those that it brings."""

    earliest_ms: int = NEVER
    released: bytes = b""
    released_count: int = 0
    cancelling: list[bytes] = field(default_factory=list)
    carried: int = 0  # messages
    carried_bytes: int = 0
    #: Answers to CANCELs: the results of their operations are replaced by these.
    answers: list[tuple[Any, int, list[Any]]] = field(default_factory=list)


class Releases:
    """The delayed messages of one leader. Used in its thread."""

    def __init__(self, state: StateMachine, timers_max: int, bodies: PrefetchedBodies) -> None:
        """``timers_max``: so many may wait. ``bodies``: whoever reads those that are to be copied."""
        self._bodies, self._waiting = bodies, False  # whether some are being read for this
        self._state, self._timers, self.timers_max = state, state.timers, timers_max
        self.pace = ReleasePace()
        self._releasing = b""  # the key of the release under way
        self._full = False  # there was no room for all that was due
        self._cancelling: Counter[bytes] = Counter()
        self._coming: Counter[int] = Counter()  # earliest times of entries under way
        #: Nothing waits up to this key: all of it is cancelled. What is still to be applied is due later.
        self._cancelled_to = b""
        #: Nothing is due before this time; early rather than late.
        self.next_ms = 0
        #: Messages that became readable, that were cancelled, and how late their releases were composed: of
        #: this process, as leader.
        self.released = self.cancelled = 0
        self.lateness_s = Histogram(LATENCY_S)

    def forget(self) -> None:
        """Leadership is lost."""
        self._releasing = self._cancelled_to = b""
        self.next_ms, self._waiting = 0, False
        self.pace = ReleasePace()
        self._cancelling.clear()
        self._coming.clear()

    @property
    def releasing(self) -> bytes:
        """The key of the release under way; empty: there is none."""
        return self._releasing

    def is_cancelling(self, key: bytes) -> bool:
        """Whether a cancellation of this key is under way."""
        return key in self._cancelling

    def is_full(self) -> bool:
        """Whether no more messages may wait."""
        return self._timers.counts.total >= self.timers_max

    # -------------------------------------------------------------- what becomes due

    def due(self, now_ms: int, *, beside: bool, copied: int, segment: int) -> list[bytes]:
        """The records to release now, in order. ``beside``: requests wait, too. At most ``copied`` bytes of
        them are in entries before ``segment``, or only one message."""
        if self._releasing or now_ms < self.next_ms:
            return []
        if not (most := self.pace.room(now_ms, beside)):
            self.next_ms = now_ms + 1
            return []
        until = min(now_ms, min(self._coming, default=NEVER) - 1)
        timers = self._timers
        found, reached = timers.store.due(max(timers.released, self._cancelled_to), until, most)
        self._full = reached < last_key(until)
        if not found:
            # Entries of the same millisecond may still bring messages of that millisecond.
            self._cancelled_to = min(reached, last_key(max(until - 1, 0)))
            if until == now_ms and reached > timers.released:  # otherwise it is to be called again
                self.next_ms = self._next_after(reached)
            return []
        if self._cancelling:
            found = [record for record in found if record[:KEY_BYTES] not in self._cancelling]
        return self._in_memory(_fitting(found, copied, segment), copied, segment, now_ms)

    def _in_memory(self, records: list[bytes], copied: int, segment: int, now_ms: int) -> list[bytes]:
        """As many as can be written without a look at a disk; see ``PrefetchedBodies``."""
        wanted = needed(records, segment, copied)
        lacking = next((record for record in wanted if is_lacking(record, self._bodies)), None)
        if lacking is None:
            self._waiting = False
            return records
        self._bodies.want(WHO, wanted)
        self._full = True
        begin = before(records, lacking) if self._waiting else 0
        self._waiting = not begin  # not for every single one that was read meanwhile
        if not begin:
            self.next_ms = now_ms + AGAIN_MS
        return records[:begin]

    def _next_after(self, key: bytes) -> int:
        next_ms = self._timers.store.next_ms(key)
        return NEVER if next_ms is None else next_ms

    def wake_ms(self) -> int | None:
        """When ``due`` should be asked next, if nothing happens until then; None: not before."""
        return None if self._releasing or self.next_ms == NEVER else self.next_ms

    def written(self, records: Sequence[bytes], references: int, now_ms: int) -> tuple[bytes, Timing]:
        """The RELEASE of these, behind so many references, in an entry of that time."""
        key = records[-1][:KEY_BYTES]
        self._releasing = key
        self.pace.released(now_ms, self._full)
        for record in records:
            self.lateness_s.observe((now_ms - deliver_ms_of(record)) / 1000)
        return build.release(key, references, self._timers.counts.of(records)), Timing(
            released=key, released_count=len(records)
        )

    def count(self, timing: Timing) -> None:
        """The entry is applied, at this leader."""
        if timing.released_count:
            self._bodies.wake()
        self.released += timing.released_count
        self.cancelled += len(timing.cancelling)

    # -------------------------------------------------------------- what is scheduled

    def earliest_of(self, times: Iterable[int], now_ms: int) -> int:
        """The first of these, in an entry of that time."""
        return min([due_ms(time_ms, now_ms) for time_ms in times])

    def coming(self, timing: Timing, earliest_ms: int) -> None:
        """The entry brings messages; the first of them is due at that time."""
        if timing.earliest_ms != NEVER:
            self._not_coming(timing.earliest_ms)
        timing.earliest_ms = min(timing.earliest_ms, earliest_ms)
        self._coming[timing.earliest_ms] += 1

    def records(self, app: str, tx_id: str, record: OpenTx, now_ms: int) -> list[bytes]:
        """What the commit of a transaction makes effective."""
        return list(records_of(record.timers, build.owner_of(app, tx_id), now_ms))

    # -------------------------------------------------------------- what is cancelled

    def cancel(
        self, meta: build.Cancel, deleting: Counter[Any], timing: Timing
    ) -> tuple[bytes | None, list[Any]]:
        """A client's CANCEL: the operation to be written, if any, and the answer to it."""
        partition = self._state.topics.find(meta.topic, meta.partition)
        if not isinstance(partition, Partition) or partition.slot in deleting:
            code = ResultCode.UNKNOWN_TOPIC if isinstance(partition, Partition) else partition
            return None, [int(code)]
        if is_another(partition.topic_id, meta.topic_id):
            return None, [int(ResultCode.OTHER_TOPIC), partition.topic_id]
        it = iter(meta.keys)
        keys: dict[bytes, list[bytes]] = {}
        problems: list[list[Any]] = []
        for i, (time_ms, owner, ordinal) in enumerate(zip(it, it, it, strict=True)):
            key = key_of(time_ms, partition.slot, owner, ordinal)
            if key in self._cancelling or key in keys:
                continue  # answered once that is applied
            found = self._timers.store.find(key)
            if found.living and key > max(self._timers.released, self._releasing):
                if found.cancelled and self._is_prepared_again(owner, found.living):
                    problems.append([i, int(ResultCode.RETRY), None])
                else:
                    keys[key] = found.living
            elif not self._timers.cancelled.get(key) and (
                found.living or not found.cancelled or key <= self._timers.released
            ):
                # (Of what is released, the store may have forgotten the tombstone before the record; and the
                # id may have been used again since, for a message that was read at once.)
                problems.append([i, int(ResultCode.UNKNOWN_TIMER), None])
        answer = [int(ResultCode.PARTIAL), problems] if problems else [int(ResultCode.OK)]
        if not keys:
            return None, answer
        self._cancelling.update(keys.keys())
        timing.cancelling += keys
        return self._cancelled(keys), answer

    def _cancelled(self, keys: Mapping[bytes, list[bytes]]) -> bytes:
        """The CANCELLED of these keys, with all records of each."""
        counts = self._timers.counts.of(record for records in keys.values() for record in records)
        joined, copies = b"".join(keys), list(map(len, keys.values()))
        newest = [max(map(log_index_of, records)) for records in keys.values()]
        return build.cancelled(joined, copies, counts, newest)

    def _is_prepared_again(self, owner: int, records: Sequence[bytes]) -> bool:
        """Whether an open transaction of this owner lies below one of the records: these were carried while
        it was open, and a tombstone for them would kill what it has scheduled under the same key. That is
        rare, and over when the transaction is decided."""
        newest, transactions = max(map(log_index_of, records)), self._state.transactions
        oldest = transactions.oldest_index()
        return (
            oldest is not None
            and oldest < newest
            and any(
                bool(record.timers) and record.log_index < newest and build.owner_of(app, tx_id) == owner
                for app, tx_id, record in transactions.iterate_open()
            )
        )

    # -------------------------------------------------------------- what became of it

    def ended(self, timing: Timing) -> None:
        """An entry is applied, or certainly in no log."""
        if timing.released and timing.released == self._releasing:
            self._releasing = b""
        self._cancelling -= Counter(timing.cancelling)
        if timing.earliest_ms != NEVER:
            self._not_coming(timing.earliest_ms)
        self.next_ms = self._next_after(self._timers.released)

    def pause(self, now_ms: int) -> None:
        """The log takes no entry now."""
        self.next_ms = now_ms + PAUSE_MS

    def _not_coming(self, earliest_ms: int) -> None:
        self._coming[earliest_ms] -= 1
        if not self._coming[earliest_ms]:
            del self._coming[earliest_ms]


def _fitting(records: list[bytes], copied: int, segment: int) -> list[bytes]:
    """As many as can be copied where they must be, at least one. All copies of a key stay together, since
    the cursor passes all of them; what of these is too much is referred to."""
    before = b""
    for at, record in enumerate(records):
        *_, index, _, size = RECORD.unpack(record)
        key = record[:KEY_BYTES]
        if index < segment:
            copied -= size
        if copied < 0 and at and key != before:
            return records[:at]
        before = key
    return records


def before(records: Sequence[bytes], record: bytes) -> int:
    """How many come before it, and have other keys: all copies of a key go together."""
    key = record[:KEY_BYTES]
    return next(at for at, one in enumerate(records) if one[:KEY_BYTES] == key)


def references_of(records: Iterable[bytes]) -> Iterable[tuple[int, int, int, int, int]]:
    """Slot, log index, position, bytes and messages of each."""
    for record in records:
        _, slot, _, _, index, pos, size = RECORD.unpack(record)
        yield slot, index, pos, size, 1
