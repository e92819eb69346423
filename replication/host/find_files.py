"""The ``.find`` files of one replica: one for each block of 65,536 offsets that somebody has searched.

They are a cache. Whatever is wrong with one of them (damaged, half-written, of another version, unreadable),
it is removed, and made anew when it is needed; a failure here never ends the replica. So nothing is synced,
and the files are read with plain reads: a bad sector under a memory map would kill the process.

Of each file only the head is kept in memory, 3 KB for 1 MiB; a look-up reads one page of 4 KiB.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from escrowmq.replication.errors import CorruptLog, DiskFailed, DiskFull, UnknownVersion
from escrowmq.replication.format import find_table
from escrowmq.replication.format.find_table import Head
from escrowmq.replication.log.disk import Disk, File

SUFFIX = ".find"
_TEMPORARY = ".tmp"
#: Upper bound of their number, whatever their size: a file without entries has 40 bytes, but takes a name.
FILES_MAX = 20_000
_UNUSABLE = (CorruptLog, UnknownVersion, DiskFailed, DiskFull, FileNotFoundError)

#: A slot and the number of a block.
Place = tuple[int, int]


class Directory(Protocol):
    """What is needed of a disk."""

    def names(self) -> list[str]: ...

    def open(self, name: str, create: bool = False) -> File: ...

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...


class _NoDisk:
    """Holds nothing, and takes nothing."""

    def names(self) -> list[str]:
        return []

    def open(self, name: str, create: bool = False) -> File:
        raise FileNotFoundError(name)

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        raise FileNotFoundError(old)


class _Known(NamedTuple):
    size: int
    head: Head | None


class FindFiles:
    """Thread-safe. ``dropped`` counts files that were removed because something was wrong with them."""

    def __init__(self, disk: Directory, bytes_max: int) -> None:
        """``bytes_max``: beyond it, the files that were not used for longest go."""
        self._disk, self._bytes_max = disk, bytes_max
        self._lock = threading.Lock()
        self._known: dict[Place, _Known] = {}  # the least recently used first
        self._bytes = 0
        self.dropped = 0
        for name in disk.names():
            place = _place(name)
            if place is None:
                self._remove(name)
                continue
            with contextlib.suppress(*_UNUSABLE):
                self._known[place] = _Known(disk.open(name).size(), None)
                self._bytes += self._known[place].size
        self._make_room(0)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, place: Place) -> bool:
        return place in self._known

    @property
    def bytes(self) -> int:
        """Bytes in all files."""
        return self._bytes

    def candidates(self, place: Place, low: int, since: int) -> list[int] | None:
        """The places within the block that have the hash whose lowest entry is ``low``, in order. None: there
        is no usable file for this block, or one that begins behind the offset ``since``. (A replica that has
        lost its memory has to repeat retention, and until then it has messages that it had not when it wrote
        the file.)"""
        with self._lock:
            known = self._known.pop(place, None)
            if known is None:
                return None
            self._known[place] = known  # now it is the most recently used
            try:
                found = self._candidates(place, known, low, since)
            except _UNUSABLE:
                self._drop(place)
                self.dropped += 1
                return None
            if found is None:
                self._drop(place)
            return found

    def _candidates(self, place: Place, known: _Known, low: int, since: int) -> list[int] | None:
        file = self._disk.open(_name(place))
        try:
            head = known.head
            if head is None:
                entries = find_table.entries_announced(file.read(0, find_table.HEAD.size))
                head = find_table.decode_head(
                    file.read(0, min(find_table.head_bytes(entries), known.size)), known.size
                )
                self._known[place] = _Known(known.size, head)
            if head.first > since:
                return None
            found: list[int] = []
            for number in head.pages_with(low):
                page = find_table.decode_page(file.read(*head.page(number)), head.sums[number])
                found += find_table.places(page, low)
            return found
        finally:
            file.close()

    def put(self, place: Place, first: int, end: int, entries: Sequence[int]) -> bool:
        """Store a block. False: it could not be written."""
        parts = find_table.encode(first, end, entries)
        size = sum(map(len, parts))
        if size > self._bytes_max:
            return False
        name = _name(place)
        try:
            self._disk.remove(name + _TEMPORARY)
            file = self._disk.open(name + _TEMPORARY, create=True)
            try:
                file.append(parts)
            finally:
                file.close()
            with self._lock:
                self._drop(place)
                self._make_room(size)
                self._disk.rename(name + _TEMPORARY, name)
                self._known[place], self._bytes = _Known(size, None), self._bytes + size
        except _UNUSABLE:
            self._remove(name + _TEMPORARY)
            return False
        return True

    def keep(self, is_alive: Callable[[Place], bool]) -> None:
        """Remove the files of blocks that are gone."""
        with self._lock:
            for place in [place for place in self._known if not is_alive(place)]:
                self._drop(place)

    def _make_room(self, size: int) -> None:
        while self._known and (self._bytes + size > self._bytes_max or len(self._known) >= FILES_MAX):
            self._drop(next(iter(self._known)))

    def _drop(self, place: Place) -> None:
        known = self._known.pop(place, None)
        if known is not None:
            self._bytes -= known.size
            self._remove(_name(place))

    def _remove(self, name: str) -> None:
        with contextlib.suppress(*_UNUSABLE):
            self._disk.remove(name)


def opened(disk_of: Callable[[], Disk], bytes_max: int) -> FindFiles:
    """The files of a directory, which may have to be created. If it cannot be used, none: then nothing is
    kept, but searching works."""
    try:
        return FindFiles(disk_of(), bytes_max)
    except (*_UNUSABLE, OSError):
        return FindFiles(_NoDisk(), 0)


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}{SUFFIX}"


def _place(name: str) -> Place | None:
    slot, _, block = name.removesuffix(SUFFIX).partition("-")
    if not (slot.isdecimal() and block.isdecimal()) or _name((int(slot), int(block))) != name:
        return None
    return int(slot), int(block)
