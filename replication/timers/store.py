"""All waiting messages of a broker group, as one replica has them: young ones in memory, older ones in files.

The thread that applies entries adds records and moves the cursor. A leader reads what is due; other threads
look keys up. Writing and merging files happens in jobs, whose results the applying thread puts in place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from escrowmq.replication.timers.record import (
    FIRST_KEY,
    KEY_BYTES,
    RECORD_BYTES,
    deliver_ms_of,
    is_tombstone,
    last_key,
    living,
    settled,
    split,
)
from escrowmq.replication.timers.runs import Chunk, Run, behind, in_order, living_after, records_of
from escrowmq.replication.timers.sealed_file import SealedFile

# ------------------------------------------------------------------------------------------------------------
# Records since the last checkpoint, in memory: unsorted, by the second, minute or hour of their delivery.
#
# Every replica adds them, so adding is cheap; only what a leader is about to read is sorted, a chunk at a
# time.

#: Widths of buckets in ms, and from how long before its delivery a record goes into a wider one. So a million
#: timers of ten years need few buckets, and those of the next minutes are in order soon.
WIDTHS: Final = (1_000, 60_000, 3_600_000)
WIDER_FROM_MS: Final = (120_000, 7_200_000)
#: Records that are sorted in one piece: about a millisecond, during which no other thread runs.
CHUNK: Final = 4_096
_TIMES: Final = Struct(f">Q{RECORD_BYTES - 8}x")
_CHUNK_BYTES: Final = CHUNK * RECORD_BYTES


class Bucket:
    """Records of one stretch of time."""

    __slots__ = ("chunks", "parts")

    def __init__(self) -> None:
        self.parts: list[bytearray] = []  # not sorted; up to CHUNK records each
        self.chunks: list[Run] = []  # sorted

    def add(self, records: memoryview) -> None:
        while records:
            if not self.parts or len(self.parts[-1]) == _CHUNK_BYTES:
                self.parts.append(bytearray())
            part = self.parts[-1]
            fits = _CHUNK_BYTES - len(part)
            part += records[:fits]
            records = records[fits:]

    def sort_one(self) -> None:
        """Sort one part. Small chunks are joined, so that there are few."""
        records = split(self.parts.pop())
        while self.chunks and len(self.chunks[-1]) <= len(records) <= CHUNK // 2:
            records += self.chunks.pop().rows(0, CHUNK)
        records.sort()
        self.chunks.append(Chunk(records))

    def of(self, key: bytes) -> list[bytes]:
        """All records of a key. Have all but the last part sorted before: a short one is faster searched."""
        found = [record for chunk in self.chunks for record in records_of(chunk, key)]
        for part in self.parts:
            at = part.find(key)
            while at >= 0:
                if at % RECORD_BYTES == 0:
                    found.append(bytes(part[at : at + RECORD_BYTES]))
                at = part.find(key, at + 1)
        return found


class Young:
    """Not thread-safe: the store holds its lock."""

    def __init__(self) -> None:
        self.records = 0  # so many are in it
        self._buckets: tuple[dict[int, Bucket], ...] = tuple({} for _ in WIDTHS)
        self._numbers: tuple[list[int], ...] = tuple([] for _ in WIDTHS)  # of buckets, in order

    def add(self, records: memoryview, now_ms: int) -> None:
        """``records``: one after the other, in any order."""
        self.records += len(records) // RECORD_BYTES
        begin, low, high, bucket = 0, 0, 0, None
        for row, (ms,) in enumerate(_TIMES.iter_unpack(records)):
            if low <= ms < high:
                continue
            at = row * RECORD_BYTES
            if bucket is not None:
                bucket.add(records[begin:at])
            begin = at
            which = bisect_right(WIDER_FROM_MS, ms - now_ms)
            number, width = ms // WIDTHS[which], WIDTHS[which]
            bucket, low, high = self._bucket(which, number), number * width, (number + 1) * width
        if bucket is not None:
            bucket.add(records[begin:])

    def _bucket(self, which: int, number: int) -> Bucket:
        bucket = self._buckets[which].get(number)
        if bucket is None:
            bucket = self._buckets[which][number] = Bucket()
            insort(self._numbers[which], number)
        return bucket

    def between(self, begin_ms: int, until_ms: int) -> list[Bucket]:
        """Buckets with times from the first one to the second one; both included."""
        found = []
        for buckets, numbers, width in zip(self._buckets, self._numbers, WIDTHS, strict=True):
            low = bisect_left(numbers, begin_ms // width)
            high = bisect_right(numbers, until_ms // width)
            found += [buckets[number] for number in numbers[low:high]]
        return found

    def next_ms(self, after: bytes) -> int | None:
        """The earliest delivery after a key, or an earlier time, at which there is something to sort."""
        found: int | None = None
        after_ms = deliver_ms_of(after)
        for buckets, numbers, width in zip(self._buckets, self._numbers, WIDTHS, strict=True):
            for number in numbers[bisect_left(numbers, after_ms // width) :]:
                ms = _next_in(buckets[number], after, max(number * width, after_ms))
                if ms is not None:
                    found = ms if found is None else min(found, ms)
                    break
        return found

    def forget_before(self, ms: int) -> None:
        """Forget buckets that end at or before this time. Costs what is forgotten."""
        for buckets, numbers, width in zip(self._buckets, self._numbers, WIDTHS, strict=True):
            while numbers and (numbers[0] + 1) * width <= ms:
                bucket = buckets.pop(numbers.pop(0))
                self.records -= sum(map(len, bucket.parts)) // RECORD_BYTES + sum(map(len, bucket.chunks))

    def hours(self) -> set[int]:
        """Numbers of the hours in which it has records."""
        widest = WIDTHS[-1]
        pairs = zip(self._numbers, WIDTHS, strict=True)
        return {number * width // widest for numbers, width in pairs for number in numbers}


def records_in_order(
    generations: Sequence[Young], after: bytes, lock: Lock, rest: Callable[[], None] = lambda: None
) -> Iterator[list[bytes]]:
    """All records of keys higher than ``after``, in lists of ``CHUNK`` or so. Nothing may be added any more,
    but another thread may sort, with ``lock``. ``rest()`` is called in between."""
    widest = WIDTHS[-1]
    for hour in sorted(set().union(*(young.hours() for young in generations))):
        runs: list[Run] = []
        for young in generations:
            for bucket in young.between(hour * widest, (hour + 1) * widest - 1):
                with lock:
                    runs += bucket.chunks
                    parts = tuple(bucket.parts)
                for part in parts:
                    runs.append(Chunk(sorted(split(part))))
                    rest()
        for records in in_order(runs, after, CHUNK):
            yield records
            rest()


def _next_in(bucket: Bucket, after: bytes, begin_ms: int) -> int | None:
    if bucket.parts:
        return begin_ms
    firsts = [record for run in bucket.chunks for record in run.rows(run.row_at(behind(after)), 1)]
    return deliver_ms_of(min(firsts)) if firsts else None


#: Records in memory at which a checkpoint is due: 40 MB.
YOUNG_MAX: Final = 1_000_000
#: Records that one call sorts before it reads: 15 ms.
SORTED_PER_CALL: Final = 10 * CHUNK
#: Behind every key.
NO_KEY: Final = b"\xff" * (KEY_BYTES + 1)
#: How often one call reads on if all that it has read is cancelled: 30 ms, for 60,000 messages.
LOOKS_PER_CALL: Final = 64


class Found(NamedTuple):
    """What is stored under one key."""

    living: list[bytes]  # records; one, or several if the same key was given several times
    cancelled: bool  # there is a tombstone


class Frozen(NamedTuple):
    """The store at one moment, for a checkpoint."""

    cursor: bytes
    files: list[SealedFile]
    young: list[Young]  # what is not in these files


class TimerStore:
    """The records of one broker group. What it holds follows from the log alone; how it is split into memory
    and files does not, and no answer depends on it."""

    def __init__(self, looks_per_call: int = LOOKS_PER_CALL) -> None:
        self._looks_per_call = looks_per_call
        self.cursor = FIRST_KEY  # all keys up to this one are released
        self._lock = Lock()  # held by whoever sorts or reads the lists below, for some ms at most
        self._young = Young()
        self._sealing: list[Young] = []  # of checkpoints that are not written yet
        self._files: list[SealedFile] = []
        self._passed_at = NO_KEY  # the lowest last key of a file
        #: Files that are no longer read. To forget the last reference to a large one takes the kernel long.
        self.retired: list[SealedFile] = []

    # -------------------------------------------------------------- the applying thread

    #: Records in memory since the last checkpoint began, also those released since: see ``YOUNG_MAX``. (Read
    #: for each applied entry, hence no call.)
    young = property(attrgetter("_young.records"))

    def add(self, records: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Add records and tombstones, one after the other, in any order. All keys must be higher than the
        cursor. ``now_ms``: time of the entry."""
        with self._lock:
            self._young.add(memoryview(records), now_ms)

    def release(self, cursor: bytes) -> None:
        """Everything up to this key is released, and is forgotten. Reads nothing."""
        self.cursor = cursor
        with self._lock:
            self._young.forget_before(deliver_ms_of(cursor))
            if cursor >= self._passed_at:
                self._set_files(self._files)

    def freeze(self) -> Frozen:
        """A checkpoint begins: what is to be written by it, and is read from memory until then."""
        with self._lock:
            if self._young.records:
                self._sealing.append(self._young)
                self._young = Young()
            return Frozen(self.cursor, self._files.copy(), self._sealing.copy())

    def sealed(self, frozen: Frozen, file: SealedFile | None) -> None:
        """The checkpoint is written: this file has all that was in memory; None: nothing was left of it."""
        with self._lock:
            self._sealing = [young for young in self._sealing if young not in frozen.young]
            self._set_files([*self._files, file] if file else self._files)

    def merged(self, files: Sequence[SealedFile], into: SealedFile | None) -> None:
        """One file has what is left of these; None: nothing is."""
        with self._lock:
            self.retired += [file for file in self._files if file in files]
            left = [file for file in self._files if file not in files]
            self._set_files([*left, into] if into else left)

    def restore(self, files: Sequence[SealedFile]) -> None:
        """The files of the snapshot that this store begins with."""
        with self._lock:
            self._set_files([*files])

    @property
    def files(self) -> list[SealedFile]:
        """The files that are read."""
        with self._lock:
            return self._files.copy()

    # -------------------------------------------------------------- any thread

    def to_write(self, frozen: Frozen, rest: Callable[[], None] = lambda: None) -> Iterator[list[bytes]]:
        """All that is in memory for this checkpoint and not yet released at it, in order."""
        for records in records_in_order(frozen.young, frozen.cursor, self._lock, rest):
            yield settled(records)

    def next_ms(self, after: bytes) -> int | None:
        """The time of the next delivery after a key; None: there is none. It may be too early, when records
        are not in order yet or cancelled: ``due`` with this time puts them in order."""
        with self._lock:
            files = self._files.copy()
            times = [ms for young in self._generations() if (ms := young.next_ms(after)) is not None]
        for run in files:
            times += map(deliver_ms_of, run.rows(run.row_at(behind(after)), 1))
        return min(times, default=None)

    def due(self, after: bytes, until_ms: int, limit: int) -> tuple[list[bytes], bytes]:
        """``(records, reached)``: living records of keys higher than ``after`` that are delivered by
        ``until_ms``, in order, at most ``limit`` (but all copies of a key); and the key up to which nothing
        else lives: ``last_key(until_ms)`` if these are all.

        One call does a bounded amount of work: with much to put in order it returns nothing and ``after``;
        call again. A leader should call ``arrange`` some seconds ahead. And behind very many cancelled ones
        it returns nothing and a key that is less than ``last_key(until_ms)``: begin there the next time.
        Raises CorruptLog.
        """
        runs = self._in_order(after, until_ms, SORTED_PER_CALL)
        if runs is None:
            return [], after
        reached = last_key(until_ms)
        for _ in range(self._looks_per_call):
            found, position = living_after(runs, after, behind(reached), limit)
            if found or position is None:
                return found, reached if position is None else position
            after = position
        return [], after

    def arrange(self, after: bytes, until_ms: int, records: int = CHUNK) -> bool:
        """Put about ``records`` more in order of those that are delivered after a key, until a time; returns
        whether all are."""
        return self._in_order(after, until_ms, records) is not None

    def find(self, key: bytes) -> Found:
        """What is stored under a key, released or not. Raises CorruptLog."""
        ms = deliver_ms_of(key)
        found: list[bytes] = []
        while True:
            with self._lock:
                buckets = self._buckets(ms, ms)
                unsorted = next((bucket for bucket in buckets if len(bucket.parts) > 1), None)
                if unsorted is None:
                    files = self._files.copy()
                    for bucket in buckets:
                        found += bucket.of(key)
                    break
                unsorted.sort_one()
        for run in files:
            found += records_of(run, key)
        found.sort()
        return Found(living(found), any(map(is_tombstone, found)))

    def listed(self, after: bytes, until_ms: int, limit: int) -> tuple[list[bytes], bytes]:
        """As ``due``, for whoever lists what waits: it takes the time that it needs."""
        while not self.arrange(after, until_ms):
            pass
        return self.due(after, until_ms, limit)

    # -------------------------------------------------------------- inside

    def _in_order(self, after: bytes, until_ms: int, records: int) -> list[Run] | None:
        """All runs with records of these times; None: more than ``records`` of them are not in order."""
        while True:
            with self._lock:
                buckets = self._buckets(deliver_ms_of(after), until_ms)
                unsorted = [bucket for bucket in buckets if bucket.parts]
                if not unsorted:
                    return [*self._files, *(run for bucket in buckets for run in bucket.chunks)]
            # Listed once for all of them: thousands of buckets may begin and end in these times.
            for bucket in unsorted:
                while True:
                    with self._lock:
                        if not bucket.parts:
                            break
                        if records <= 0:
                            return None
                        bucket.sort_one()
                    records -= CHUNK

    def _set_files(self, files: list[SealedFile]) -> None:
        self.retired += [file for file in files if file.last_key <= self.cursor]
        self._files = [file for file in files if file.last_key > self.cursor]
        self._passed_at = min((file.last_key for file in self._files), default=NO_KEY)

    def _generations(self) -> list[Young]:
        return [*self._sealing, self._young]

    def _buckets(self, begin_ms: int, until_ms: int) -> list[Bucket]:
        return [bucket for young in self._generations() for bucket in young.between(begin_ms, until_ms)]
