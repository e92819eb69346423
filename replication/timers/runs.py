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
#: Of what is asked for, so many times as much may be read in vain, before less is returned.
_WASTE_MAX = 4


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
    starts = [
        (run.rows(row, 1)[0], n, row)
        for n, run in enumerate(runs)
        if (row := run.row_at(behind(after))) < len(run)
    ]
    starts.sort()
    each, room = max(2 * count // max(len(starts), 1), _SLICE_MIN), count
    while True:
        found: list[bytes] = []
        stop = before
        for first, n, row in starts:
            if first >= stop:
                break  # this run and all further ones begin behind what is returned
            if stop == before and len(found) >= room and first[:KEY_BYTES] > starts[0][0][:KEY_BYTES]:
                stop = first[:KEY_BYTES]  # all runs so far were short, and are read to their ends
                break
            part = runs[n].rows(row, each)
            found += part
            if row + len(part) < len(runs[n]):
                stop = min(stop, part[-1][:KEY_BYTES])
        taken = len(found)
        found.sort()
        if found and found[0] <= behind(after):  # or readers would go round in circles
            raise CorruptLog(f"timers are not in order behind {after.hex()}")
        del found[bisect_left(found, stop) :]
        if stop == before:
            return found, None
        # Runs that lie one after the other share no stretch of keys: then a slice of each is too little.
        if found and (4 * len(found) >= count or taken >= _WASTE_MAX * count):
            return found, found[-1][:KEY_BYTES]
        each, room = 4 * each, 4 * room  # or a key has this many copies, which none ever has


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
