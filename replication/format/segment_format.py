"""Bytes of the segment files: ``<first index>.log`` holds entries, ``<first index>.pos`` their positions.

The sidecar (.pos) belongs to a sealed segment, which never changes again, so that a restart does not have to
read the entries (log/segment.py). docs/log-format.md shows both files byte by byte.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from google_crc32c import extend, value

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.entry import (
    HEADER,
    HEADER_SIZE,
    EntryHeader,
    Scan,
    check_sequence,
    scan,
    sound_header,
)

assert sys.byteorder == "little", "positions are stored as a little-endian machine holds them"

FILE_VERSION: Final = 1
#: magic "EMQS", version, 3 reserved, first index, 12 reserved, CRC32C of the 28 bytes before it.
FILE_HEADER: Final = struct.Struct("<4sB3xQ12xI")
FILE_HEADER_SIZE: Final = FILE_HEADER.size
FILE_MAGIC: Final = b"EMQS"
#: magic "EMQP", version, 3 reserved, first index, entries, term runs, CRC32C of everything else. The sidecar
#: of a segment that holds configurations of the group has version 2, and ends with them.
SIDECAR_HEADER: Final = struct.Struct("<4sB3xQIII")
SIDECAR_MAGIC: Final = b"EMQP"
SIDECAR_WITH_MEMBERS: Final = 2
_MEMBERS: Final = struct.Struct("<QI")  # index, bytes of the command


def log_name(first: int) -> str:
    return f"{first:016x}.log"


def sidecar_name(first: int) -> str:
    return f"{first:016x}.pos"


def first_of_name(name: str) -> int | None:
    """First index from a segment file's name; None for any other file."""
    stem, dot, kind = name.partition(".")
    if kind != "log" or not dot or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def encode_file_header(first: int) -> bytes:
    head = FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, first, 0)[:-4]
    crc: int = value(head)
    return head + crc.to_bytes(4, "little")


def file_header_is_sound(data: memoryview, first: int, name: str) -> bool:
    """False if torn or damaged. Raises UnknownVersion or CorruptLog if it is sound but wrong for this
    file."""
    if len(data) < FILE_HEADER_SIZE:
        return False
    magic, version, found, crc = FILE_HEADER.unpack_from(data)
    if magic != FILE_MAGIC or value(bytes(data[: FILE_HEADER_SIZE - 4])) != crc:
        return False
    if version != FILE_VERSION:
        raise UnknownVersion(
            f"{name} has format version {version}; this software reads {FILE_VERSION}: upgrade it"
        )
    if found != first:
        raise CorruptLog(f"{name} says its first entry is {found}: the file was renamed or copied over")
    return True


def encode_sidecar(
    first: int,
    positions: array[int],
    terms: list[tuple[int, int]],
    members: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """``members``: the commands of membership entries, with their indexes."""
    body = positions.tobytes() + array("Q", [n for run in terms for n in run]).tobytes()
    body += b"".join(_MEMBERS.pack(index, len(command)) + command for index, command in members)
    version = SIDECAR_WITH_MEMBERS if members else FILE_VERSION
    fields = (SIDECAR_MAGIC, version, first, len(positions) - 1, len(terms))
    crc = value(SIDECAR_HEADER.pack(*fields, 0)[:-4] + body)
    return SIDECAR_HEADER.pack(*fields, crc) + body


def decode_sidecar(data: bytes, first: int) -> Scan | None:
    """What a scan would find; None if the sidecar is damaged, of another version or for another segment."""
    head = SIDECAR_HEADER.size
    if len(data) < head:
        return None
    magic, version, found, entries, runs, crc = SIDECAR_HEADER.unpack_from(data)
    border = head + 4 * (entries + 1)
    end = border + 16 * runs
    if (magic, found) != (SIDECAR_MAGIC, first) or len(data) < end:
        return None
    if version not in (FILE_VERSION, SIDECAR_WITH_MEMBERS) or (version == FILE_VERSION and len(data) != end):
        return None
    if value(data[: head - 4] + data[head:]) != crc:
        return None
    positions, flat = array("I"), array("Q")
    positions.frombytes(data[head:border])
    flat.frombytes(data[border:end])
    terms = list(zip(flat[::2], flat[1::2], strict=True))
    if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(terms)):
        return None
    members = _decode_members(data, end, first, first + entries - 1)
    return None if members is None else Scan(positions, terms, members=members)


def _decode_members(data: bytes, at: int, first: int, last: int) -> list[tuple[int, bytes]] | None:
    members = list[tuple[int, bytes]]()
    while at < len(data):
        if at + _MEMBERS.size > len(data):
            return None
        index, size = _MEMBERS.unpack_from(data, at)
        at += _MEMBERS.size
        if at + size > len(data) or not first <= index <= last:
            return None
        members.append((index, data[at : at + size]))
        at += size
    return members


# ------------------------------------------------------------------------------------------------------------
# Reads a whole log file entry by entry, in bounded memory, however large the file or one of its entries is.
#
# As ``entry.scan``, which wants all bytes at once, but keeps no positions.

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
            check_sequence(header, index, term, at)
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
