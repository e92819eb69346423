"""Sealed runs of partitions as they are read from their file: what must be known of each table is in memory,
and a block of rows is read when it is needed.

A group has a table for each partition and run file, so a table must cost little: ten numbers, which stand
with those of the file's other tables in one array. Of a table of many rows, ten numbers for each block of
1,024 are kept too, so that a look-up reads one block, and retention hardly any. Blocks that were read last
stay in memory: readers go through a table in small steps.

The file is checked when it is opened, and what is read later is checked against checksums from then: a disk
may lose in between what it had, and say nothing.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, count
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from google_crc32c import extend
from google_crc32c import value as crc32c

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.codec import pack, unpack

# ------------------------------------------------------------------ a table of runs
# Runs of a partition in order of offsets, as columns in memory, with sums over blocks of them.
#
# A run is a row of six unsigned 64-bit integers: first offset, log index, byte position in the command,
# bytes, messages, timestamp in ms. Log indexes are not sorted: a transaction that is committed late refers
# to an old entry. So that retention need not read every run, a table keeps for each full block of ``BLOCK``
# rows the lowest log index and the bytes. Blocks are summed when the sums are needed, a bounded number at a
# time: ``append`` pays nothing for them, and sixteen bytes per 1,024 runs of 48 bytes hardly count.
#
# Once its runs are in a file, a ``StoredTable`` (stored_runs.py) takes its place, with the same methods.


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


# ------------------------------------------------------------------ files of runs
# Files of sealed runs of partition indexes: one per snapshot interval, until several are merged into one.
#
# Layout: magic, u32 version, u32 CRC32C of what follows, u32 directory bytes, the directory (msgpack:
# ``[[slot, runs], ...]``), zero padding to a multiple of 8, then per slot six columns of little-endian
# unsigned 64-bit integers. The file is written once, whole, and never changed. Reading: stored_runs.py.


_HEAD = struct.Struct("<4sIII")
HEAD_BYTES: Final = _HEAD.size
RUN_BYTES: Final = 8 * COLUMNS
_MAGIC, _VERSION = b"EMQR", 1
#: What is copied and summed in one piece: other threads of the process wait meanwhile.
_PIECE_BYTES = 1 << 20
#: Tables that are visited between two rests: see snapshot.py.
TABLES_PER_REST = 64
assert sys.byteorder == "little", "run files are read unconverted; a big-endian machine needs a converter"


def encode_runs(tables: Mapping[int, Columns], rest: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The file's parts for ``slot -> columns``. ``rest()`` is called in between."""
    directory = pack([[slot, len(columns[0])] for slot, columns in tables.items()])
    crc = 0
    for part in _parts(directory, tables, rest):
        crc = extend(crc, part)
    yield packed_head(crc, len(directory))
    yield from _parts(directory, tables, rest)


def packed_head(crc: int, directory_bytes: int) -> bytes:
    """``crc``: of what follows the head."""
    return _HEAD.pack(_MAGIC, _VERSION, crc, directory_bytes)


def _parts(directory: bytes, tables: Mapping[int, Columns], rest: Callable[[], None]) -> Iterator[bytes]:
    yield directory + b"\0" * padding(len(directory))
    for number, columns in enumerate(tables.values(), 1):
        if not number % TABLES_PER_REST:
            rest()
        for column in columns:
            with memoryview(column) as view, view.cast("B") as data:  # type: ignore[arg-type]
                for at in range(0, len(data), _PIECE_BYTES):
                    yield bytes(data[at : at + _PIECE_BYTES])
                    if len(data) > _PIECE_BYTES:
                        rest()


def parse_head(name: str, head: bytes) -> tuple[int, int]:
    """Checksum of what follows the head, and bytes of the directory. Raises CorruptLog or UnknownVersion."""
    if len(head) < _HEAD.size:
        raise CorruptLog(f"{name}: shorter than its header")
    magic, version, crc, directory_size = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise CorruptLog(f"{name}: not a run file")
    if version != _VERSION:
        raise UnknownVersion(f"{name}: run file version {version}; this software reads {_VERSION}")
    return crc, directory_size


def verify_runs(name: str, read: Callable[[int, int], bytes], size: int, piece_bytes: int) -> Iterator[int]:
    """Check a file piece by piece; yields the bytes of each. ``read(pos, size)``. Raises CorruptLog or
    UnknownVersion."""
    expected, directory_size = parse_head(name, read(0, HEAD_BYTES))
    crc, at = 0, HEAD_BYTES
    while at < size and (part := read(at, min(piece_bytes, size - at))):
        crc, at = extend(crc, part), at + len(part)
        yield len(part)
    if crc != expected or directory_size > size:
        raise CorruptLog(f"{name}: checksum does not match")
    parse_directory(name, read(HEAD_BYTES, directory_size), size)  # its size is true


def parse_directory(name: str, directory: bytes, file_size: int) -> list[tuple[int, int]]:
    """Slot and number of runs of every table; together they fill the file exactly. Raises CorruptLog."""
    try:
        entries = msgspec.convert(unpack(directory), list[tuple[int, int]])
    except msgspec.ValidationError as error:
        raise CorruptLog(f"{name}: its directory is invalid: {error}") from error
    size = file_size - HEAD_BYTES - len(directory) - padding(len(directory))
    if any(runs < 1 for _, runs in entries) or size != RUN_BYTES * sum(runs for _, runs in entries):
        raise CorruptLog(f"{name}: its directory does not match its size")
    return entries


def padding(directory_size: int) -> int:
    """The zero bytes behind a directory."""
    return -(directory_size + HEAD_BYTES) % 8


# ------------------------------------------------------------------ stored runs


#: Of the blocks that are kept, for each replica: 340 of them, or more small tables.
KEPT_BYTES: Final = 16 << 20
#: What a kept block costs beside its rows.
_KEPT_COST: Final = 1_000
#: Bytes that are read in one piece when a file is opened: a millisecond.
PIECE_BYTES: Final = 1 << 20
#: Blocks of a column that are summed between two rests: half a millisecond.
BLOCKS_PER_REST: Final = 16
#: What is known of a table.
FACTS: Final = 10
_SLOT, _AT, _ROWS, _BASE, _END, _LOW, _BYTES, _FIRST_MS, _LAST_MS, _CRC = range(FACTS)


class Stored(Protocol):
    """A file that no longer changes. Thread-safe."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def read(self, pos: int, size: int) -> bytes:
        """Exactly so many bytes. Raises CorruptLog and the disk's errors."""


class _Blocks(NamedTuple):
    """Of each block of a table with several: the first offset, the lowest log index, the bytes, the first
    time; and of each block of each column, one column after the other, the checksum."""

    bases: array[int]
    lows: array[int]
    sizes: array[int]
    times: array[int]
    crcs: array[int]


class KeptBlocks:
    """The blocks that were read last, of all run files of a replica. Thread-safe."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._lock = Lock()
        self._blocks: OrderedDict[tuple[int, int, int], Columns] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, int, int]) -> Columns | None:
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
            return found

    def put(self, key: tuple[int, int, int], block: Columns) -> None:
        with self._lock:
            if key in self._blocks:  # another reader was faster
                return
            self._blocks[key] = block
            self._bytes += _cost(block)
            while self._bytes > self._limit:
                _, oldest = self._blocks.popitem(last=False)
                self._bytes -= _cost(oldest)


def _cost(block: Columns) -> int:
    return _KEPT_COST + RUN_BYTES * len(block[BASE])


_serials = count()


class RunFile:
    """A run file of which ``loading`` has read every byte. Read-only from then on; thread-safe."""

    __slots__ = ("_blocks", "_facts", "_file", "_kept", "_serial", "left")

    def __init__(self, file: Stored, kept: KeptBlocks) -> None:
        self._file, self._kept, self._serial = file, kept, next(_serials)
        self._facts = array("Q")
        self._blocks: dict[int, _Blocks] = {}
        #: Tables that are not known to be unused: all from this one on are. For whoever removes files.
        self.left = 0

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.size

    def __len__(self) -> int:
        """The number of tables."""
        return len(self._facts) // FACTS

    def table(self, number: int) -> StoredTable:
        return StoredTable(self, number)

    def tables(self) -> Iterator[tuple[int, StoredTable]]:
        """Slots and tables, in the file's order."""
        for number in range(len(self)):
            yield self.slot_and_end(number)[0], StoredTable(self, number)

    def slot_and_end(self, number: int) -> tuple[int, int]:
        """The slot of a table, and the offset after its last one."""
        at = FACTS * number
        return self._facts[at + _SLOT], self._facts[at + _END]

    def fact(self, number: int, which: int) -> int:
        return self._facts[FACTS * number + which]

    def blocks(self, number: int) -> _Blocks | None:
        """None: the table is one block."""
        return self._blocks.get(number)

    def block(self, number: int, block: int) -> Columns:
        """The rows of a block of a table. Raises CorruptLog and the disk's errors."""
        key = self._serial, number, block
        columns = self._kept.get(key)
        if columns is None:
            columns = self._read_block(number, block)
            self._kept.put(key, columns)
        return columns

    def _read_block(self, number: int, block: int) -> Columns:
        rows = self.fact(number, _ROWS)
        if rows <= BLOCK:
            return _columns_of(self.read_table(number), rows)
        first = block * BLOCK
        size = 8 * min(BLOCK, rows - first)
        return tuple(
            array("Q", self.read_rows(number, 8 * (column * rows + first), size)) for column in range(COLUMNS)
        )

    def read_table(self, number: int) -> bytes:
        """All its bytes, column by column. Raises CorruptLog and the disk's errors."""
        return self.read_rows(number, 0, RUN_BYTES * self.fact(number, _ROWS))

    def read_column(self, number: int, column: int, piece_bytes: int) -> Iterator[bytes]:
        """The bytes of a column of a table, in pieces of about this size. Raises CorruptLog and the disk's
        errors."""
        rows = self.fact(number, _ROWS)
        begin, end = 8 * column * rows, 8 * (column + 1) * rows
        if number not in self._blocks:
            yield self.read_table(number)[begin:end]
            return
        step = max(piece_bytes // (8 * BLOCK), 1) * 8 * BLOCK
        for at in range(begin, end, step):
            yield self.read_rows(number, at, min(step, end - at))

    def read_rows(self, number: int, pos: int, size: int) -> bytes:
        """Part of a table's bytes: whole blocks of columns, or the whole table if it is one block. Raises
        CorruptLog if they are not those that were there when the file was opened, and the disk's errors."""
        data = self._file.read(self.fact(number, _AT) + pos, size)
        blocks = self._blocks.get(number)
        if blocks is None:
            right = crc32c(data) == self.fact(number, _CRC)
        else:
            right = self._is_right(data, pos, 8 * self.fact(number, _ROWS), blocks.crcs)
        if not right:
            raise CorruptLog(f"{self.name}: table {number} is not what it was when the file was opened")
        return data

    @staticmethod
    def _is_right(data: bytes, pos: int, column_bytes: int, crcs: array[int]) -> bool:
        block_bytes = 8 * BLOCK
        per_column = -(-column_bytes // block_bytes)
        at = 0
        while at < len(data):
            column, within = divmod(pos + at, column_bytes)
            end = at + min(block_bytes, column_bytes - within)
            if crc32c(data[at:end]) != crcs[column * per_column + within // block_bytes]:
                return False
            at = end
        return True

    def verify(self, piece_bytes: int) -> Iterator[int]:
        """See ``verify_runs``."""
        yield from verify_runs(self.name, self._file.read, self.size, piece_bytes)

    # -------------------------------------------------------------- opening

    def loading(self) -> Iterator[int]:
        """Read the whole file once, check it, and note what must be known of its tables; yields after every
        half millisecond of work the bytes that were read. Raises CorruptLog, UnknownVersion and the disk's
        errors."""
        name, file = self.name, self._file
        crc, directory_bytes = parse_head(name, file.read(0, min(HEAD_BYTES, file.size)))
        reader = _Reader(file)
        if directory_bytes > file.size - HEAD_BYTES:
            raise CorruptLog(f"{name}: checksum does not match")
        directory = bytearray()
        while len(directory) < directory_bytes:
            directory += reader.take(min(directory_bytes - len(directory), PIECE_BYTES))
            yield reader.told()
        entries = parse_directory(name, bytes(directory), file.size)
        reader.take(padding(directory_bytes))
        at = HEAD_BYTES + directory_bytes + padding(directory_bytes)
        try:
            for number, (slot, rows) in enumerate(entries, 1):
                if rows <= BLOCK:
                    self._note(slot, at, rows, reader.take(RUN_BYTES * rows))
                else:
                    yield from self._note_large(slot, at, rows, reader)
                at += RUN_BYTES * rows
                if not number % TABLES_PER_REST:
                    yield reader.told()
            yield reader.told()
        except OverflowError:  # the checksum of what follows does not matter any more
            raise CorruptLog(f"{name}: checksum does not match, or its runs make no sense") from None
        if reader.crc != crc:
            raise CorruptLog(f"{name}: checksum does not match")
        self.left = len(self)

    def _note(self, slot: int, at: int, rows: int, data: bytes) -> None:
        bases, indexes, _, sizes, counts, times = _columns_of(data, rows)
        end, crc = bases[-1] + counts[-1], crc32c(data)
        self._keep(slot, at, rows, bases[0], end, min(indexes), sum(sizes), times[0], times[-1], crc)

    def _keep(self, *facts: int) -> None:
        if facts[_END] - facts[_BASE] < facts[_ROWS]:  # each run has a message at least
            raise CorruptLog(f"{self.name}: its offsets are not in order")
        self._facts.extend(facts)

    def _note_large(self, slot: int, at: int, rows: int, reader: _Reader) -> Iterator[int]:
        found = _Blocks(array("Q"), array("Q"), array("Q"), array("Q"), array("I"))
        last = [0] * COLUMNS
        for column in range(COLUMNS):
            for first in range(0, rows, BLOCK):
                data = reader.take(8 * min(BLOCK, rows - first))
                found.crcs.append(crc32c(data))
                values = array("Q", data)
                if column == BASE:
                    found.bases.append(values[0])
                elif column == INDEX:
                    found.lows.append(min(values))
                elif column == SIZE:
                    found.sizes.append(sum(values))
                elif column == TIME:
                    found.times.append(values[0])
                last[column] = values[-1]
                if not first // BLOCK % BLOCKS_PER_REST:
                    yield reader.told()
        self._blocks[len(self)] = found
        end, total = last[BASE] + last[COUNT], sum(found.sizes)
        self._keep(slot, at, rows, found.bases[0], end, min(found.lows), total, found.times[0], last[TIME], 0)


class _Reader:
    """Reads what follows the head from begin to end, and sums it up."""

    def __init__(self, file: Stored) -> None:
        self._file, self._at = file, HEAD_BYTES
        self._piece, self._pos = b"", 0
        self._told = 0
        self.crc = 0

    def take(self, size: int) -> bytes:
        """The next bytes, at most a piece. Raises CorruptLog and the disk's errors."""
        begin, end = self._pos, self._pos + size
        if end <= len(self._piece):
            self._pos = end
            return self._piece[begin:end]
        rest = self._piece[begin:]
        self._piece = self._file.read(self._at, min(PIECE_BYTES, self._file.size - self._at))
        self._at += len(self._piece)
        self._told += len(self._piece)
        self.crc = extend(self.crc, self._piece)
        self._pos = size - len(rest)
        if self._pos > len(self._piece):
            raise CorruptLog(f"{self._file.name}: cut off at byte {self._at}")
        return rest + self._piece[: self._pos]

    def told(self) -> int:
        """The bytes that were read since the last call."""
        told, self._told = self._told, 0
        return told


def open_runs(file: Stored, kept: KeptBlocks, rest: Callable[[], None] = lambda: None) -> RunFile:
    """A run file, checked. ``rest()`` is called after each piece. Raises CorruptLog, UnknownVersion and the
    disk's errors."""
    found = RunFile(file, kept)
    for _ in found.loading():
        rest()
    return found


def _columns_of(data: bytes, rows: int) -> Columns:
    """Of a table that is one block."""
    numbers = array("Q", data)
    return tuple(numbers[at : at + rows] for at in range(0, COLUMNS * rows, rows))


class StoredTable:
    """A table of a run file; see ``RunTable``. Any thread. What reads rows raises CorruptLog and the disk's
    errors."""

    __slots__ = ("_number", "file")

    def __init__(self, file: RunFile, number: int) -> None:
        self.file, self._number = file, number

    def __len__(self) -> int:
        return self.file.fact(self._number, _ROWS)

    @property
    def base(self) -> int:
        return self.file.fact(self._number, _BASE)

    @property
    def end(self) -> int:
        return self.file.fact(self._number, _END)

    @property
    def last_time_ms(self) -> int:
        return self.file.fact(self._number, _LAST_MS)

    @property
    def low(self) -> int:
        return self.file.fact(self._number, _LOW)

    def size(self) -> int:
        return self.file.fact(self._number, _BYTES)

    def sum_up(self, blocks: int) -> int:
        """Nothing is left to be summed."""
        return 0

    # -------------------------------------------------------------- rows

    def row_of(self, offset: int) -> int:
        blocks = self.file.blocks(self._number)
        block = max(bisect_right(blocks.bases, offset) - 1, 0) if blocks else 0
        bases = self.file.block(self._number, block)[BASE]
        return block * BLOCK + max(bisect_right(bases, offset) - 1, 0)

    def base_of(self, row: int) -> int:
        block, row = divmod(row, BLOCK)
        if not row:
            blocks = self.file.blocks(self._number)
            return blocks.bases[block] if blocks else self.base
        return self.file.block(self._number, block)[BASE][row]

    def rows(self, row: int, limit: int) -> Columns:
        """A copy of at most ``limit`` rows from this one on: those that are in its block."""
        block, row = divmod(row, BLOCK)
        return tuple(column[row : row + limit] for column in self.file.block(self._number, block))

    def offset_at(self, time_ms: int) -> int | None:
        if time_ms <= self.file.fact(self._number, _FIRST_MS):
            return self.base
        if time_ms > self.last_time_ms:
            return None
        blocks = self.file.blocks(self._number)
        block = max(bisect_left(blocks.times, time_ms) - 1, 0) if blocks else 0
        row = bisect_left(self.file.block(self._number, block)[TIME], time_ms)
        return self.base_of(block * BLOCK + row)

    # -------------------------------------------------------------- log indexes

    def lowest_from(self, row: int) -> int:
        first, row = divmod(row, BLOCK)
        blocks = self.file.blocks(self._number)
        lows = blocks.lows if blocks else array("Q", (self.low,))
        if row:
            lowest = min(self.file.block(self._number, first)[INDEX][row:])
            first += 1
            return min(lowest, min(lows[first:])) if first < len(lows) else lowest
        return min(lows[first:])

    def end_of_below(self, log_index: int) -> int | None:
        blocks = self.file.blocks(self._number)
        lows = blocks.lows if blocks else (self.low,)
        block = next((at for at in range(len(lows) - 1, -1, -1) if lows[at] < log_index), None)
        if block is None:
            return None
        columns = self.file.block(self._number, block)
        indexes = columns[INDEX]
        row = next(row for row in range(len(indexes) - 1, -1, -1) if indexes[row] < log_index)
        return columns[BASE][row] + columns[COUNT][row]

    # -------------------------------------------------------------- bytes

    def fitting(self, limit: int) -> tuple[int, int]:
        blocks = self.file.blocks(self._number)
        sizes = blocks.sizes if blocks else (self.size(),)
        row, total = len(self), 0
        for block in range(len(sizes) - 1, -1, -1):
            if total + sizes[block] > limit:
                rows = self.file.block(self._number, block)[SIZE]
                totals = list(accumulate(reversed(rows)))
                fits = bisect_right(totals, limit - total)
                return row - fits, total + (totals[fits - 1] if fits else 0)
            row, total = block * BLOCK, total + sizes[block]
        return row, total
