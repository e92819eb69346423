"""Segments in memory: a table of them, and reading entries from them in any thread.

A segment is written by one sync job after the other until it is full, then *sealed*: it never
changes again. Only a bounded number of sealed segments is open at a time, so neither descriptors
nor memory grow with the log. A reader never needs a lock: the table is replaced as a whole, and a
file closes only when the last reader that holds it has finished.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from google_crc32c import value

from escrowmq.replication.errors import CorruptLog, DamagedEntry, DiskFull, OffsetGone, UnknownVersion
from escrowmq.replication.format.entry import HEADER_SIZE, Scan, read_entry, scan, sound_command
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    decode_sidecar,
    encode_sidecar,
    file_header_is_sound,
    log_name,
    sidecar_name,
)
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.holes import Hole, check_known, scan_past

# ------------------------------------------------------------------------------------------------------------
# Positions and terms of a sealed segment, from its sidecar, so that a restart does not scan the entries.
#
# A sidecar is derived data. It carries a checksum, and a missing or bad one is rebuilt by scanning the
# segment, with every entry's checksum verified.
#
# With a good sidecar a damaged entry affects only itself: its position, its length and its term are known.


def write_sidecar(
    disk: Disk,
    first: int,
    positions: array[int],
    terms: list[tuple[int, int]],
    members: Sequence[tuple[int, bytes]],
) -> None:
    """Not synced: losing it costs a scan. On a full disk there is no sidecar, and the next restart scans.

    ``members``: the segment's entries that hold the group's members, which a start must know.
    """
    name = sidecar_name(first)
    try:
        disk.remove(name)
        file = disk.open(name, create=True)
        file.append((encode_sidecar(first, positions, terms, members),))
        file.close()
    except DiskFull:
        disk.remove(name)


def load_sealed(disk: Disk, first: int, file: File) -> Scan:
    """Positions and terms of a sealed segment: from its sidecar, else by a scan that rebuilds it.

    Raises CorruptLog, naming file and byte, if an entry is unsound: in a sealed segment none may be.
    """
    name = log_name(first)
    found = _read_sidecar(disk, first)
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
    write_sidecar(disk, first, found.positions, found.terms, found.members)
    return found


def load_past_holes(disk: Disk, first: int, last: int, file: File) -> tuple[Scan, list[Hole]]:
    """As ``load_sealed``, for a segment that ends with entry ``last``, skipping damaged entries.

    A sidecar that matches the file's size and its last entry is trusted without checking the rest.
    Raises CorruptLog or UnknownVersion if the positions cannot be determined.
    """
    found = _read_sidecar(disk, first)
    if found is not None and _sidecar_fits(file, found, first):
        return found, []
    found, holes = survey_sealed(disk, first, last, file)
    if holes and holes[0].is_header:  # reading entries does not need it, but all other checks do
        raise CorruptLog(
            f"{log_name(first)} has a damaged file header at byte 0; repair this replica from a peer"
        )
    if not holes:
        write_sidecar(disk, first, found.positions, found.terms, found.members)
    return found, holes


def survey_sealed(disk: Disk, first: int, last: int, file: File) -> tuple[Scan, list[Hole]]:
    """What a sealed segment that ends with entry ``last`` holds, every checksum verified, and its holes.

    Changes nothing. Raises CorruptLog or UnknownVersion if the positions cannot be determined.
    """
    name = log_name(first)
    data = memoryview(file.read(0, file.size()))
    header = []
    if not file_header_is_sound(data, first, name):
        header = [Hole(first, first, first - 1, 0, FILE_HEADER_SIZE)]
    found = _read_sidecar(disk, first)
    if (
        found is not None
        and len(found.positions) == last + 2 - first
        and found.terms[:1]
        and found.terms[0][0] == first
    ):
        return found, header + check_known(data, first, found)
    try:
        found, holes = scan_past(data, first, last)
    except (CorruptLog, UnknownVersion) as error:
        raise type(error)(f"{name}: {error}") from error
    return found, header + holes


def sidecar_is_sound(disk: Disk, first: int, last: int) -> bool:
    """Whether it exists, is sound, and describes this number of entries."""
    found = _read_sidecar(disk, first)
    return found is not None and len(found.positions) == last + 2 - first


def _read_sidecar(disk: Disk, first: int) -> Scan | None:
    name = sidecar_name(first)
    try:
        return decode_sidecar(disk.read_all(name), first) if disk.exists(name) else None
    except FileNotFoundError:  # retention has removed it meanwhile
        return None


def _sidecar_fits(file: File, found: Scan, first: int) -> bool:
    """Whether the sidecar describes this file: same size, and its last entry matches in place and term."""
    if found.end != file.size() or len(found.positions) < 2 or not found.terms:
        return False
    at = found.positions[-2]
    if found.terms[0][0] != first or at > found.end:
        return False
    header = read_entry(memoryview(file.read(at, found.end - at)), 0)
    if header is None:
        return False
    return header.index == first + len(found.positions) - 2 and header.term == found.terms[-1][1]


#: The least that a slice of a large entry reads. Each block costs four bytes of memory.
BLOCK_BYTES: Final = 8 << 10


class SegmentInfo(NamedTuple):
    """A segment as others see it. ``size``: durable bytes. Sealed ones never change: copy them freely."""

    name: str
    first: int
    last: int
    size: int
    sealed: bool


class OpenSegment:
    """What reading needs. ``positions[k]``: where entry first + k begins; the last one: the end."""

    __slots__ = ("file", "positions", "recent", "sums")

    def __init__(self, file: File | None, positions: array[int]) -> None:
        self.file = file  # None: not created yet, all of its entries are still queued
        self.positions = positions
        #: A checksum per block of large entries that this process has read whole and verified.
        self.sums: dict[int, array[int]] = {}
        self.recent = True  # second chance in the eviction


class Segment:
    """One row of the journal's table; small, since every segment of the log has one."""

    __slots__ = ("durable_size", "first", "last", "opened", "sealed")

    def __init__(self, first: int, last: int, durable_size: int, sealed: bool) -> None:
        self.first, self.last, self.durable_size, self.sealed = first, last, durable_size, sealed
        self.opened: OpenSegment | None = None  # always set while it is not sealed

    @property
    def name(self) -> str:
        return log_name(self.first)


class SegmentTable(NamedTuple):
    """All segments, replaced as a whole when one is added or dropped, so that readers need no lock."""

    firsts: list[int]
    segments: list[Segment]

    def find(self, index: int) -> Segment | None:
        k = bisect_right(self.firsts, index) - 1
        return self.segments[k] if k >= 0 else None

    def infos(self, last_index: int) -> list[SegmentInfo]:
        """All rows for others, the log ending at ``last_index``."""
        lasts = [first - 1 for first in self.firsts[1:]] + [last_index]
        return [
            SegmentInfo(row.name, row.first, last, row.durable_size, row.sealed)
            for row, last in zip(self.segments, lasts, strict=False)
        ]


class SegmentReader:
    """Reads entries of any segment from any thread; opens sealed segments on demand, ``limit`` at a time.

    Bytes that fail their checksum raise DamagedEntry, and ``on_damage`` is called with their position, in
    whichever thread. ``mendable``: a sealed segment with damaged entries is opened if their positions are
    known.
    """

    def __init__(
        self,
        disk: Disk,
        limit: int,
        on_damage: Callable[[Hole], None] = lambda hole: None,
        *,
        mendable: bool = False,
    ) -> None:
        assert limit >= 1
        self._disk, self._limit, self._on_damage, self._mendable = disk, limit, on_damage, mendable
        self._lock = threading.Lock()
        self._closed = False
        self._clock: deque[Segment] = deque()

    def admit(self, segment: Segment) -> None:
        """A segment was sealed: from now on it may be closed to make room for others."""
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
                if self._closed:
                    raise OffsetGone("the log is closed")
                opened = segment.opened = self._load(segment)
                self._clock.append(segment)
                self._evict()
        return opened

    def _load(self, segment: Segment) -> OpenSegment:
        file, first = self._disk.open(segment.name), segment.first
        if not self._mendable:
            return OpenSegment(file, load_sealed(self._disk, first, file).positions)
        found, holes = load_past_holes(self._disk, first, segment.last, file)
        for hole in holes:
            if hole.first != hole.last or hole.end <= hole.start:
                raise CorruptLog(
                    f"{segment.name}: entries {hole.first} to {hole.last} are damaged at byte {hole.start}; "
                    "they must be mended from a peer before this replica can continue"
                )
            self._on_damage(hole)
        return OpenSegment(file, found.positions)

    def close(self, segments: list[Segment]) -> None:
        """Close all files; reads in progress finish, later ones fail."""
        with self._lock:
            self._closed = True
            for segment in [*self._clock, *segments]:
                segment.opened = None
            self._clock.clear()

    def _evict(self) -> None:
        """Second-chance eviction. Readers that hold an OpenSegment finish first; then its file closes."""
        clock = self._clock
        while len(clock) > self._limit:
            segment = clock.popleft()
            opened = segment.opened
            if opened is None or not segment.sealed:  # dropped, or written again after a cut
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

        Nothing is returned unchecked, not even what was sound before: disks rot while a process runs. A
        large entry is read whole once; from then on each of its blocks has its own checksum, and a
        slice reads the blocks it covers. Re-reading the whole entry for every slice would cost a fetch of
        16 KB out of a 1 MB group commit sixty times the bytes.
        """
        opened, start, end = self._locate(segment, index)
        if pos < 0 or size < 0 or pos + size > end - start - HEADER_SIZE:
            raise ValueError(
                f"entry {index} has {end - start - HEADER_SIZE} bytes, not [{pos}, {pos + size})"
            )
        sums = opened.sums.get(index)
        if sums is None:
            return self._checked(segment, opened, index, start, end)[pos : pos + size]
        first, last = pos // BLOCK_BYTES, max(pos, pos + size - 1) // BLOCK_BYTES
        low, high = first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, end - start - HEADER_SIZE)
        data = _file(opened, index).read(start + HEADER_SIZE + low, high - low)
        if len(data) != high - low or _block_sums(data) != sums[first : last + 1]:
            self._on_damage(Hole(segment.first, index, index, start, end))
            raise DamagedEntry(
                f"entry {index} in {segment.name} at byte {start} has changed since it was read; "
                "repair this replica from a peer"
            )
        return data[pos - low : pos - low + size]

    def run_within(self, segment: Segment, index: int, max_bytes: int, durable: int) -> int:
        """Last entry of a run from ``index`` on: in this segment, on disk, at most ``max_bytes``."""
        positions = self.open(segment).positions
        first = index - segment.first
        stop = min(len(positions) - 1, durable + 1 - segment.first)  # one past the last candidate
        fits = bisect_right(positions, positions[first] + max_bytes, first + 1, stop + 1) - 1
        return segment.first + max(first, fits - 1)

    def read_run(self, segment: Segment, first: int, last: int) -> list[bytes]:
        """Commands of consecutive entries with one read, checksums verified; ends before a damaged one."""
        opened, start, _ = self._locate(segment, first)
        _, _, end = self._locate(segment, last)
        raw = _file(opened, first).read(start, end - start)
        positions, k = opened.positions, first - segment.first
        commands: list[bytes] = []
        for index in range(first, last + 1):
            part = raw[positions[k] - start : positions[k + 1] - start]
            try:
                commands.append(self._verified(segment, part, index, positions[k], positions[k + 1]))
            except DamagedEntry:
                if not commands:
                    raise
                break
            k += 1
        return commands

    def verify_run(self, segment: Segment, first: int, last: int, *, cold: bool) -> int:
        """Read consecutive entries again, including damaged ones; returns the bytes read. ``cold``: from the
        disk itself, not from the page cache."""
        opened, start, _ = self._locate(segment, first)
        _, _, end = self._locate(segment, last)
        if cold and segment.sealed:
            _file(opened, first).forget(start, end - start)
        raw = _file(opened, first).read(start, end - start)
        positions = opened.positions
        for k in range(first - segment.first, last + 1 - segment.first):
            part = raw[positions[k] - start : positions[k + 1] - start]
            try:
                self._verified(segment, part, segment.first + k, positions[k], positions[k + 1])
            except DamagedEntry:
                continue
        return end - start

    def header_is_sound(self, segment: Segment) -> bool:
        """Whether the file begins with its segment's header."""
        data = memoryview(_file(self.open(segment), segment.first).read(0, FILE_HEADER_SIZE))
        try:
            return file_header_is_sound(data, segment.first, segment.name)
        except UnknownVersion:
            return False

    def read_raw(self, segment: Segment, index: int) -> bytes:
        """A whole entry as it is in the file, its checksum verified."""
        opened, start, end = self._locate(segment, index)
        raw = _file(opened, index).read(start, end - start)
        self._verified(segment, raw, index, start, end)
        return raw

    def _locate(self, segment: Segment, index: int) -> tuple[OpenSegment, int, int]:
        try:
            opened = self.open(segment)
            k = index - segment.first
            return opened, opened.positions[k], opened.positions[k + 1]
        except (IndexError, FileNotFoundError):
            raise OffsetGone(f"log entry {index} is not here") from None

    def _checked(self, segment: Segment, opened: OpenSegment, index: int, start: int, end: int) -> bytes:
        raw = _file(opened, index).read(start, end - start)
        command = self._verified(segment, raw, index, start, end)
        if len(command) >= 2 * BLOCK_BYTES and index not in opened.sums:
            opened.sums[index] = _block_sums(command)
        return command

    def _verified(self, segment: Segment, raw: bytes, index: int, start: int, end: int) -> bytes:
        command = sound_command(raw, index)
        if command is None:
            self._on_damage(Hole(segment.first, index, index, start, end))
            raise DamagedEntry(
                f"entry {index} in {segment.name} at byte {start} fails its checksum; "
                "repair this replica from a peer"
            )
        return command


def _block_sums(data: bytes) -> array[int]:
    return array("I", [value(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)])


def _file(opened: OpenSegment, index: int) -> File:
    if opened.file is None:
        raise OffsetGone(f"log entry {index} is not here")
    return opened.file
