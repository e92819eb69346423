"""Sorted records in a file that is written once, in one pass, and never changed.

Layout: magic, u32 version; the records, in blocks of ``BLOCK`` (1 MiB, the last one shorter); for each block
its first key, u32 CRC32C, i64 living records; then the last key, u64 records, and u32 CRC32C of all that
follows the blocks. So a look-up reads one block, and a block is checked when it is first read. From then on
each page that is read again is checked: a disk may lose in between what it had, and say nothing.

What is kept of each block stands behind the blocks: a merge does not know it before it has written them.
All numbers are little-endian, except in records and keys, whose bytes are in order.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from google_crc32c import extend
from google_crc32c import value as crc32c

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.timers.record import (
    KEY_BYTES,
    RECORD_BYTES,
    living_count,
    lower_than,
    settled,
    split,
)
from escrowmq.replication.timers.runs import behind, in_order

SUFFIX: Final = ".timers"
_HEAD: Final = struct.Struct("<4sI")
_MAGIC, _VERSION = b"EMQT", 1
#: Records of one block.
BLOCK: Final = (1 << 20) // RECORD_BYTES
_BLOCK_BYTES: Final = BLOCK * RECORD_BYTES
_ABOUT_BLOCK: Final = struct.Struct(f"<{KEY_BYTES}sIq")
_END: Final = struct.Struct(f"<{KEY_BYTES}sQI")
_END_SUMMED: Final = _END.size - 4
#: Records of a page: a look-up within a block reads one. The first key of each is kept, a
#: third of a percent of what is read, and its checksum.
PAGE: Final = 512


class Stored(Protocol):
    """The bytes of a file that no longer changes. Thread-safe."""

    @property
    def size(self) -> int: ...
    def read(self, pos: int, size: int) -> bytes:
        """Exactly so many bytes. Raises CorruptLog and the disk's errors."""


def encode(records: Iterable[list[bytes]], rest: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The file's parts for sorted records, at least one. ``rest()`` is called after every block."""
    yield _HEAD.pack(_MAGIC, _VERSION)
    about, count, last = [], 0, b""
    for block in _blocks(records):
        data = b"".join(block)
        about.append(_ABOUT_BLOCK.pack(block[0][:KEY_BYTES], crc32c(data), living_count(block)))
        count, last = count + len(block), block[-1][:KEY_BYTES]
        yield data
        rest()
    assert count, "a file of no records"
    foot = b"".join((*about, _END.pack(last, count, 0)[:_END_SUMMED]))
    yield foot + crc32c(foot).to_bytes(4, "little")


def _blocks(records: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    kept: list[bytes] = []
    for some in records:
        kept += some
        while len(kept) >= BLOCK:
            yield kept[:BLOCK]
            del kept[:BLOCK]
    if kept:
        yield kept


class _Foot:
    """What stands behind the blocks."""

    __slots__ = ("crcs", "first_keys", "last_key", "living", "records")

    def __init__(self, name: str, foot: bytes) -> None:
        """``foot``: the file's bytes behind its blocks. Raises CorruptLog."""
        if len(foot) < _END.size:
            raise CorruptLog(f"{name}: its foot is cut off")
        crc: int
        last_key: bytes
        records: int
        last_key, records, crc = _END.unpack_from(foot, len(foot) - _END.size)
        if crc32c(foot[:-4]) != crc:
            raise CorruptLog(f"{name}: checksum of its foot does not match")
        if len(foot) != -(-records // BLOCK) * _ABOUT_BLOCK.size + _END.size:
            raise CorruptLog(f"{name}: its foot is cut off")
        self.last_key, self.records = last_key, records
        about = [*_ABOUT_BLOCK.iter_unpack(foot[: -_END.size])]
        self.first_keys: list[bytes] = [key for key, _, _ in about]
        self.crcs: list[int] = [crc for _, crc, _ in about]
        self.living: list[int] = [count for _, _, count in about]
        keys = [*self.first_keys, self.last_key]
        if any(keys[i] > keys[i + 1] for i in range(len(about))):
            raise CorruptLog(f"{name}: its keys are not in order")
        if any(abs(count) >= 1 << 62 for count in self.living):
            raise CorruptLog(f"{name}: its counts make no sense")


def _foot_begin(name: str, head: bytes, end: bytes, size: int) -> int:
    """Where the foot begins in a file of ``size`` bytes, from its first and last bytes. Raises CorruptLog or
    UnknownVersion."""
    if len(head) < _HEAD.size or len(end) < _END.size or size < _HEAD.size + _END.size:
        raise CorruptLog(f"{name}: too short for a file of timers")
    magic, version = _HEAD.unpack_from(head)
    if magic != _MAGIC:
        raise CorruptLog(f"{name}: not a file of timers")
    if version != _VERSION:
        raise UnknownVersion(f"{name}: version {version} of a file of timers; this software reads {_VERSION}")
    _, records, _ = _END.unpack(end)
    blocks = -(-records // BLOCK)
    begin: int = _HEAD.size + records * RECORD_BYTES
    if not records or begin + blocks * _ABOUT_BLOCK.size + _END.size != size:
        raise CorruptLog(f"{name}: has {size} bytes, and not those of its {records} records")
    return begin


class SealedFile:
    """One file, as a run (runs.py). Thread-safe. What reads records raises CorruptLog and the disk's
    errors."""

    def __init__(self, name: str, file: Stored) -> None:
        """Reads the foot only. Raises CorruptLog, UnknownVersion and the disk's errors."""
        self.name = name
        self._file = file
        size = file.size
        head, end = min(_HEAD.size, size), min(_END.size, size)
        begin = _foot_begin(name, file.read(0, head), file.read(size - end, end), size)
        self._foot = _Foot(name, file.read(begin, size - begin))
        #: Of each block that has been checked: the first key of each page, and its checksum.
        self._pages: list[tuple[list[bytes], list[int]] | None] = [None] * len(self._foot.crcs)
        self._page = (-1, b"")  # the one that was read last, by its first row

    def __len__(self) -> int:
        return self._foot.records

    @property
    def last_key(self) -> bytes:
        return self._foot.last_key

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.size

    def row_at(self, bound: bytes) -> int:
        """See ``Run.row_at``. ``bound``: a key, its beginning, or ``behind`` of it."""
        block = bisect_left(self._foot.first_keys, bound) - 1
        if block < 0:
            return 0
        if bound > behind(self._foot.last_key):
            return len(self)
        first_keys, _ = self._checked(block)
        begin = block * BLOCK + max(bisect_left(first_keys, bound) - 1, 0) * PAGE
        data = self._read_page(begin)
        return begin + lower_than(bound, data, 0, len(data) // RECORD_BYTES)

    def rows(self, begin: int, count: int) -> list[bytes]:
        """See ``Run.rows``."""
        end = min(begin + count, len(self))
        if begin >= end:
            return []
        first, data = self._page
        if first <= begin and end <= first + len(data) // RECORD_BYTES:
            return split(data[(begin - first) * RECORD_BYTES : (end - first) * RECORD_BYTES])
        return [
            row
            for block in range(begin // BLOCK, (end - 1) // BLOCK + 1)
            for row in self._of(block, begin, end)
        ]

    def _of(self, block: int, begin: int, end: int) -> list[bytes]:
        """Those of a block between two rows."""
        first, last = block * BLOCK, min((block + 1) * BLOCK, len(self))
        begin, end = max(begin, first), min(end, last)
        from_page = first + (begin - first) // PAGE * PAGE
        data = self._read_pages(block, from_page, min(first - (first - end) // PAGE * PAGE, last))
        return split(data[(begin - from_page) * RECORD_BYTES : (end - from_page) * RECORD_BYTES])

    def _read_pages(self, block: int, begin: int, end: int) -> bytes:
        """Whole pages of a block, checked."""
        _, crcs = self._checked(block)
        data = self._read_rows(begin, end)
        step, page = PAGE * RECORD_BYTES, (begin - block * BLOCK) // PAGE
        for number, at in enumerate(range(0, len(data), step), page):
            if crc32c(data[at : at + step]) != crcs[number]:
                raise CorruptLog(f"{self.name}: page {number} of block {block} is not what it was at first")
        return data

    def _read_rows(self, begin: int, end: int) -> bytes:
        return self._file.read(_HEAD.size + begin * RECORD_BYTES, (end - begin) * RECORD_BYTES)

    def _read_page(self, begin: int) -> bytes:
        """The page that begins with this row; none crosses the end of its block."""
        first, data = self._page
        if first != begin:
            end = min(begin + PAGE, (begin // BLOCK + 1) * BLOCK, len(self))
            data = self._read_pages(begin // BLOCK, begin, end)
            self._page = begin, data
        return data

    def _checked(self, block: int) -> tuple[list[bytes], list[int]]:
        """Check a block when it is first read. Returns the first key of each of its pages, and its
        checksum."""
        pages = self._pages[block]
        if pages is None:
            data = self._read_rows(block * BLOCK, min((block + 1) * BLOCK, len(self)))
            if crc32c(data) != self._foot.crcs[block] or not data.startswith(self._foot.first_keys[block]):
                raise CorruptLog(f"{self.name}: checksum of block {block} does not match")
            step = PAGE * RECORD_BYTES
            begins = range(0, len(data), step)
            pages = (
                [data[at : at + KEY_BYTES] for at in begins],
                [crc32c(data[at : at + step]) for at in begins],
            )
            self._pages[block] = pages
        return pages

    def about_after(self, key: bytes) -> int:
        """The number of records with higher keys, up to a block too many. Reads no block."""
        return len(self) - max(bisect_left(self._foot.first_keys, behind(key)) - 1, 0) * BLOCK

    def living_after(self, key: bytes) -> int:
        """How many records with higher keys live, less those of other files that this one's tombstones
        kill."""
        row = self.row_at(behind(key))
        block = -(-row // BLOCK)
        return sum(self._foot.living[block:]) + living_count(self.rows(row, block * BLOCK - row))


def verify_timers(name: str, read: Callable[[int, int], bytes], size: int, piece_bytes: int) -> Iterator[int]:
    """Check a file piece by piece; yields the bytes of each. ``read(pos, size)``. Raises CorruptLog or
    UnknownVersion."""
    begin = _foot_begin(name, read(0, _HEAD.size), read(max(size - _END.size, 0), _END.size), size)
    parts = [read(at, min(piece_bytes, size - at)) for at in range(begin, size, piece_bytes)]
    foot = _Foot(name, b"".join(parts))
    yield _HEAD.size + size - begin
    for block, expected in enumerate(foot.crcs):
        at = _HEAD.size + block * _BLOCK_BYTES
        end = min(at + _BLOCK_BYTES, begin)
        crc, first = 0, True
        while at < end and (part := read(at, min(piece_bytes, end - at))):
            if first and not part.startswith(foot.first_keys[block][: len(part)]):
                raise CorruptLog(f"{name}: block {block} does not begin with its key")
            crc, at, first = extend(crc, part), at + len(part), False
            yield len(part)
        if at < end or crc != expected:
            raise CorruptLog(f"{name}: checksum of block {block} does not match")


# ------------------------------------------------------------------------------------------------------------
# Which files of timers are merged into one, and what is left of their records then.
#
# Files are in classes by the number of records that are not released yet. Eight of a class become one of a
# higher class: so each record is written again three times at most while 100 million wait, and there are few
# files. Which files are merged when differs from replica to replica, and changes no answer.

#: The least number of records of each class but the first.
CLASSES: Final = (1 << 19, 1 << 22, 1 << 25)
#: Files of one class that are merged.
FAN_IN: Final = 8
#: Records that are sorted in one piece: less than a millisecond, during which no other thread runs.
SLICE: Final = 2_048


def choose(files: Sequence[SealedFile], cursor: bytes, classes: Sequence[int] = CLASSES) -> list[SealedFile]:
    """The files to merge now; none if there are few. A single large one: most of it is released. Reads no
    record."""
    by_class: list[list[SealedFile]] = [[] for _ in range(len(classes) + 1)]
    for file in files:
        by_class[bisect_right(classes, file.about_after(cursor))].append(file)
    for some in by_class:
        if len(some) >= FAN_IN:
            return some[:FAN_IN]
    return next(([f] for f in files if len(f) >= classes[0] and f.about_after(cursor) < len(f) // 2), [])


def merged(
    files: Sequence[SealedFile], cursor: bytes, rest: Callable[[], None] = lambda: None
) -> Iterator[list[bytes]]:
    """What is left of their records behind the cursor, in order: without those that a tombstone among them
    kills. Tombstones stay, since what they kill may be in other files. Raises CorruptLog."""
    for records in in_order(files, cursor, SLICE):
        yield settled(records)
        rest()
