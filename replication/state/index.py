"""Partition index: dense offset -> position in the log, as runs.

A *run* is a sequence of messages that are adjacent in one log entry and have consecutive
offsets: a batch of a thousand plain messages is one run, and so are a thousand transactions that
were prepared and committed together. A run costs 48 bytes in columns of unsigned 64-bit integers;
there is no object per message. Runs of sealed segments are in files (see stored_runs.py); only those of
the segment being written are on the heap.

Offsets are assigned when an entry is applied, so at commit: an open transaction leaves no gap.
One thread appends; any number of threads read. Only reading takes longer with more runs
(see stored_runs.py), and no operation has to visit all partitions at once (see ``Cuts``).
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from itertools import accumulate, islice
from typing import NamedTuple

from escrowmq.replication.state.stored_runs import (
    BASE,
    BLOCK,
    COLUMNS,
    SIZE,
    Columns,
    RunFile,
    RunTable,
    StoredTable,
    empty_columns,
)

# ------------------------------------------------------------------------------------------------------------
# State shared by all partition indexes, so that neither a snapshot nor RETAIN has to visit them all.
#
# A *cut* is the moment of a snapshot. Making one takes one step; each partition is cut off when it next
# changes or when the snapshot visits it, whichever is earlier, and its state at the cut is kept until the
# snapshot has taken it. The *floor* is what RETAIN released: each partition moves its start when it is next
# read. So the time to apply an entry does not depend on the number of partitions, and the state at an index
# does not depend on which parts were read before.


class Cuts:
    """Written by the applying thread. Other threads that need both must read ``floor`` before ``number``."""

    __slots__ = ("floor", "floor_at_cut", "number")

    def __init__(self) -> None:
        self.number = 0  # cuts so far
        self.floor = 0  # entries before this one are released
        self.floor_at_cut = 0

    def cut(self) -> None:
        """A snapshot of the present state begins; the previous one has visited every partition."""
        self.floor_at_cut = self.floor
        self.number += 1


__all__ = ["COLUMNS", "Columns", "PartitionIndex", "Run", "Table"]

Table = RunTable | StoredTable

#: The table of a partition without active runs, shared by all: six arrays are half a kilobyte.
_NONE = RunTable(empty_columns())
_NO_LOW = 1 << 64


class Run(NamedTuple):
    """``messages`` messages from offset ``base``: ``size`` bytes at ``pos`` of log entry ``log_index``."""

    base: int
    log_index: int
    pos: int
    size: int
    messages: int
    time_ms: int


class AtCut(NamedTuple):
    """A partition as it was at a cut; ``runs``: those since the previous cut."""

    start: int
    end: int
    last_time_ms: int
    runs: Columns | None


class PartitionIndex:
    """Offsets ``[start, end)`` of one partition. ``end`` is the next offset to be assigned."""

    __slots__ = (
        "_active",
        "_at_cut",
        "_bases",
        "_cut",
        "_cuts",
        "_first_low",
        "_floor",
        "_lock",
        "_low",
        "_lows",
        "_sizes",
        "_start",
        "bytes",
        "end",
        "last_time_ms",
        "sealed",
    )

    def __init__(self, start: int = 0, end: int = 0, last_time_ms: int = 0, cuts: Cuts | None = None) -> None:
        """``cuts``: those of its state (None: it stands alone)."""
        self._start, self.end, self.last_time_ms = start, end, last_time_ms
        self.bytes = 0  # appended since the process started; not part of the state
        self._cuts = Cuts() if cuts is None else cuts
        self._cut, self._floor = self._cuts.number, self._cuts.floor
        self._at_cut: AtCut | None = None
        self._active, self._low = _NONE, _NO_LOW  # runs since the last cut, and their lowest log index
        self.sealed: list[Table] = []
        #: Of the first sealed table, if that is stored: the lowest log index from a start on.
        self._first_low = (-1, 0)
        #: Of each sealed table: first offset, lowest log index, bytes. 0: not known yet (see ``_know``).
        self._bases, self._lows, self._sizes = array("Q"), array("Q"), array("Q")
        self._lock = threading.Lock()

    @property
    def start(self) -> int:
        """The first available offset."""
        if self._floor < self._cuts.floor:
            self._let_go()
        return self._start

    def append(self, index: int, pos: int, size: int, count: int, time_ms: int) -> int:
        """Assign the next ``count`` offsets to messages at a position in the log; returns the first of
        them."""
        if self._cut != self._cuts.number:
            self._cut_off()
        base = self.end
        bases, indexes, positions, sizes, counts, times = self._active.columns
        with self._lock:
            if indexes and indexes[-1] == index and positions[-1] + sizes[-1] == pos and times[-1] == time_ms:
                sizes[-1] += size
                counts[-1] += count
            else:
                if index < self._low:
                    self._low = index
                    if self._active is _NONE:
                        self._active = RunTable(empty_columns())
                        bases, indexes, positions, sizes, counts, times = self._active.columns
                bases.append(base)  # one by one: a loop over the columns costs half as much again
                indexes.append(index)
                positions.append(pos)
                sizes.append(size)
                counts.append(count)
                times.append(time_ms)
            self.last_time_ms = time_ms
            self.bytes += size
            self.end = base + count
        return base

    # -------------------------------------------------------------- reading

    def runs_from(self, offset: int, limit: int = 256, max_bytes: int | None = None) -> list[Run]:
        """Runs in order of offsets, beginning with the one that holds ``offset``: at most ``limit``, and
        ending with the first one that makes them more than ``max_bytes``.

        Raises CorruptLog and the disk's errors, as all that reads runs, if they are in a damaged file.
        """
        start = self.start
        runs: list[Run] = []
        left = max_bytes
        while True:
            with self._lock:
                if not max(start, self._start) <= offset < self.end:
                    return runs
                table = self._table_of(offset)
                active = table is self._active
                if isinstance(table, RunTable):
                    columns = table.rows(table.row_of(offset), limit - len(runs))
            if isinstance(table, StoredTable):  # it does not change, so nobody waits for the disk
                columns = table.rows(table.row_of(offset), limit - len(runs))
            rows = len(columns[BASE])
            if left is not None and rows:
                total = list(accumulate(columns[SIZE]))
                rows = min(rows, bisect_right(total, left) + 1)
                left -= total[rows - 1]
            runs.extend(map(Run._make, islice(zip(*columns, strict=True), rows)))
            # What is behind the active table was appended meanwhile, and may be in the last of these runs.
            if active or len(runs) >= limit or (left is not None and left < 0):
                return runs
            offset = runs[-1].base + runs[-1].messages

    def _table_of(self, offset: int) -> Table:
        at = max(bisect_right(self._bases, offset) - 1, 0)
        if at < len(self.sealed) and self.sealed[at].end > offset:
            return self.sealed[at]
        return self._active

    def span(self, start: int, end: int, max_bytes: int) -> tuple[int, int]:
        """``(offset, bytes)``: how far ``max_bytes`` reach from ``start`` towards ``end``, and the number of
        bytes up to there. A run that is split, by a bound or by the limit, counts in proportion to its
        messages.
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
        start = self.start
        with self._lock:
            # Times rise with the offsets, across tables too.
            at = bisect_left(self.sealed, time_ms, key=lambda table: table.last_time_ms)
            table = self.sealed[at] if at < len(self.sealed) else self._active
            found = table.offset_at(time_ms) if isinstance(table, RunTable) else None
            end = self.end
        if isinstance(table, StoredTable):
            found = table.offset_at(time_ms)
        return end if found is None else max(found, start)

    # -------------------------------------------------------------- sealed tables

    def at_cut(self) -> AtCut:
        """The partition as it was at the last cut, once for each cut. In the applying thread."""
        if self._cut != self._cuts.number:
            self._cut_off()
        found, self._at_cut = self._at_cut, None
        assert found is not None, "a partition that was created after the cut, or was asked twice"
        return found

    def _cut_off(self) -> None:
        with self._lock:
            self._cut_off_locked()

    def _cut_off_locked(self) -> None:
        """Keep the partition's state at the cut: it is about to change, or the snapshot is visiting it."""
        if self._cut == self._cuts.number:  # another thread was faster
            return
        self._forget(self._cuts.floor_at_cut)
        self._at_cut = AtCut(self._start, self.end, self.last_time_ms, self._seal_locked())
        self._cut = self._cuts.number

    def seal(self) -> Columns | None:
        """Take out the active runs, to be written to a file; the caller returns them with ``adopt``."""
        with self._lock:
            return self._seal_locked()

    def _seal_locked(self) -> Columns | None:
        table = self._active
        if table is _NONE:
            return None
        self.sealed.append(table)
        self._bases.append(table.base)
        self._lows.append(self._low)
        self._sizes.append(0)
        self._active, self._low = _NONE, _NO_LOW
        return table.columns

    def unseal(self, columns: Columns) -> None:
        """Undo ``seal`` (the file could not be written): the table goes back before the active runs.

        Does nothing if retention has dropped all of it meanwhile.
        """
        with self._lock:
            at = bisect_left(self._bases, columns[BASE][0])
            if at == len(self._bases) or self._bases[at] != columns[BASE][0]:
                return
            self._low = min(self._low, self._lows[at])
            self._drop(at, at + 1)
            joined = tuple(array("Q", column) for column in columns)
            for column, newer in zip(joined, self._active.columns, strict=True):
                column.extend(newer)
            self._active = RunTable(joined)

    def adopt(self, table: Table) -> None:
        """Put a sealed table, which is stored, in place: instead of the one on the heap, or at recovery."""
        base = table.base
        with self._lock:
            at = bisect_left(self._bases, base)
            if at < len(self._bases) and self._bases[at] == base:
                self.sealed[at] = table
            else:
                self.sealed.insert(at, table)
                self._bases.insert(at, base)
                self._lows.insert(at, 0)
                self._sizes.insert(at, 0)
            self._know(at)
            self._first_low = (-1, 0)

    def merged(self, table: StoredTable, files: Collection[RunFile]) -> None:
        """One table has what those of these files had, as far as they are still there."""
        with self._lock:
            old = [
                at for at, one in enumerate(self.sealed) if isinstance(one, StoredTable) and one.file in files
            ]
            if not old:
                return
            first, last = old[0], old[-1]
            assert last - first == len(old) - 1, "merged files have other runs between them"
            assert table.base <= self._bases[first], "the merged table lacks runs"
            assert table.end == self.sealed[last].end, "the merged table ends elsewhere"
            self._drop(first, last + 1)
            self.sealed.insert(first, table)
            self._bases.insert(first, table.base)
            self._lows.insert(first, 0)
            self._sizes.insert(first, 0)
            self._know(first)

    def _know(self, at: int) -> None:
        """Compute the sums of a sealed table: they do not change any more."""
        self._lows[at] = self._lows[at] or self.sealed[at].low
        self._sizes[at] = self._sizes[at] or self.sealed[at].size()

    def _drop(self, first: int, end: int) -> None:
        for tables in (self.sealed, self._bases, self._lows, self._sizes):
            del tables[first:end]
        self._first_low = (-1, 0)

    # -------------------------------------------------------------- retention

    def trim(self, start: int) -> None:
        """Retention by time or size: offsets below ``start`` are gone."""
        self._let_go()
        with self._lock:
            self._cut_off_locked()
            self._begin_at(start)

    def _let_go(self) -> None:
        """Apply what RETAIN released. Any thread."""
        cuts = self._cuts
        floor = cuts.floor  # before the number: see Cuts
        with self._lock:
            if floor > cuts.floor_at_cut:
                self._cut_off_locked()
            self._forget(floor)

    def _forget(self, log_index: int) -> None:
        """Everything up to the last run in an entry before ``log_index`` is gone.

        Later appends never refer to entries before it: RETAIN stays below all that is open or still to come.
        """
        if log_index <= self._floor:
            return
        below = [at for at, low in enumerate(self._lows) if low < log_index]
        keep = self._active.end_of_below(log_index) if self._low < log_index else None
        if keep is None and below:
            keep = self.sealed[below[-1]].end_of_below(log_index)
        self._floor = log_index  # not before: what cannot be read is looked for again
        if keep is not None:
            self._begin_at(keep)

    def _begin_at(self, start: int) -> None:
        self._start = start = min(max(self._start, start), self.end)
        dropped = 0
        for table in self.sealed:
            if table.end > start:
                break
            dropped += 1
        if dropped:
            self._drop(0, dropped)

    def forget_before(self, log_index: int) -> None:
        """Retention: everything up to the last run in an entry before ``log_index`` is gone."""
        with self._lock:
            self._forget(log_index)

    def sum_up(self, blocks: int) -> int:
        """Sum up to ``blocks`` blocks of runs, to make later calls of the next two methods faster; returns
        how many it summed."""
        if len(self._active) <= BLOCK and (not self._sizes or self._sizes[-1]):
            return 0  # the usual case
        with self._lock:
            left = blocks - self._active.sum_up(blocks)
            for at in range(len(self._lows) - 1, -1, -1):
                if not left or self._sizes[at]:  # those before it came from a file, with their sums
                    break
                left -= self.sealed[at].sum_up(left)
            return blocks - left

    def oldest_log_index(self) -> int | None:
        """Lowest log index that a live run refers to: the segment that holds it is still needed."""
        start = self.start
        with self._lock:
            if start == self.end:
                return None
            lows = self._lows
            if not lows:
                return self._lowest(self._active, self._low, start)
            if self._first_low[0] != start:  # else it would be read anew in each round of retention
                self._first_low = start, self._lowest(self.sealed[0], lows[0], start)
            lowest = self._first_low[1]
            if len(lows) > 1:  # all but the first one are entirely live
                lowest = min(lowest, min(lows[1:]))
            return min(lowest, self._lowest(self._active, self._low, start))

    @staticmethod
    def _lowest(table: Table, low: int, start: int) -> int:
        """The lowest of the table's runs from ``start`` on; ``low``: the lowest of all its runs."""
        if not len(table) or start <= table.base:
            return low
        if table.end <= start:
            return _NO_LOW
        row = table.row_of(start)
        return table.lowest_from(row) if row else low

    def start_for_bytes(self, limit: int) -> int:
        """The lowest offset from which on at most ``limit`` bytes follow (whole runs)."""
        start = self.start
        with self._lock:
            if 0 in self._sizes:  # a table sealed for the snapshot under way
                for at in range(len(self._sizes)):
                    self._know(at)
            keep, at = self.end, len(self.sealed)
            table: Table = self._active
            while True:
                row, size = table.fitting(limit)
                if row:
                    return max(table.base_of(row) if row < len(table) else keep, start)
                limit, keep = limit - size, table.base if len(table) else keep
                while at and self._sizes[at - 1] <= limit:
                    at -= 1
                    limit, keep = limit - self._sizes[at], self._bases[at]
                if not at:
                    return start
                at -= 1
                table = self.sealed[at]
