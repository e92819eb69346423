"""Runs of a partition in order of offsets, as columns in memory, with sums over blocks of them.

A run is a row of six unsigned 64-bit integers: first offset, log index, byte position in the command, bytes,
messages, timestamp in ms. Log indexes are not sorted: a transaction that is committed late refers to an old
entry. So that retention need not read every run, a table keeps for each full block of ``BLOCK`` rows the
lowest log index and the bytes. Blocks are summed when the sums are needed, a bounded number at a time:
``append`` pays nothing for them, and sixteen bytes per 1,024 runs of 48 bytes hardly count.

Once its runs are in a file, a ``StoredTable`` (stored_runs.py) takes its place, with the same methods.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

COLUMNS = 6
BASE, INDEX, POS, SIZE, COUNT, TIME = range(COLUMNS)
Columns = tuple[Sequence[int], ...]

#: Rows of a block: 30 us to sum, and the same to search the one in which something begins.
BLOCK = 1_024


class RunTable:
    """One table. Not thread-safe: the caller holds its partition's lock, or no partition has it yet.

    Rows are only ever added, and only the last one grows: a block is summed once a row follows it.
    """

    __slots__ = ("_lows", "_sizes", "columns")

    def __init__(self, columns: Columns) -> None:
        self.columns: tuple[Any, ...] = columns
        self._lows: array[int] | None = None  # of full blocks, so far; None: no block is full
        self._sizes: array[int] | None = None

    def __len__(self) -> int:
        return len(self.columns[BASE])

    @property
    def base(self) -> int:
        """The first offset."""
        base: int = self.columns[BASE][0]
        return base

    @property
    def end(self) -> int:
        """The offset after the last one."""
        end: int = self.columns[BASE][-1] + self.columns[COUNT][-1]
        return end

    @property
    def last_time_ms(self) -> int:
        """The time of the last row: no other is later."""
        time_ms: int = self.columns[TIME][-1]
        return time_ms

    # -------------------------------------------------------------- rows

    def row_of(self, offset: int) -> int:
        """The row that holds an offset; the first one if that lies before it."""
        return max(bisect_right(self.columns[BASE], offset) - 1, 0)

    def base_of(self, row: int) -> int:
        """Its first offset."""
        base: int = self.columns[BASE][row]
        return base

    def rows(self, row: int, limit: int) -> Columns:
        """A copy of up to ``limit`` rows from this one on."""
        return tuple(column[row : row + limit] for column in self.columns)

    def offset_at(self, time_ms: int) -> int | None:
        """The first offset whose time is at or after this one; None: all are before it."""
        row = bisect_left(self.columns[TIME], time_ms)
        return self.base_of(row) if row < len(self) else None

    # -------------------------------------------------------------- sums

    def unsummed(self) -> int:
        """The number of full blocks that are not summed yet."""
        done = 0 if self._lows is None else len(self._lows)
        return max((len(self) - 1) // BLOCK - done, 0)

    def sum_up(self, blocks: int) -> int:
        """Sum up to ``blocks`` further blocks; returns how many."""
        blocks = min(blocks, self.unsummed())
        if not blocks:
            return 0
        if self._lows is None or self._sizes is None:
            self._lows, self._sizes = array("Q"), array("Q")
        indexes, sizes = self.columns[INDEX], self.columns[SIZE]
        for _ in range(blocks):
            at = len(self._lows) * BLOCK
            self._lows.append(min(indexes[at : at + BLOCK]))
            self._sizes.append(sum(sizes[at : at + BLOCK]))
        return blocks

    # -------------------------------------------------------------- log indexes

    @property
    def low(self) -> int:
        """The lowest log index of all rows."""
        return self.lowest_from(0)

    def lowest_from(self, row: int) -> int:
        """The lowest log index of ``row`` and all rows after it."""
        self.sum_up(self.unsummed())
        lows = self._lows
        indexes: Sequence[int] = self.columns[INDEX]
        first = -(-row // BLOCK)
        if lows is None or first >= len(lows):
            return min(indexes[row:])
        lowest = min(min(lows[first:]), min(indexes[len(lows) * BLOCK :]))
        return min(lowest, min(indexes[row : first * BLOCK])) if row < first * BLOCK else lowest

    def end_of_below(self, log_index: int) -> int | None:
        """The offset after the last run in an entry before ``log_index``; None if there is no such run."""
        self.sum_up(self.unsummed())
        indexes, lows = self.columns[INDEX], self._lows or ()
        row = self._last_below(indexes, log_index, len(lows) * BLOCK, len(indexes))
        block = len(lows)
        while row is None and block > 0:
            block -= 1
            if lows[block] < log_index:
                row = self._last_below(indexes, log_index, block * BLOCK, (block + 1) * BLOCK)
        return None if row is None else self.columns[BASE][row] + self.columns[COUNT][row]

    @staticmethod
    def _last_below(indexes: Sequence[int], log_index: int, begin: int, end: int) -> int | None:
        if begin == end or min(indexes[begin:end]) >= log_index:
            return None
        return next((row for row in range(end - 1, begin - 1, -1) if indexes[row] < log_index), None)

    # -------------------------------------------------------------- bytes

    def size(self) -> int:
        """Bytes of all rows."""
        return self.fitting(1 << 64)[1]

    def fitting(self, limit: int) -> tuple[int, int]:
        """``(row, bytes)``: the lowest row from which on at most ``limit`` bytes follow, and the number of
        these bytes; the number of rows and 0 if the last row alone has more."""
        self.sum_up(self.unsummed())
        sizes, blocks = self.columns[SIZE], self._sizes or ()
        row, total = len(sizes), 0
        for block in range(len(blocks), -1, -1):
            begin = block * BLOCK
            size = blocks[block] if block < len(blocks) else sum(sizes[begin:row])
            if total + size > limit:
                totals = list(accumulate(reversed(sizes[begin:row])))
                fits = bisect_right(totals, limit - total)
                return row - fits, total + (totals[fits - 1] if fits else 0)
            row, total = begin, total + size
        return row, total


def empty_columns() -> tuple[array[int], ...]:
    """No rows yet."""
    return tuple(array("Q") for _ in range(COLUMNS))
