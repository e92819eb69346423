"""Records since the last checkpoint, in memory: unsorted, by the second, minute or hour of their delivery.

Every replica adds them, so adding is cheap; only what a leader is about to read is sorted, a chunk at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from threading import Lock
from typing import Final

from escrowmq.replication.timers.record import RECORD_BYTES, deliver_ms_of, split
from escrowmq.replication.timers.runs import Chunk, Run, behind, in_order, records_of

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
