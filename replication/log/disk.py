"""The disk as the log sees it: flat names in one directory, append-only files, explicit syncs.

Everything that must survive a power cut goes through these few calls, so that a simulated disk
(tests/sim/environment/disk.py) can lose exactly what a real one may lose: bytes that were not synced, and
names whose directory was not synced. Failures are reported as three types only: DiskFull (nothing was
written, try again when there is room), FsyncFailed and DiskFailed (the process must end). A failed
sync must never be retried: the kernel drops the dirty pages, and a second sync reports success falsely.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NoReturn, Protocol
from weakref import WeakValueDictionary

from escrowmq.replication.errors import (
    CorruptLog,
    DiskFailed,
    DiskFull,
    FsyncFailed,
    OutOfDescriptors,
    ReadFailed,
)

#: Buffers per system call; Linux refuses more than 1024 (IOV_MAX).
_IOV_MAX: Final = 1024
_END_MAX: Final = 1 << 63
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


class File(Protocol):
    """An append-only file that any thread may read while one thread appends."""

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write all buffers at the end, or none of them (DiskFull, DiskFailed)."""

    def write_at(self, pos: int, data: bytes) -> None:
        """Overwrite bytes that the file already has."""

    def read(self, pos: int, size: int) -> bytes:
        """``size`` bytes from ``pos``; fewer only at the end of the file."""

    def forget(self, pos: int, size: int) -> None:
        """Make the next read of these bytes go to the disk instead of the page cache, where that is possible.
        Unsynced bytes are kept."""

    def size(self) -> int:
        """Bytes in the file, synced or not."""

    def truncate(self, size: int) -> None:
        """Cut the file back to ``size`` bytes. Durable after the next sync."""

    def sync(self) -> None:
        """Make everything written so far durable; FsyncFailed means: end the process."""

    def close(self) -> None:
        """Release the descriptor once the last read in progress has returned."""


class Disk(Protocol):
    """One directory of files without sub-directories. Operations on whole files are built from the rest."""

    def open(self, name: str, create: bool = False) -> File:
        """Open for reading and appending. ``create``: make it if missing (durable after sync_dir)."""

    def names(self) -> list[str]:
        """File names, sorted."""

    def exists(self, name: str) -> bool: ...

    def remove(self, name: str) -> None:
        """Remove the file if it exists. Durable after sync_dir; open files stay readable."""

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing ``new``. Durable after sync_dir."""

    def sync_dir(self) -> None:
        """Make creations, renames and removals durable."""

    def free_bytes(self) -> int: ...

    def write_atomic(self, name: str, parts: Iterable[bytes]) -> None:
        """Replace a whole file: after a crash it is the old one or the new one, durable at return."""
        temporary = name + ".tmp"
        self.remove(temporary)
        file = self.open(temporary, create=True)
        try:
            for part in parts:
                file.append((part,))
        except DiskFull:
            self.remove(temporary)
            raise
        file.sync()
        file.close()
        self.rename(temporary, name)
        self.sync_dir()

    def read_all(self, name: str) -> bytes:
        """The content of a whole file."""
        file = self.open(name)
        return file.read(0, file.size())


class _Descriptor:
    """A file descriptor that closes with its last reference.

    A reader takes a local reference before it reads, so that close() in another thread cannot invalidate
    the descriptor during the read or let its number be reused. CPython frees it immediately.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class RealFile:
    """A file of :class:`RealDisk`. One writer thread; reads from any thread need no lock."""

    __slots__ = ("_descriptor", "_path", "_shrunk", "_size")

    def __init__(self, path: Path, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            number = os.open(path, flags, 0o644)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise_typed(error, f"cannot open {path}")
        self._descriptor: _Descriptor | None = _Descriptor(number)
        self._path = path
        self._size = os.fstat(number).st_size
        self._shrunk = False

    def _held(self) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            raise FileNotFoundError(errno.ENOENT, "file is closed", str(self._path))
        return descriptor

    def append(self, buffers: Sequence[bytes]) -> None:
        descriptor, end = self._held(), self._size
        try:
            for at in range(0, len(buffers), _IOV_MAX):
                end = _write_all(descriptor.number, buffers[at : at + _IOV_MAX], end)
        except OSError as error:
            self._cut_back(error)
        self._size = end

    def _cut_back(self, error: OSError) -> NoReturn:
        """Leave no half-written record behind: the next append starts where this one did."""
        self._shrunk = True
        try:
            os.ftruncate(self._held().number, self._size)
        except OSError as second:
            raise DiskFailed(f"cannot cut {self._path} back to {self._size} bytes: {second}") from error
        raise_typed(error, f"cannot append to {self._path}")

    def write_at(self, pos: int, data: bytes) -> None:
        assert pos + len(data) <= self._size, "write_at never grows a file"
        try:
            _write_all(self._held().number, (data,), pos)
        except OSError as error:
            raise_typed(error, f"cannot write to {self._path}")

    def read(self, pos: int, size: int) -> bytes:
        descriptor = self._held()
        if pos + size >= _END_MAX:
            return b""  # beyond the end of any file: the kernel reports an error, but it is not the disk's
        try:
            return _read_all(descriptor.number, size, pos)
        except OSError:
            pass  # a transient error, or a bad sector: the second attempt tells
        try:
            return _read_all(descriptor.number, size, pos)
        except OSError as error:
            raise ReadFailed(f"cannot read {self._path} at byte {pos}: {error}") from error

    def forget(self, pos: int, size: int) -> None:
        with contextlib.suppress(OSError):  # e.g. a file system without a page cache
            os.posix_fadvise(self._held().number, pos, size, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._held().number, size)
        except OSError as error:
            raise_typed(error, f"cannot truncate {self._path}")
        self._size = size
        self._shrunk = True

    def sync(self) -> None:
        number = self._held().number
        try:
            # fdatasync may leave out a smaller size in the inode; fsync must write it.
            os.fsync(number) if self._shrunk else os.fdatasync(number)
        except OSError as error:
            raise FsyncFailed(f"cannot sync {self._path}: {error}") from error
        self._shrunk = False

    def close(self) -> None:
        self._descriptor = None


class RealDisk(Disk):
    """A directory of the file system. Creates it if missing; raises DiskFull, DiskFailed."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise_typed(error, f"cannot create {self.path}")

    def open(self, name: str, create: bool = False) -> File:
        return RealFile(self.path / name, create)

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        except OSError as error:
            raise_typed(error, f"cannot list {self.path}")

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise_typed(error, f"cannot remove {self.path / name}")

    def rename(self, old: str, new: str) -> None:
        try:
            os.replace(self.path / old, self.path / new)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise_typed(error, f"cannot rename {self.path / old}")

    def sync_dir(self) -> None:
        try:
            number = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise_typed(error, f"cannot open directory {self.path}")
        try:
            os.fsync(number)
        except OSError as error:
            raise FsyncFailed(f"cannot sync directory {self.path}: {error}") from error
        finally:
            os.close(number)

    def free_bytes(self) -> int:
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize


def _read_all(number: int, size: int, pos: int) -> bytes:
    """pread until everything is read, or the file ends."""
    data = os.pread(number, size, pos)
    if len(data) == size:
        return data
    parts = [data]
    while data and (size := size - len(data)):
        pos += len(data)
        data = os.pread(number, size, pos)
        parts.append(data)
    return b"".join(parts)


def _write_all(number: int, buffers: Sequence[bytes], pos: int) -> int:
    """pwritev until everything is written; returns the position after the last byte."""
    wanted = sum(map(len, buffers))
    written = os.pwritev(number, buffers, pos)
    if written == wanted:
        return pos + wanted
    rest = memoryview(b"".join(buffers))[written:]  # rare: a signal, or the disk is nearly full
    pos += written
    while rest:
        written = os.pwrite(number, rest, pos)
        pos, rest = pos + written, rest[written:]
    return pos


def raise_typed(error: OSError, what: str) -> NoReturn:
    if error.errno in _NO_ROOM:
        raise DiskFull(f"{what}: {error.strerror}; free some space, nothing was lost") from error
    if error.errno in _NO_DESCRIPTOR:
        raise OutOfDescriptors(f"{what}: {_limit_of_descriptors(error)}; nothing was lost") from error
    raise DiskFailed(f"{what}: {error.strerror}; restart the replica, or replace the disk") from error


def _limit_of_descriptors(error: OSError) -> str:
    if error.errno == errno.ENFILE:
        return "the machine has too many open files (ENFILE: sysctl fs.file-max); raise that limit"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"this process has {most} open files and connections, and its limit allows no more (EMFILE: "
        "RLIMIT_NOFILE); raise it (ulimit -n, or LimitNOFILE= of a systemd unit) and start the process again"
    )


# ------------------------------------------------------------------------------------------------------------
# Files that no longer change: read piece by piece, through a bounded number of descriptors.
#
# Run files and files of timers are as many as the log is long, and a process may open only so many files: so
# a file is opened when it is read, and closed when others are read more. They are not mapped into memory: a
# sector that cannot be read is then a signal that ends the process, at every start anew, and a page that is
# not in memory holds up all threads while the disk gets it. Reading raises ReadFailed instead, as for the
# log, and the replica repairs itself.

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
