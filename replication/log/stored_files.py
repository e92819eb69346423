"""Files that no longer change: read piece by piece, through a bounded number of descriptors.

Run files and files of timers are as many as the log is long, and a process may open only so many files: so a
file is opened when it is read, and closed when others are read more. They are not mapped into memory: a
sector that cannot be read is then a signal that ends the process, at every start anew, and a page that is not
in memory holds up all threads while the disk gets it. Reading raises ReadFailed instead, as for the log, and
the replica repairs itself.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.log.disk import Disk, File

#: Descriptors for these files of one replica; its log has as many.
DESCRIPTORS: Final = 64


class StoredFile:
    """One of them. Thread-safe. Readable as long as there is a reference, even after its removal."""

    __slots__ = ("__weakref__", "_file", "_files", "name", "recent", "size")

    def __init__(self, files: StoredFiles, name: str, file: File) -> None:
        self.name, self.size = name, file.size()
        self.recent = True  # second chance in the eviction
        self._files = files
        self._file: File | None = file

    def read(self, pos: int, size: int) -> bytes:
        """``size`` bytes from ``pos``. Raises CorruptLog if the file is missing or cut off, and the disk's
        errors, above all ReadFailed."""
        file = self._file
        if file is None:
            file = self._files.opened(self)
        else:
            self.recent = True
        data = file.read(pos, size)
        if len(data) != size:
            raise CorruptLog(f"{self.name}: cut off at byte {pos + len(data)}")
        return data


class StoredFiles:
    """Those of one directory. Thread-safe."""

    def __init__(self, disk: Disk, limit: int = DESCRIPTORS) -> None:
        self.disk, self._limit = disk, limit
        self._lock = Lock()
        self._clock: deque[StoredFile] = deque()  # those that are open
        self._known: WeakValueDictionary[str, StoredFile] = WeakValueDictionary()

    @property
    def descriptors(self) -> int:
        """How many are open."""
        return len(self._clock)

    def file(self, name: str) -> StoredFile:
        """The file of this name, as it is now. Raises CorruptLog if it is missing, and the disk's errors."""
        file = StoredFile(self, name, self._open(name))
        with self._lock:
            self._known[name] = file
            self._admit(file)
        return file

    def opened(self, file: StoredFile) -> File:
        """Open it again. For ``StoredFile``."""
        with self._lock:
            there = file._file
            if there is None:
                there = file._file = self._open(file.name)
                self._admit(file)
        return there

    def retire(self, name: str) -> None:
        """The file is about to be removed: whoever still reads it can go on, until the last one lets it
        go."""
        with self._lock:
            self._clock = deque(file for file in self._clock if file.name != name)
            file = self._known.pop(name, None)
            if file is not None and file._file is None:
                file._file = self._open(name)

    def _open(self, name: str) -> File:
        try:
            return self.disk.open(name)
        except FileNotFoundError:
            raise CorruptLog(f"{name} is missing") from None

    def _admit(self, file: StoredFile) -> None:
        """With the lock. A reader that has just taken an evicted one's descriptor finishes with it."""
        clock = self._clock
        clock.append(file)
        while len(clock) > self._limit:
            oldest = clock.popleft()
            if oldest.recent:
                oldest.recent = False
                clock.append(oldest)
            else:
                oldest._file = None
