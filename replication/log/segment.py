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
from collections.abc import Callable
from typing import Final, NamedTuple

from google_crc32c import value

from escrowmq.replication.errors import CorruptLog, DamagedEntry, OffsetGone, UnknownVersion
from escrowmq.replication.format.entry import HEADER_SIZE, sound_command
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, file_header_is_sound, log_name
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.holes import Hole
from escrowmq.replication.log.sidecar import load_past_holes, load_sealed

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

    Bytes that fail their checksum raise DamagedEntry, and ``on_damage`` is called with their place, in
    whichever thread. ``mendable``: a sealed segment with damaged entries is opened if their places are known.
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
