"""Bytes of a ``.find`` file: where in a block of offsets a key, transaction id, business key or origin is.

The origin is that of a copy in an internal topic (forwarded.py): retries and dead letters are found by it.

An entry is 64 bits: 48 of a hash, then 16 of a message's index within the block. So the entries of a block
sort as plain numbers, and those of one hash are neighbours. A hash names candidates only: whoever reads the
file compares each of them with the row itself.

The file is derived from the log. It can be read page by page, and each page has a checksum of its own: a
damaged file is noticed wherever it is damaged, and can be made anew. Nothing here does I/O.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from escrowmq.replication.errors import CorruptLog, UnknownVersion

MAGIC, VERSION = b"EMQF", 1
#: Offsets of a block: an index is a number of 16 bits.
BLOCK_OFFSETS = 1 << 16
#: What a needle is. The numbers are part of the hash, so each kind has hashes of its own.
KEY, TX_ID, BUSINESS_KEY, ORIGIN = 1, 2, 3, 4
#: Entries of a page, 4 KiB: what one look-up reads.
PAGE_ENTRIES = 512
#: Magic, version, checksum of the rest of the head; first offset, end offset, entries.
HEAD = struct.Struct("<4sII4xQQQ")
_CHECKED_FROM = 16

crc32c: Callable[[int, bytes], int] = google_crc32c.extend
crc32 = zlib.crc32


def entry_of(kind: int, needle: bytes, index: int) -> int:
    """The entry of a needle at an index of the block."""
    return (crc32c(kind, needle) << 32) | (crc32(needle, kind) & 0xFFFF) << 16 | index


class Head(NamedTuple):
    """The beginning of a file: offsets ``[first, end)`` are covered, and of each page the first entry and the
    checksum."""

    first: int
    end: int
    entries: int
    firsts: array[int]
    sums: array[int]

    @property
    def size(self) -> int:
        """Bytes of the head."""
        return head_bytes(self.entries)

    def page(self, number: int) -> tuple[int, int]:
        """``(position, size)`` of a page in the file."""
        start = number * PAGE_ENTRIES
        return self.size + start * 8, (min(self.entries, start + PAGE_ENTRIES) - start) * 8

    def pages_with(self, low: int) -> Iterator[int]:
        """The pages that may hold entries of the hash whose lowest entry is ``low``."""
        number = max(bisect_left(self.firsts, low) - 1, 0)
        while number < len(self.firsts) and self.firsts[number] <= low | 0xFFFF:
            yield number
            number += 1


def head_bytes(entries: int) -> int:
    """Bytes of the head of a file with so many entries."""
    return HEAD.size + _pages(entries) * 12


def _pages(entries: int) -> int:
    return (entries + PAGE_ENTRIES - 1) // PAGE_ENTRIES


def encode(first: int, end: int, entries: Sequence[int]) -> list[bytes]:
    """A whole file, in parts. ``entries`` are sorted."""
    pages = [_bytes("Q", entries[at : at + PAGE_ENTRIES]) for at in range(0, len(entries), PAGE_ENTRIES)]
    about = b"".join(
        (
            _bytes("Q", entries[::PAGE_ENTRIES]),
            _bytes("I", [google_crc32c.value(page) for page in pages]),
        )
    )
    head = HEAD.pack(MAGIC, VERSION, 0, first, end, len(entries))[_CHECKED_FROM:] + about
    start = HEAD.pack(MAGIC, VERSION, google_crc32c.value(head), 0, 0, 0)[:_CHECKED_FROM]
    return [start, head, *pages]


def entries_announced(start: bytes) -> int:
    """How many entries a file says it has, from its first ``HEAD.size`` bytes. Raises as ``decode_head``."""
    if len(start) < HEAD.size or start[:4] != MAGIC:
        raise CorruptLog("a .find file does not begin as one")
    _, version, _, _, _, entries = HEAD.unpack_from(start)
    if version != VERSION:
        raise UnknownVersion(f".find file of version {version}; this software reads {VERSION}")
    return int(entries)


def decode_head(head: bytes, size: int) -> Head:
    """The head of a file of ``size`` bytes. Raises CorruptLog if it is damaged or the file has another size,
    UnknownVersion for a later version."""
    entries = entries_announced(head)
    wanted = head_bytes(entries)
    if size != wanted + entries * 8 or len(head) < wanted:
        raise CorruptLog(f"a .find file with {entries} entries has {size} bytes")
    _, _, told, first, end, _ = HEAD.unpack_from(head)
    if google_crc32c.value(head[_CHECKED_FROM:wanted]) != told:
        raise CorruptLog("the checksum of a .find file's head is wrong")
    sums_at = HEAD.size + _pages(entries) * 8
    return Head(
        first, end, entries, _numbers("Q", head[HEAD.size : sums_at]), _numbers("I", head[sums_at:wanted])
    )


def decode_page(page: bytes, told: int) -> array[int]:
    """The entries of a page with this checksum. Raises CorruptLog."""
    if len(page) % 8 or google_crc32c.value(page) != told:
        raise CorruptLog("the checksum of a page of a .find file is wrong")
    return _numbers("Q", page)


def indexes(entries: Sequence[int], low: int) -> list[int]:
    """The indexes of those sorted entries that have the hash whose lowest entry is ``low``, in order."""
    return [
        entry & 0xFFFF for entry in entries[bisect_left(entries, low) : bisect_left(entries, low + 0x10000)]
    ]


def _bytes(kind: str, numbers: Sequence[int]) -> bytes:
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _numbers(kind: str, data: bytes) -> array[int]:
    found = array(kind)
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found
