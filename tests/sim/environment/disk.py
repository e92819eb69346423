"""A disk in memory that keeps what a real disk must keep, and may lose everything that a real one may lose.

``kill()`` ends the process only: the page cache survives. ``power_cut()`` loses, at random but
reproducibly (``rng``), what was not synced: each file keeps a prefix of its unsynced writes with the
last one torn at any byte, or all of them with some sectors reading as zeros, and some of those written in
place as they were before (pages reach the disk in any order); each creation, rename or removal since the
last ``sync_dir`` survives or not, independently or as a prefix. Files survive independently of each other,
whatever the order of writes.

A failed sync drops some or all dirty bytes and reports that only once, as Linux does: the page cache still
shows them, marked clean, to this process and to the next one until a reboot, until the pages are evicted
(``kill`` may do that) or the power fails. Writing them again makes them dirty again. Sizes and names are
different: a journaling file system that cannot write its journal stops, so a failed ``sync_dir`` must be
followed by ``power_cut``.

Faults: ``capacity`` (ENOSPC), ``fail_next`` (EIO on any one operation), ``stop_after`` (power fails at the
n-th operation from now). The first two call back when they strike, since the operation may never happen; a
crash cancels them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from escrowmq.replication.errors import DiskFailed, DiskFull, FsyncFailed
from escrowmq.replication.log.disk import Disk, File

SECTOR = 512
PAGE = 4096


class PowerCut(BaseException):
    """The machine stops here. Not an Exception: no handler of the code under test may survive it."""


@dataclass
class _Inode:
    """A file. ``data``: the page cache; ``durable``: the platter; ``pending``: the writes between them."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (pos, bytes); None: truncate
    dropped: bool = False  # a sync failed: the page cache may show what the platter lacks

    def write(self, pos: int, data: bytes) -> None:
        self.data[pos : pos + len(data)] = data
        self.pending.append((pos, data))

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.pending.append((size, None))

    def sync(self) -> None:
        for pos, data in self.pending:
            _apply(self.durable, pos, data)
        self.pending.clear()

    def fail_sync(self, rng: random.Random) -> None:
        """Some dirty bytes reach the platter, the others are lost; new sizes stay in the journal."""
        share, pending, self.pending = rng.choice((0.0, 0.0, 0.5)), self.pending, []
        self.dropped = True
        if any(data is None for _, data in pending):  # rare: all of the data is lost, the new size is not
            self.pending = [(pos, data) for pos, data in pending if data is None]
            return
        wanted = bytearray(self.durable)
        for pos, data in pending:
            _apply(wanted, pos, data)
        for start in range(0, len(wanted), PAGE):
            if rng.random() < share:
                _apply(self.durable, start, bytes(wanted[start : start + PAGE]))

    def evict(self) -> None:
        """Clean pages leave the page cache: reads now return what the platter has (the size stays)."""
        shown = bytearray(self.durable)
        for pos, data in self.pending:
            _apply(shown, pos, data)
        shown.extend(bytes(max(0, len(self.data) - len(shown))))
        self.data, self.dropped = shown, False

    def power_cut(self, rng: random.Random) -> None:
        pending, self.pending = self.pending, []
        self.dropped = False
        synced = len(self.durable)
        only_writes = all(data is not None for _, data in pending)
        if pending and only_writes and rng.random() < 0.4:
            before = bytes(self.durable)
            for pos, data in pending:
                _apply(self.durable, pos, data)
            self._keep_old_sectors(rng, before)
            self._lose_sectors(rng, synced)
        elif pending:
            survived = rng.randrange(len(pending) + 1)
            for pos, data in pending[:survived]:
                _apply(self.durable, pos, data)
            if survived < len(pending):
                pos, data = pending[survived]
                if data is not None:
                    _apply(self.durable, pos, data[: rng.randrange(len(data) + 1)])
        self.data = bytearray(self.durable)

    def _keep_old_sectors(self, rng: random.Random, before: bytes) -> None:
        """Of what was written in place, each sector is the old one or the new one."""
        for start in range(0, len(before), SECTOR):
            old = before[start : start + SECTOR]
            if self.durable[start : start + len(old)] != old and rng.random() < 0.5:
                self.durable[start : start + len(old)] = old

    def _lose_sectors(self, rng: random.Random, synced: int) -> None:
        share = rng.choice((0.0, 0.2, 0.6))
        end = len(self.durable)
        for start in range(synced - synced % SECTOR, end, SECTOR):
            if rng.random() < share:
                low, high = max(start, synced), min(start + SECTOR, end)
                self.durable[low:high] = bytes(high - low)


def _apply(content: bytearray, pos: int, data: bytes | None) -> None:
    if data is None:
        del content[pos:]
    else:
        content.extend(bytes(max(0, pos - len(content))))
        content[pos : pos + len(data)] = data


class SimDisk(Disk):
    """One machine's disk; see the module's docstring. It survives power cuts, but its open files do not."""

    def __init__(self, rng: random.Random, *, capacity: int | None = None) -> None:
        self.rng, self.capacity = rng, capacity
        #: What is free beside the reserve, for decisions (disk_space.py); None: plenty, and nobody looks.
        self.spare: int | None = None
        self.operations = 0  # changing operations, counted for ``stop_after``
        self.syncs = 0
        self.epoch = 0
        self.reboot_needed = False  # the file system stopped: only a reboot helps
        self.on_effect: Callable[[], None] = lambda: None  # called before every change
        self.on_full: Callable[[], None] = lambda: None  # called when something finds no space
        self._stop_at: int | None = None
        self._failures: dict[
            str, list[Callable[[], None]]
        ] = {}  # operation -> callback of each armed failure
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._pending_names: list[tuple[str, str, _Inode | None]] = []  # (kind, name, inode)

    # ------------------------------------------------------------ faults

    def power_cut(self) -> None:
        """Lose what was not synced, and invalidate every open file."""
        self.epoch += 1
        self._stop_at = None
        self._failures.clear()
        self.reboot_needed = False
        ordered = self.rng.random() < 0.5
        for kind, name, inode in self._pending_names:
            if self.rng.random() < 0.5:
                if ordered:
                    break
                continue
            if kind == "remove":
                self._durable_names.pop(name, None)
            else:
                assert inode is not None
                self._durable_names[name] = inode
                if kind.startswith("rename "):  # both names change in one step, as on a journaled file system
                    self._durable_names.pop(kind.removeprefix("rename "), None)
        self._pending_names.clear()
        self._names = dict(self._durable_names)
        for inode in {id(i): i for i in self._names.values()}.values():
            inode.power_cut(self.rng)

    def kill(self) -> None:
        """The process ends, but not the machine: open files are invalidated, the page cache stays.

        What a failed sync left in it may be evicted before the next process reads.
        """
        self.epoch += 1
        self._stop_at = None
        self._failures.clear()
        for inode in {id(i): i for i in self._names.values()}.values():
            if inode.dropped and self.rng.random() < 0.3:
                inode.evict()

    def stop_after(self, operations: int) -> None:
        """Raise PowerCut at the n-th changing operation from now (0: the next); then call power_cut()."""
        self._stop_at = self.operations + operations

    def fail_next(self, kind: str, struck: Callable[[], None] = lambda: None) -> None:
        """The next operation of this kind fails with EIO, and ``struck`` is called then.

        One of append, read, write_at, truncate, sync; create, rename, remove, sync_dir.
        """
        self._failures.setdefault(kind, []).append(struck)

    def flip(self, name: str, pos: int, mask: int = 1) -> None:
        """Damage one byte in place, synced or not."""
        inode = self._names[name]
        inode.data[pos] ^= mask
        if pos < len(inode.durable):
            inode.durable[pos] ^= mask

    def lose(self, name: str, begin: int, end: int) -> None:
        """Make these bytes read as zeros, synced or not."""
        inode = self._names[name]
        for content in (inode.data, inode.durable):
            here = min(end, len(content))
            if begin < here:
                content[begin:here] = bytes(here - begin)

    def cut_off(self, name: str, size: int) -> None:
        """Make the file end there, synced or not."""
        inode = self._names[name]
        del inode.data[size:], inode.durable[size:]

    def size_of(self, name: str) -> int:
        return len(self._names[name].data)

    def durable_files(self) -> dict[str, bytes]:
        """What a power cut would certainly leave: synced names and bytes."""
        return {name: bytes(inode.durable) for name, inode in self._durable_names.items()}

    def write_back(self) -> None:
        """Write all dirty pages to the platter, as a kernel does by itself within half a minute."""
        for inode in self._names.values():
            inode.sync()

    def peek(self, name: str) -> bytes:
        """The content of a file, for observers; it does not count as an operation and never fails."""
        return bytes(self._names[name].data)

    def frozen(self) -> SimDisk:
        """A copy, without faults, as the next process would find it without a reboot."""
        copy = SimDisk(random.Random(0))
        copy._names = {name: _Inode(bytearray(inode.data)) for name, inode in self._names.items()}
        return copy

    def used_bytes(self) -> int:
        """Bytes of all files that have a name."""
        return sum(len(inode.data) for inode in self._names.values())

    def step(self, kind: str) -> None:
        """Count one operation, and stop or fail it if that was requested."""
        if failures := self._failures.get(kind):
            failures.pop(0)()
            self.reboot_needed |= kind == "sync_dir"
            error = FsyncFailed if kind.startswith("sync") else DiskFailed
            raise error(f"injected EIO on {kind}")
        if kind != "read":
            self.on_effect()
            if self._stop_at is not None and self.operations >= self._stop_at:
                raise PowerCut(f"at operation {self.operations} ({kind})")
            self.operations += 1

    # ------------------------------------------------------------ the Disk protocol

    def open(self, name: str, create: bool = False) -> File:
        inode = self._names.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(name)
            self.step("create")
            inode = self._names[name] = _Inode()
            self._pending_names.append(("create", name, inode))
        return SimFile(self, inode, name)

    def names(self) -> list[str]:
        return sorted(self._names)

    def exists(self, name: str) -> bool:
        return name in self._names

    def remove(self, name: str) -> None:
        if name in self._names:
            self.step("remove")
            del self._names[name]
            self._pending_names.append(("remove", name, None))

    def rename(self, old: str, new: str) -> None:
        if old not in self._names:
            raise FileNotFoundError(old)
        self.step("rename")
        inode = self._names[new] = self._names.pop(old)
        self._pending_names.append((f"rename {old}", new, inode))

    def sync_dir(self) -> None:
        self.step("sync_dir")
        self.syncs += 1
        self._durable_names = dict(self._names)
        self._pending_names.clear()

    def free_bytes(self) -> int:
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self.used_bytes())


class SimFile:
    """A file of :class:`SimDisk`; useless after the next power cut or kill."""

    def __init__(self, disk: SimDisk, inode: _Inode, name: str) -> None:
        self._disk, self._inode, self._name = disk, inode, name
        self._epoch, self._open = disk.epoch, True

    def _check(self, kind: str) -> None:
        assert self._epoch == self._disk.epoch, f"{self._name} was opened before the crash"
        if not self._open:
            raise FileNotFoundError(f"{self._name} is closed")
        self._disk.step(kind)

    def append(self, buffers: Sequence[bytes]) -> None:
        self._check("append")
        assert len(buffers) <= 4096
        inode, data = self._inode, b"".join(buffers)
        end, free = len(inode.data), self._disk.free_bytes()
        if len(data) > free:
            if free:  # a real append fails half-way; the file truncates it
                inode.write(end, data[:free])
                inode.truncate(end)
            self._disk.on_full()
            raise DiskFull(f"{self._name}: no room for {len(data)} bytes")
        inode.write(end, data)

    def write_at(self, pos: int, data: bytes) -> None:
        self._check("write_at")
        assert pos + len(data) <= len(self._inode.data), "write_at never grows a file"
        self._inode.write(pos, bytes(data))

    def read(self, pos: int, size: int) -> bytes:
        self._check("read")
        return bytes(self._inode.data[pos : pos + size])

    def forget(self, pos: int, size: int) -> None:
        """Does nothing: the page cache may keep what a failed sync left; ``kill`` may evict it."""

    def size(self) -> int:
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._check("truncate")
        self._inode.truncate(size)

    def sync(self) -> None:
        try:
            self._check("sync")
        except FsyncFailed:
            self._inode.fail_sync(self._disk.rng)
            raise
        self._disk.syncs += 1
        self._inode.sync()

    def close(self) -> None:
        self._open = False
