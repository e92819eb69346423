"""Sorted runs of records, and reading several of them as one: in slices, so that memory stays bounded.

A slice is taken from each run, the slices are sorted together, and what lies before the end of the shortest
slice is in order. Sorting merges slices that are sorted already at the speed of C.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.timers.record import KEY_BYTES, RECORD_BYTES, living, lower_than, split

#: Greater than the rest of any record: ``key + _BEHIND`` is behind all copies of the key.
_BEHIND = b"\xff" * (RECORD_BYTES - KEY_BYTES + 1)
#: Fewer records than this are not worth a slice.
_SLICE_MIN = 32


class Run(Protocol):
    """Sorted records that no longer change. Thread-safe."""

    def __len__(self) -> int: ...

    def row_at(self, bound: bytes) -> int:
        """How many records are lower than these bytes: a key, its beginning, or ``behind`` of it. Raises
        CorruptLog."""

    def rows(self, begin: int, count: int) -> list[bytes]:
        """Up to ``count`` records from this row on. Raises CorruptLog."""


class Chunk:
    """A run in memory."""

    __slots__ = ("_data", "_hint")

    def __init__(self, records: Sequence[bytes]) -> None:
        """``records``: sorted."""
        self._data = b"".join(records)
        self._hint = (b"", 0)

    def __len__(self) -> int:
        return len(self._data) // RECORD_BYTES

    def row_at(self, bound: bytes) -> int:
        data, size = self._data, RECORD_BYTES
        hint, low = self._hint
        if bound < hint:
            low = 0
        high = len(data) // size
        if low < high and data[low * size : (low + 1) * size] >= bound:
            high = low  # as it was: a leader asks for what follows the same key again and again
        low = lower_than(bound, data, low, high)
        self._hint = (bound, low)
        return low

    def rows(self, begin: int, count: int) -> list[bytes]:
        return split(self._data[begin * RECORD_BYTES : (begin + count) * RECORD_BYTES])


def behind(key: bytes) -> bytes:
    """The bound for ``Run.row_at`` that is higher than all records of a key."""
    return key + _BEHIND


def records_of(run: Run, key: bytes) -> list[bytes]:
    """All records of a key."""
    begin, found = run.row_at(key), []
    while True:
        more = [record for record in run.rows(begin, 4) if record.startswith(key)]
        found += more
        if len(more) < 4:
            return found
        begin += 4


def read_on(runs: Sequence[Run], after: bytes, before: bytes, count: int) -> tuple[list[bytes], bytes | None]:
    """About ``count`` records of keys higher than ``after`` and lower than ``before``, in order, with all
    copies of each key, also the killed ones; and the last of these keys if more may follow, else None.
    Raises CorruptLog."""
    starts = [(run, row) for run in runs if (row := run.row_at(behind(after))) < len(run)]
    each = max(2 * count // max(len(starts), 1), _SLICE_MIN)
    while True:
        found: list[bytes] = []
        stop = before
        for run, row in starts:
            part = run.rows(row, each)
            found += part
            if row + len(part) < len(run):
                stop = min(stop, part[-1][:KEY_BYTES])
        found.sort()
        if found and found[0] <= behind(after):  # or readers would go round in circles
            raise CorruptLog(f"timers are not in order behind {after.hex()}")
        del found[bisect_left(found, stop) :]
        if stop == before:
            return found, None
        if found:
            return found, found[-1][:KEY_BYTES]
        each *= 4  # a key with this many copies: none is ever


def in_order(runs: Sequence[Run], after: bytes, count: int) -> Iterator[list[bytes]]:
    """All records of keys higher than ``after``, as lists of about ``count``; no key is in two of them."""
    position: bytes | None = after
    while position is not None:
        found, position = read_on(runs, position, _BEHIND, count)
        if found:
            yield found


def living_after(
    runs: Sequence[Run], after: bytes, before: bytes, limit: int
) -> tuple[list[bytes], bytes | None]:
    """As ``read_on``, but only what lives, and at most ``limit`` (all copies of a key, however many)."""
    found, position = read_on(runs, after, before, limit)
    alive = living(found)
    if len(alive) <= limit:
        return alive, position
    position = alive[limit - 1][:KEY_BYTES]
    end = bisect_left(alive, behind(position), lo=limit)
    return alive[:end], position
