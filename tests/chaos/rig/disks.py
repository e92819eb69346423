"""Disks of simulated hosts: each is a real ext4 file system in a file, which can be filled or made to fail.

- ``fill``: a ballast file takes all space (ENOSPC), ``give_back`` makes it smaller, ``free`` removes it.
- ``fail``: the file system stops as if the disk were gone: every write, fsync and open ends in EIO, and what
  was not synced is lost. ``replace`` brings it back from its journal, as after a power cut.
- ``exhaust`` (thin disks only): the underlying storage has no room for blocks that were never written. Writes
  still succeed in memory; the next fsync fails (EIO or ENOSPC), and the file system may go read-only.

Device-mapper's error and flakey targets could do the same, but not every kernel has them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import time
from pathlib import Path

from tests.chaos.rig.shell import RigError, attempt, own_directory, remove_directory, run, unmount

MIB = 1 << 20
RELEASE_S = 30.0
#: FS_IOC_SHUTDOWN, and its argument that keeps the journal from being written.
_SHUTDOWN, _NOLOGFLUSH = 0x8004587D, 2


def unavailable() -> str | None:
    """Why this machine cannot have such disks; None if it can. Finds out by making one."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"there is no {tool} command"
    directory = own_directory()
    try:
        disk = Disk(directory / "try", 8 * MIB)
        disk.close()
    except (RigError, OSError) as error:
        return str(error)
    finally:
        remove_directory(directory)
    return None


class Disk:
    """One file system below ``directory``; files go into ``path``. Real fsync, unless ``thin``.

    A thin disk has ``size`` bytes (in memory) until ``exhaust``.
    """

    def __init__(self, directory: Path, size: int, *, thin: bool = False) -> None:
        self.directory, self.thin = directory, thin
        self.path = directory / "mount"
        self._below = directory / "below"
        self._image = self._below / "image"
        self._ballast = self.path / "ballast"
        #: Whether it needs ``replace``.
        self.failed = False
        self._below.mkdir(parents=True)
        self.path.mkdir()
        if thin:
            run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(self._below))
        with open(self._image, "wb") as image:
            image.truncate(size)
        # Write everything now, without the kernel's background initialisation; and no reserve for root,
        # because the brokers run as root here.
        lazy = "lazy_itable_init=0,lazy_journal_init=0"
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", lazy, str(self._image))
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.path))

    def fill(self, leave: int = 0) -> int:
        """Take all free space except ``leave`` bytes; returns the number of bytes taken."""
        taken = _fill(self._ballast)
        os.sync()  # delayed allocation: data that others have in memory get their blocks now, too
        taken += _fill(self._ballast)
        if leave:
            os.truncate(self._ballast, max(0, self._ballast.stat().st_size - leave))
        return taken - leave

    def give_back(self, size: int) -> None:
        """Free ``size`` bytes of what ``fill`` took, so a waiting process soon runs out of space again."""
        if self._ballast.exists():
            os.truncate(self._ballast, max(0, self._ballast.stat().st_size - size))

    def free(self) -> None:
        """Free all of it."""
        self._ballast.unlink(missing_ok=True)

    def exhaust(self) -> None:
        """Thin disks: use up the underlying storage. Blocks that were written before can be overwritten."""
        if not self.thin:
            raise RigError("only a thin disk can be exhausted from below: Disk(..., thin=True)")
        self.failed = True
        os.sync()
        _fill(self._below / "ballast")

    def fail(self) -> None:
        """From now on every operation fails with EIO. Unsynced data are lost."""
        self.failed = True
        mount = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(mount, _SHUTDOWN, struct.pack("I", _NOLOGFLUSH))
        finally:
            os.close(mount)

    def replace(self) -> None:
        """Mount it again after ``fail`` or ``exhaust``. No process may have a file on it open."""
        (self._below / "ballast").unlink(missing_ok=True)
        unmount(self.path)
        self._await_release()
        checked = attempt(("fsck.ext4", "-p", str(self._image)))
        # Its exit code is above 0 if it repaired anything; the mount shows whether the repair is sufficient.
        try:
            self._mount()
        except RigError as error:
            raise RigError(f"{error} (fsck: {checked})") from error
        self.failed = False

    def _await_release(self) -> None:
        """A mount namespace that was made meanwhile may still have the mount: the image mounted again would
        be the same file system, failed as it was."""
        deadline = time.monotonic() + RELEASE_S
        while held := run("losetup", "--associated", str(self._image)).strip():
            if time.monotonic() > deadline:
                raise RigError(f"another mount namespace still has {self._image}: {held}")
            time.sleep(0.05)

    def close(self) -> None:
        """Unmount and delete."""
        remove_directory(self.directory)


def _fill(path: Path) -> int:
    """Grow the file until no space is left; returns the number of bytes added."""
    taken = 0
    with open(path, "ab", buffering=0) as ballast:
        for size in (MIB, 4096, 1024):
            with contextlib.suppress(OSError):
                while True:
                    taken += ballast.write(b"\xff" * size)
        with contextlib.suppress(OSError):
            os.fsync(ballast.fileno())
    return taken
