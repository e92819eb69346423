"""Reads a whole log file entry by entry, in bounded memory, however large the file or one of its entries is.

As ``entry.scan``, which wants all bytes at once, but keeps no positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google_crc32c import extend, value

from escrowmq.replication.format.entry import (
    HEADER,
    HEADER_SIZE,
    EntryHeader,
    check_place,
    scan,
    sound_header,
)
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE

#: What is read at once. An entry that is longer is summed in pieces of this size.
WINDOW_BYTES: Final = 4 << 20

#: Reads ``size`` bytes at ``pos``, fewer at the end of the file.
Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Walked:
    """``last``: term and index of the last sound entry, None: none. ``end``: where the sound part ends.
    ``problem``: why it ends before the file does, or None."""

    last: tuple[int, int] | None
    end: int
    problem: str | None


def walk(read: Read, size: int, first: int, window: int = WINDOW_BYTES) -> Walked:
    """Verify every checksum of a log file of ``size`` bytes whose first entry has index ``first``. Raises
    CorruptLog and UnknownVersion as ``scan``."""
    at, index, term = FILE_HEADER_SIZE, first, -1
    last: tuple[int, int] | None = None
    while at < size:
        data = read(at, min(window, size - at))
        found = scan(memoryview(data), 0, index, term=term, base=at)
        count, length = len(found.positions) - 1, found.end
        if count:
            term = found.terms[-1][1] if found.terms else term
        else:
            header = _long_entry(read, at, data, size, window)
            if header is None:
                return Walked(last, at, f"no sound entry at byte {at}")
            check_place(header, index, term, at)
            count, length, term = 1, HEADER_SIZE + header.size, header.term
        at, index = at + length, index + count
        last = term, index - 1
    return Walked(last, at, None)


def _long_entry(read: Read, at: int, data: bytes, size: int, window: int) -> EntryHeader | None:
    """The header of an entry that is longer than the window, if it is sound."""
    if len(data) < max(window, HEADER_SIZE):
        return None  # the file ends here, within the entry
    header = data[:HEADER_SIZE]
    end = at + HEADER_SIZE + HEADER.unpack(header)[4]
    if end <= at + window or end > size:
        return None
    crc = value(header[:12] + header[16:])
    for pos in range(at + HEADER_SIZE, end, window):
        crc = extend(crc, read(pos, min(window, end - pos)))
    return sound_header(header, crc)
