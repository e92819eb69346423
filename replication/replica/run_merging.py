"""Run files are merged, eight into one, so that their number grows with the logarithm of the log.

Each checkpoint writes a run file. Without merging, a group of 1 TiB has 16,000 of them, and memory holds a
table for each of them and each partition in it. The level of a file is in its name: one of level n holds the
runs of 8^n checkpoints, so each run is written again once for each level. Files that are merged are
neighbours, and a partition's runs in them follow each other: they are put together column by column, in one
pass, after every byte of the inputs has been checked. Which files are merged when differs from replica to
replica, and changes no answer.

A merge runs in slices beside the applying thread. What it has written so far has no name that a start would
read. Its inputs stay until no snapshot that is kept names them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final

from google_crc32c import extend

from escrowmq.replication.errors import CorruptLog, DiskFull
from escrowmq.replication.format.codec import pack
from escrowmq.replication.log.disk import Disk, File, StoredFiles
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.stored_runs import (
    COLUMNS,
    HEAD_BYTES,
    RUN_BYTES,
    KeptBlocks,
    RunFile,
    packed_head,
    padding,
)

#: Files of one level that become one of the next.
FAN_IN: Final = 8
#: Larger files are not made: a merge needs room for its result beside its inputs.
MERGED_MAX: Final = 2 << 30
#: Bytes that one slice reads or writes: half a second, with its rests.
SLICE_BYTES: Final = 16 << 20
#: Bytes that are read or written at once.
PIECE_BYTES: Final = 1 << 20
#: Tables that are looked at between two rests: a quarter of a millisecond.
TABLES_PER_REST: Final = 64
_SUFFIX: Final = ".runs"
_MERGED: Final = re.compile(r"[0-9a-f]+-([0-9]{1,3})-[0-9]+\.runs")


def level_of(name: str) -> int:
    """0: a checkpoint wrote it."""
    found = _MERGED.fullmatch(name)
    return 0 if found is None else int(found[1])


def choose(files: Sequence[RunFile], fan_in: int) -> list[RunFile]:
    """The files to merge now, ``fan_in`` of the lowest level that has as many; none if there are few.
    ``files``: all, in order."""
    levels = [(level, list(some)) for level, some in groupby(files, lambda file: level_of(file.name))]
    for _, some in sorted(levels, key=lambda found: found[0]):
        for begin in range(len(some) - fan_in + 1):
            chosen = some[begin : begin + fan_in]
            if sum(file.size for file in chosen) <= MERGED_MAX:
                return chosen
    return []


class RunMergeJob:
    """Merges run files into one. First ``plan`` visits their tables, in the applying thread. Then ``run``
    does the next slice, in any one thread at a time, until ``finished``."""

    def __init__(
        self,
        disk: Disk,
        stored: StoredFiles,
        kept: KeptBlocks,
        files: Sequence[RunFile],
        reserve_bytes: int = 0,
        slice_bytes: int = SLICE_BYTES,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """``reserve_bytes``: the free space that a merge leaves. Inputs go after two more snapshots, and
        there are none while the leader refuses work because of its disk."""
        self._slice_bytes, self._piece_bytes = slice_bytes, piece_bytes
        self.files = files
        self._reserve_bytes = reserve_bytes
        self.name = next(name for name in _names(files) if not disk.exists(name))
        self.finished = False
        self.error: DiskFull | None = None
        self.runs: RunFile | None = None  # when it is finished; None: nothing is left of the files
        self._disk, self._stored, self._kept = disk, stored, kept
        self._alive: dict[int, int] = {}  # slot -> the first of the files that it still reads
        self._steps: Iterator[int] | None = None

    def plan(self, state: StateMachine) -> Iterator[None]:
        """Look which tables are still read, one after the other."""
        slots = state.topics.slots
        for position, file in enumerate(self.files):
            for number in range(len(file)):
                slot, end = file.slot_and_end(number)
                if slot not in self._alive and slot in slots and slots[slot].index.start < end:
                    self._alive[slot] = position
                yield

    def run(self, rest: Callable[[], None] = lambda: None) -> None:
        """The next slice. Raises CorruptLog if one of the files is damaged, and the disk's errors."""
        if self._steps is None:
            self._steps = self._merge()
        done = 0
        try:
            for size in self._steps:
                rest()
                done += size
                if done >= self._slice_bytes:
                    return
        except DiskFull as error:  # nothing is lost; the next checkpoint tries again
            self.error = error
            self._disk.remove(self.name + ".tmp")
        self.finished, self._steps = True, None

    def _merge(self) -> Iterator[int]:
        size, free = sum(file.size for file in self.files), self._disk.free_bytes()
        if free - size < self._reserve_bytes:
            raise DiskFull(f"{free} bytes are free, and {self._reserve_bytes} must be left beside {size}")
        for file in self.files:
            yield from file.verify(self._piece_bytes)
        parts = _Parts(self.files, self._alive, self._piece_bytes)
        yield from parts.find()
        if not len(parts):
            return
        temporary = self.name + ".tmp"
        self._disk.remove(temporary)
        out = _Output(self._disk.open(temporary, create=True), self._slice_bytes, self._piece_bytes)
        pieces = list[bytes]()
        for packed in parts.directory():
            pieces.append(packed)
            if not len(pieces) % TABLES_PER_REST:
                yield 0
        directory = b"".join(pieces)
        out.begin(len(directory))
        out.write(directory + bytes(padding(len(directory))))
        for number in range(len(parts)):
            for data in parts.columns(number):
                out.write(data)
                if size := out.told():
                    yield size
            if not number % TABLES_PER_REST:
                yield 0
        out.end()
        self._disk.rename(temporary, self.name)
        self._disk.sync_dir()
        merged = RunFile(self._stored.file(self.name), self._kept)
        yield from merged.loading()
        yield from parts.compare(merged)
        self.runs = merged


class _Parts:
    """Which tables of the inputs make which table of the result: for each slot a number of each input, -1 for
    none."""

    def __init__(self, files: Sequence[RunFile], alive: Mapping[int, int], piece_bytes: int) -> None:
        self._files, self._alive, self._piece_bytes = files, alive, piece_bytes
        self._slots = array("Q")
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._slots)

    def find(self) -> Iterator[int]:
        index_of: dict[int, int] = {}
        none = array("q", [-1] * len(self._files))
        for position, file in enumerate(self._files):
            for number in range(len(file)):
                slot, _ = file.slot_and_end(number)
                if self._alive.get(slot, len(self._files)) <= position:
                    if slot not in index_of:
                        index_of[slot] = len(index_of)
                        self._slots.append(slot)
                        self._numbers.extend(none)
                    self._numbers[index_of[slot] * len(self._files) + position] = number
                if not number % TABLES_PER_REST:
                    yield 0

    def _of(self, index: int) -> list[tuple[RunFile, int]]:
        begin = index * len(self._files)
        numbers = self._numbers[begin : begin + len(self._files)]
        return [(file, number) for file, number in zip(self._files, numbers, strict=True) if number >= 0]

    def rows(self, index: int) -> int:
        return sum(len(file.table(number)) for file, number in self._of(index))

    def directory(self) -> Iterator[bytes]:
        """The bytes of ``[[slot, runs], ...]``."""
        yield b"\xdd" + len(self).to_bytes(4, "big")
        for index, slot in enumerate(self._slots):
            yield pack([slot, self.rows(index)])

    def columns(self, index: int) -> Iterator[bytes]:
        """The bytes of a table of the result, in pieces."""
        tables = [(file, number, len(file.table(number))) for file, number in self._of(index)]
        if RUN_BYTES * sum(rows for _, _, rows in tables) <= self._piece_bytes:
            whole = [(file.read_table(number), 8 * rows) for file, number, rows in tables]
            yield b"".join(
                data[column * size : (column + 1) * size] for column in range(COLUMNS) for data, size in whole
            )
            return
        for column in range(COLUMNS):
            for file, number, _ in tables:
                yield from file.read_column(number, column, self._piece_bytes)

    def compare(self, merged: RunFile) -> Iterator[int]:
        """Raise CorruptLog unless the result has what its inputs had, without a gap."""
        if len(merged) != len(self):
            raise CorruptLog(f"{merged.name}: has {len(merged)} tables, and {len(self)} were merged into it")
        for index in range(len(self)):
            tables = [file.table(number) for file, number in self._of(index)]
            table = merged.table(index)
            gaps = any(first.end != second.base for first, second in pairwise(tables))
            bounds = table.base, table.end, len(table), table.size()
            expected = (
                tables[0].base,
                tables[-1].end,
                sum(map(len, tables)),
                sum(one.size() for one in tables),
            )
            if gaps or bounds != expected or merged.slot_and_end(index)[0] != self._slots[index]:
                raise CorruptLog(f"{merged.name}: table {index} is {bounds}, and not {expected}")
            if not index % TABLES_PER_REST:
                yield 0


class _Output:
    """The result, as far as it is written. Its head is written last, when the checksum is known."""

    def __init__(self, file: File, slice_bytes: int, piece_bytes: int) -> None:
        self._file = file
        self._slice_bytes, self._piece_bytes = slice_bytes, piece_bytes
        self._parts: list[bytes] = []
        self._waiting = self._told = self._directory = self._unsynced = 0
        self._crc = 0

    def begin(self, directory_bytes: int) -> None:
        self._directory = directory_bytes
        self._file.append((bytes(HEAD_BYTES),))

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= self._piece_bytes:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        self._crc = extend(self._crc, data)
        self._file.append((data,))
        self._parts, self._waiting = [], 0
        self._told += len(data)
        self._unsynced += len(data)
        if self._unsynced >= self._slice_bytes:  # or commits would wait for all of it
            self._file.sync()
            self._unsynced = 0

    def told(self) -> int:
        """The bytes that were written since the last call."""
        told, self._told = self._told, 0
        return told

    def end(self) -> None:
        """Durable at return."""
        self._flush()
        self._file.write_at(0, packed_head(self._crc, self._directory))
        self._file.sync()
        self._file.close()


def _names(files: Sequence[RunFile]) -> Iterator[str]:
    newest, level = files[-1].name.partition("-")[0].removesuffix(_SUFFIX), level_of(files[0].name) + 1
    number = 0
    while True:
        number += 1
        yield f"{newest}-{level}-{number}{_SUFFIX}"
