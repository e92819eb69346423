"""Segment files: ``<first index>.log`` holds entries, ``<first index>.pos`` where they begin.

A segment is written by one sync job after the other until it is full, then *sealed*: it never
changes again, and a sidecar with its positions and terms is written so that a restart need not read
the entries. The sidecar is derived data: it carries a checksum, and a missing or bad one is built
again by scanning. At most a bounded number of sealed segments is open at a time, so neither
descriptors nor memory grow with the log.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

from google_crc32c import value

from escrowmq.replication.disk import Disk, File
from escrowmq.replication.entry import HEADER_SIZE, Scan, checked_command, read_entry, scan
from escrowmq.replication.errors import CorruptLog, DiskFull, OffsetGone, UnknownVersion

assert sys.byteorder == "little", "positions are stored as the little-endian machine holds them"

FILE_VERSION: Final = 1
#: magic "EMQS", version, 3 reserved, first index, 12 reserved, CRC32C of the 28 bytes before.
FILE_HEADER: Final = struct.Struct("<4sB3xQ12xI")
FILE_HEADER_SIZE: Final = FILE_HEADER.size
FILE_MAGIC: Final = b"EMQS"
#: magic "EMQP", version, 3 reserved, first index, entries, term runs, CRC32C of everything else.
SIDECAR_HEADER: Final = struct.Struct("<4sB3xQIII")
SIDECAR_MAGIC: Final = b"EMQP"


class SegmentInfo(NamedTuple):
    """A segment as others see it. ``size``: durable bytes. Sealed ones never change: copy them freely."""

    name: str
    first: int
    last: int
    size: int
    sealed: bool


class OpenSegment:
    """What reading needs. ``positions[k]``: where entry first + k begins; the last one: the end."""

    __slots__ = ("file", "positions", "recent", "verified")

    def __init__(self, file: File | None, positions: array[int]) -> None:
        self.file = file  # None: not created yet, everything of it is still queued
        self.positions = positions
        self.verified = bytearray()  # 1 per entry whose checksum this process has seen to be right
        self.recent = True  # second chance for the eviction


class Segment:
    """One row of the journal's table; small, since there is one for every segment of the log."""

    __slots__ = ("durable_size", "first", "last", "opened", "sealed")

    def __init__(self, first: int, last: int, durable_size: int, sealed: bool) -> None:
        self.first, self.last, self.durable_size, self.sealed = first, last, durable_size, sealed
        self.opened: OpenSegment | None = None  # always there while it is not sealed

    @property
    def name(self) -> str:
        return log_name(self.first)


def log_name(first: int) -> str:
    return f"{first:016x}.log"


def sidecar_name(first: int) -> str:
    return f"{first:016x}.pos"


def first_of_name(name: str) -> int | None:
    """First index of a segment file's name; None for any other file."""
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
    """False if torn or damaged; UnknownVersion or CorruptLog if sound but not what belongs here."""
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


def encode_sidecar(first: int, positions: array[int], terms: list[tuple[int, int]]) -> bytes:
    body = positions.tobytes() + array("Q", [n for run in terms for n in run]).tobytes()
    fields = (SIDECAR_MAGIC, FILE_VERSION, first, len(positions) - 1, len(terms))
    crc = value(SIDECAR_HEADER.pack(*fields, 0)[:-4] + body)
    return SIDECAR_HEADER.pack(*fields, crc) + body


def decode_sidecar(data: bytes, first: int) -> Scan | None:
    """Positions and terms, or None if the sidecar is damaged, of another version or another segment."""
    head = SIDECAR_HEADER.size
    if len(data) < head:
        return None
    magic, version, found, entries, runs, crc = SIDECAR_HEADER.unpack_from(data)
    border = head + 4 * (entries + 1)
    if (magic, version, found) != (SIDECAR_MAGIC, FILE_VERSION, first) or len(data) != border + 16 * runs:
        return None
    if value(data[: head - 4] + data[head:]) != crc:
        return None
    positions, flat = array("I"), array("Q")
    positions.frombytes(data[head:border])
    flat.frombytes(data[border:])
    return Scan(positions, list(zip(flat[::2], flat[1::2], strict=True)))


def write_sidecar(disk: Disk, first: int, positions: array[int], terms: list[tuple[int, int]]) -> None:
    """Not synced: losing it costs a scan. A full disk is no reason to fail, the next restart scans."""
    name = sidecar_name(first)
    try:
        disk.remove(name)
        file = disk.open(name, create=True)
        file.append((encode_sidecar(first, positions, terms),))
        file.close()
    except DiskFull:
        disk.remove(name)


def load_sealed(disk: Disk, first: int, file: File) -> Scan:
    """Positions and terms of a sealed segment: from its sidecar, else by a scan that rebuilds it.

    Raises CorruptLog, naming file and byte, if an entry is unsound: nothing of a sealed segment may be.
    """
    name, sidecar = log_name(first), sidecar_name(first)
    found = decode_sidecar(disk.read_all(sidecar), first) if disk.exists(sidecar) else None
    if found is not None and _sidecar_fits(file, found, first):
        return found
    data = memoryview(file.read(0, file.size()))
    if not file_header_is_sound(data, first, name):
        raise CorruptLog(f"{name} has a damaged file header at byte 0; repair this replica from a peer")
    try:
        found = scan(data, FILE_HEADER_SIZE, first)
    except (CorruptLog, UnknownVersion) as error:
        raise type(error)(f"{name}: {error}") from error
    if found.problem is not None:
        raise CorruptLog(f"{name}: {found.problem} of {len(data)}; repair this replica from a peer")
    write_sidecar(disk, first, found.positions, found.terms)
    return found


def _sidecar_fits(file: File, found: Scan, first: int) -> bool:
    """The sidecar speaks of this file: same size, and its last entry is where and what it says."""
    if found.end != file.size() or len(found.positions) < 2:
        return False
    at = found.positions[-2]
    header = read_entry(memoryview(file.read(at, found.end - at)), 0)
    if header is None:
        return False
    return header.index == first + len(found.positions) - 2 and header.term == found.terms[-1][1]


class SegmentTable(NamedTuple):
    """All segments, replaced as a whole when one is added or dropped, so that readers need no lock."""

    firsts: list[int]
    segments: list[Segment]

    def find(self, index: int) -> Segment | None:
        k = bisect_right(self.firsts, index) - 1
        return self.segments[k] if k >= 0 else None


class SegmentReader:
    """Reads entries of any segment from any thread; opens sealed segments on demand, ``limit`` at a time."""

    def __init__(self, disk: Disk, limit: int) -> None:
        assert limit >= 1
        self._disk, self._limit = disk, limit
        self._lock = threading.Lock()
        self._clock: deque[Segment] = deque()

    def admit(self, segment: Segment) -> None:
        """A segment was sealed: from now on it may be closed when others are wanted."""
        with self._lock:
            self._clock.append(segment)
            self._evict()

    def open(self, segment: Segment) -> OpenSegment:
        opened = segment.opened
        if opened is not None:
            opened.recent = True
            return opened
        with self._lock:
            opened = segment.opened
            if opened is None:
                file = self._disk.open(segment.name)
                opened = OpenSegment(file, load_sealed(self._disk, segment.first, file).positions)
                segment.opened = opened
                self._clock.append(segment)
                self._evict()
        return opened

    def forget(self) -> None:
        """Close everything (the journal closes)."""
        with self._lock:
            for segment in self._clock:
                segment.opened = None
            self._clock.clear()

    def _evict(self) -> None:
        """Second-chance eviction. Readers that hold an OpenSegment finish; its file closes after them."""
        clock = self._clock
        while len(clock) > self._limit:
            segment = clock.popleft()
            opened = segment.opened
            if opened is None or not segment.sealed:  # dropped, or being written again after a cut
                continue
            if opened.recent:
                opened.recent = False
                clock.append(segment)
            else:
                segment.opened = None

    def read_entry(self, segment: Segment, index: int) -> bytes:
        """The whole command, its checksum verified."""
        opened, start, end = self._locate(segment, index)
        return self._checked(segment, opened, index, start, end)

    def read_slice(self, segment: Segment, index: int, pos: int, size: int) -> bytes:
        """``size`` bytes of a command from ``pos`` on, with one read.

        An entry's checksum is verified the first time this process reads from it; after that the
        slice alone is read. Re-reading the whole entry for every slice would cost a fetch of 16 KB
        out of a 1 MB group commit sixty times the bytes.
        """
        opened, start, end = self._locate(segment, index)
        if pos < 0 or size < 0 or pos + size > end - start - HEADER_SIZE:
            raise ValueError(
                f"entry {index} has {end - start - HEADER_SIZE} bytes, not [{pos}, {pos + size})"
            )
        k = index - segment.first
        verified = opened.verified
        if k < len(verified) and verified[k]:
            data = _file(opened, index).read(start + HEADER_SIZE + pos, size)
            if len(data) != size:
                raise CorruptLog(f"{segment.name} ends inside entry {index} at byte {start}")
            return data
        return self._checked(segment, opened, index, start, end)[pos : pos + size]

    def read_run(self, segment: Segment, first: int, last: int) -> list[bytes]:
        """Commands of neighbouring entries with one read, checksums verified."""
        opened, start, _ = self._locate(segment, first)
        _, _, end = self._locate(segment, last)
        raw = _file(opened, first).read(start, end - start)
        positions, k = opened.positions, first - segment.first
        commands = []
        for index in range(first, last + 1):
            part = raw[positions[k] - start : positions[k + 1] - start]
            commands.append(checked_command(part, index, f"{segment.name} at byte {positions[k]}"))
            k += 1
        return commands

    def _locate(self, segment: Segment, index: int) -> tuple[OpenSegment, int, int]:
        try:
            opened = self.open(segment)
            k = index - segment.first
            return opened, opened.positions[k], opened.positions[k + 1]
        except (IndexError, FileNotFoundError):
            raise OffsetGone(f"log entry {index} is not here") from None

    def _checked(self, segment: Segment, opened: OpenSegment, index: int, start: int, end: int) -> bytes:
        raw = _file(opened, index).read(start, end - start)
        command = checked_command(raw, index, f"{segment.name} at byte {start}")
        k = index - segment.first
        if k >= len(opened.verified):
            with self._lock:
                opened.verified.extend(bytes(max(0, len(opened.positions) - len(opened.verified))))
        opened.verified[k] = 1
        return command


def _file(opened: OpenSegment, index: int) -> File:
    if opened.file is None:
        raise OffsetGone(f"log entry {index} is not here")
    return opened.file
