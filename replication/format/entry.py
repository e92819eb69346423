"""One log entry on disk: a 32-byte header and the Raft command. docs/log-format.md has the bytes.

The checksum covers the header too, so a wrong length, index or term is detected like a wrong body. It
is verified wherever an entry is read whole from disk. Nothing here decides what a bad entry means
(log/holes.py does for the tail; everywhere else it is corruption).
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import Final

from google_crc32c import extend, value

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.codec import MEMBERSHIP

MAGIC: Final = b"EMQ1"
VERSION: Final = 1
#: The only kind of version 1: a Raft entry.
KIND_ENTRY: Final = 0
#: magic, version, kind, unsynced, command bytes, checksum, term, index.
HEADER: Final = struct.Struct("<IBBHIIQQ")
HEADER_SIZE: Final = HEADER.size
#: The header without its checksum field: what the checksum covers ahead of the command.
_COVERED: Final = struct.Struct("<IBBHIQQ")
_MAGIC: Final = int.from_bytes(MAGIC, "little")
#: ``unsynced`` is 16 bits wide and stops counting here.
UNSYNCED_MAX: Final = 0xFFFF

_pack_covered, _pack = _COVERED.pack, HEADER.pack


def encode_header(command: bytes, index: int, term: int, unsynced: int) -> bytes:
    """The 32 bytes before ``command``; ``unsynced``: how many entries before it the same sync covers."""
    size = len(command)
    crc = extend(value(_pack_covered(_MAGIC, VERSION, KIND_ENTRY, unsynced, size, term, index)), command)
    return _pack(_MAGIC, VERSION, KIND_ENTRY, unsynced, size, crc, term, index)


@dataclass(slots=True)
class EntryHeader:
    """A header whose checksum was correct."""

    index: int
    term: int
    unsynced: int
    size: int

    @property
    def batch_first(self) -> int:
        """First entry that the same sync covers; everything before it was already durable."""
        return self.index - self.unsynced


def read_entry(data: memoryview, at: int) -> EntryHeader | None:
    """The header of the entry at ``at``, or None unless the whole entry is there with a correct checksum.

    Raises UnknownVersion for a sound entry of a newer version: magic, version, length and checksum
    keep their positions in every version.
    """
    body = at + HEADER_SIZE
    if body > len(data):
        return None
    magic, version, kind, unsynced, size, crc, term, index = HEADER.unpack_from(data, at)
    if magic != _MAGIC or body + size > len(data):
        return None
    header = bytes(data[at:body])
    if extend(value(header[:12] + header[16:]), bytes(data[body : body + size])) != crc:
        return None
    _check_version(version, kind)
    return EntryHeader(index, term, unsynced, size)


def sound_header(header: bytes, crc: int) -> EntryHeader | None:
    """The header, if ``crc`` is that of its entry, which its caller has summed. Raises as ``read_entry``."""
    magic, version, kind, unsynced, size, stored, term, index = HEADER.unpack(header)
    if magic != _MAGIC or stored != crc:
        return None
    _check_version(version, kind)
    return EntryHeader(index, term, unsynced, size)


def sound_command(raw: bytes, index: int) -> bytes | None:
    """The command, if ``raw`` is exactly the sound entry ``index``; else None. Raises as ``read_entry``."""
    if len(raw) < HEADER_SIZE:
        return None
    magic, version, kind, _, size, crc, _, found = HEADER.unpack_from(raw)
    command = raw[HEADER_SIZE:]
    if magic != _MAGIC or size != len(command):
        return None
    if extend(value(raw[:12] + raw[16:HEADER_SIZE]), command) != crc:
        return None
    _check_version(version, kind)
    return command if found == index else None


def _check_version(version: int, kind: int) -> None:
    if version != VERSION or kind != KIND_ENTRY:
        raise UnknownVersion(
            f"entry of format version {version}, kind {kind}; this software reads {VERSION}: upgrade it"
        )


@dataclass(slots=True)
class Scan:
    """What a run of entries holds. ``positions`` has one extra element: where the sound part ends."""

    positions: array[int]
    terms: list[tuple[int, int]] = field(default_factory=list)  # (first index, term), one per change
    #: Why the scan stopped before the end of the data, or None.
    problem: str | None = None
    #: Entries that hold the group's members (format/membership.py): (index, command).
    members: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.positions[-1]


def check_sequence(header: EntryHeader, index: int, term: int, at: int) -> None:
    """Raise CorruptLog unless the entry at byte ``at`` of the file is the one that belongs there."""
    if header.index != index or header.term < term:
        raise CorruptLog(
            f"byte {at}: entry {header.index} of term {header.term} "
            f"where entry {index} of term >= {term} belongs"
        )


def scan(data: memoryview, start: int, first: int, *, term: int = -1, base: int = 0) -> Scan:
    """Read entries from byte ``start`` on; the first has index ``first``. Verifies every checksum. If the
    data are not the whole file, ``term`` is that of the entry before, and ``base`` where they begin.

    A sound entry out of sequence (index not in sequence, or a falling term) is corruption and raises
    CorruptLog; the caller decides about an unsound one, at ``Scan.end``.
    """
    positions = array("I", [start])
    result = Scan(positions)
    at, index, end = start, first, len(data)
    while at < end:
        header = read_entry(data, at)
        if header is None:
            result.problem = f"no sound entry at byte {base + at}"
            break
        if header.index != index or header.term < term:  # called only then: this runs for every entry
            check_sequence(header, index, term, base + at)
        if header.term != term:
            term = header.term
            result.terms.append((index, term))
        if header.size and data[at + HEADER_SIZE] == MEMBERSHIP:
            result.members.append((index, bytes(data[at + HEADER_SIZE : at + HEADER_SIZE + header.size])))
        at += HEADER_SIZE + header.size
        index += 1
        positions.append(at)
    return result
