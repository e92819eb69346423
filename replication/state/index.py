"""Partition index: dense offset -> place in the log, as runs.

A *run* is a stretch of messages that lie behind each other in one log entry and have consecutive
offsets: a batch of a thousand plain messages is one run, and so are a thousand transactions that
were prepared and committed together. A run costs 48 bytes in columns of unsigned 64-bit integers,
never an object per message. Runs of sealed segments live in memory-mapped files (see runs_file.py);
only those of the segment being written are on the heap.

Offsets are assigned when an entry is applied, so at commit: an open transaction leaves no hole.
One thread appends; any number of threads read.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

#: Columns of a run table: first offset, log index, byte position in the command, bytes, messages,
#: timestamp in ms.
COLUMNS = 6
BASE, INDEX, POS, SIZE, COUNT, TIME = range(COLUMNS)
Columns = tuple[Sequence[int], ...]


class Run(NamedTuple):
    """``messages`` messages from offset ``base``: ``size`` bytes at ``pos`` of log entry ``log_index``."""

    base: int
    log_index: int
    pos: int
    size: int
    messages: int
    time_ms: int


class PartitionIndex:
    """Offsets ``[start, end)`` of one partition. ``end`` is the next offset to be assigned."""

    __slots__ = ("_active", "_lock", "_sealed", "_sealed_bases", "end", "last_time_ms", "start")

    def __init__(self, start: int = 0, end: int = 0, last_time_ms: int = 0) -> None:
        self.start, self.end, self.last_time_ms = start, end, last_time_ms
        self._active: tuple[array[int], ...] = _empty()
        self._sealed: list[Columns] = []
        self._sealed_bases: list[int] = []  # first offset of each sealed table, for bisect
        self._lock = threading.Lock()

    def append(self, index: int, pos: int, size: int, count: int, time_ms: int) -> int:
        """Assign the next ``count`` offsets to messages at a place in the log; returns the first of them."""
        base = self.end
        active = self._active
        with self._lock:
            if (
                active[INDEX]
                and active[INDEX][-1] == index
                and active[POS][-1] + active[SIZE][-1] == pos
                and active[TIME][-1] == time_ms
            ):
                active[SIZE][-1] += size
                active[COUNT][-1] += count
            else:
                for column, value in zip(active, (base, index, pos, size, count, time_ms), strict=True):
                    column.append(value)
            self.last_time_ms = time_ms
            self.end = base + count
        return base

    def runs_from(self, offset: int, limit: int = 256, max_bytes: int | None = None) -> list[Run]:
        """Runs from the one that holds ``offset`` on, in order of offsets: at most ``limit``, and none behind
        the first with which they are more than ``max_bytes``.
        """
        with self._lock:
            if not self.start <= offset < self.end:
                return []
            runs: list[Run] = []
            left = max_bytes
            for columns in self._tables_from(offset):
                at = max(bisect_right(columns[BASE], offset) - 1, 0)
                stop = min(len(columns[BASE]), at + limit - len(runs))
                if left is not None:
                    total = list(accumulate(columns[SIZE][at:stop]))
                    stop = min(stop, at + bisect_right(total, left) + 1)
                    left -= total[stop - at - 1]
                runs.extend(map(Run._make, zip(*(column[at:stop] for column in columns), strict=True)))
                if len(runs) >= limit or (left is not None and left < 0):
                    break
            return runs

    def _tables_from(self, offset: int) -> Iterator[Columns]:
        first = max(bisect_right(self._sealed_bases, offset) - 1, 0)
        for columns in self._sealed[first:]:
            if columns[BASE][-1] + columns[COUNT][-1] > offset:
                yield columns
        if self._active[BASE]:
            yield self._active

    def span(self, start: int, end: int, max_bytes: int) -> tuple[int, int]:
        """``(offset, bytes)``: as far from ``start`` towards ``end`` as ``max_bytes`` reach, and how many
        bytes that is. A run that is cut, by a bound or by the limit, counts in proportion to its messages.
        """
        offset, total = max(start, self.start), 0
        while offset < min(end, self.end):
            runs = self.runs_from(offset)
            if not runs:  # retention overtook this call
                break
            for run in runs:
                stop = min(run.base + run.messages, end)
                if stop <= offset:
                    return offset, total
                size = run.size * (stop - offset) // run.messages
                if total + size > max_bytes:
                    taken = (max_bytes - total) * run.messages // run.size
                    return offset + taken, total + run.size * taken // run.messages
                offset, total = stop, total + size
        return offset, total

    def offset_at_time(self, time_ms: int) -> int:
        """First offset whose timestamp is at or after ``time_ms``; ``end`` if there is none."""
        with self._lock:
            for columns in (*self._sealed, self._active):
                times = columns[TIME]
                if len(times) and times[-1] >= time_ms:
                    at = _bisect_left(times, time_ms)
                    return max(columns[BASE][at], self.start)
            return self.end

    def seal(self) -> Columns | None:
        """Take the active runs out, to be written to a file; the caller gives them back with ``adopt``."""
        with self._lock:
            if not self._active[BASE]:
                return None
            columns: Columns = self._active
            self._active = _empty()
            self._sealed.append(columns)
            self._sealed_bases.append(columns[BASE][0])
            return columns

    def unseal(self, columns: Columns) -> None:
        """Undo ``seal`` (the file could not be written): the table goes back in front of the active runs.

        Unless retention has dropped all of it in the meantime.
        """
        with self._lock:
            if columns[BASE][0] not in self._sealed_bases:
                return
            at = self._sealed_bases.index(columns[BASE][0])
            del self._sealed[at], self._sealed_bases[at]
            joined = tuple(array("Q", column) for column in columns)
            for column, newer in zip(joined, self._active, strict=True):
                column.extend(newer)
            self._active = joined

    def adopt(self, columns: Columns) -> None:
        """Put a sealed table (memory-mapped) in place: instead of the one on the heap, or at recovery."""
        base = columns[BASE][0]
        with self._lock:
            at = bisect_right(self._sealed_bases, base) - 1
            if at >= 0 and self._sealed_bases[at] == base:
                self._sealed[at] = columns
            else:
                self._sealed.insert(at + 1, columns)
                self._sealed_bases.insert(at + 1, base)

    def trim(self, start: int) -> None:
        """Retention by time or size: offsets below ``start`` are gone."""
        with self._lock:
            self.start = min(max(self.start, start), self.end)
            dropped = 0
            for columns in self._sealed:
                if columns[BASE][-1] + columns[COUNT][-1] > self.start:
                    break
                dropped += 1
            del self._sealed[:dropped], self._sealed_bases[:dropped]

    def forget_before(self, log_index: int) -> None:
        """Retention: everything up to the last run that lies in an entry before ``log_index`` is gone."""
        keep = self.start
        for columns in (*self._sealed, self._active):
            for i in range(len(columns[BASE]) - 1, -1, -1):
                if columns[INDEX][i] < log_index:
                    keep = max(keep, columns[BASE][i] + columns[COUNT][i])
                    break
        self.trim(keep)

    def oldest_log_index(self) -> int | None:
        """Lowest log index that a live run points to: the segment that holds it is still needed."""
        with self._lock:
            oldest: int | None = None
            for columns in (*self._sealed, self._active):
                bases = columns[BASE]
                first = max(bisect_right(bases, self.start) - 1, 0)
                if first < len(bases) and bases[-1] + columns[COUNT][-1] > self.start:
                    lowest = min(columns[INDEX][first:])
                    oldest = lowest if oldest is None else min(oldest, lowest)
            return oldest

    def start_for_bytes(self, limit: int) -> int:
        """The lowest offset such that what follows holds at most ``limit`` bytes (whole runs)."""
        with self._lock:
            total, keep = 0, self.end
            for columns in reversed((*self._sealed, self._active)):
                for i in range(len(columns[BASE]) - 1, -1, -1):
                    total += columns[SIZE][i]
                    if total > limit:
                        return max(keep, self.start)
                    keep = columns[BASE][i]
            return self.start


def _empty() -> tuple[array[int], ...]:
    return tuple(array("Q") for _ in range(COLUMNS))


def _bisect_left(column: Sequence[int], value: int) -> int:
    low, high = 0, len(column)
    while low < high:
        middle = (low + high) // 2
        if column[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low
