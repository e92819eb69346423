"""Disks of simulated hosts: a real ext4 each, in a file of its own, to fill, to fail, or to cut off.

- ``fill``: a ballast file takes all space (ENOSPC), ``give_back`` cuts it a little, ``free`` removes it.
- ``fail``: the file system stops as if the disk had gone: every write, fsync and open ends in EIO, and what
  was not synced is lost. ``replace`` brings it back from its journal, as after a power cut.
- ``exhaust`` (thin disks only): the storage below has no room for blocks that were never written. Writes
  still succeed, in memory; the next fsync fails (EIO or ENOSPC), and the file system may go read-only.

Device-mapper's error and flakey targets would be another way; they need a kernel that has them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
from pathlib import Path

from tests.chaos.rig.shell import RigError, attempt, own_directory, remove_directory, run, unmount

MIB = 1 << 20
#: FS_IOC_SHUTDOWN, and its argument that keeps the journal from being written.
_SHUTDOWN, _NOLOGFLUSH = 0x8004587D, 2


def unavailable() -> str | None:
    """Why there can be no disks here; None if there can. Found by trying."""
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

    A thin disk promises ``size`` bytes and has ``room`` for so many (in memory), until ``exhaust``.
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
        # Everything written at once: nothing is left to the kernel's background initialisation. No reserve
        # for root, as whom the brokers run here.
        lazy = "lazy_itable_init=0,lazy_journal_init=0"
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", lazy, str(self._image))
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.path))

    def fill(self, leave: int = 0) -> int:
        """Take all space that is left, but for ``leave`` bytes; returns how many bytes that was."""
        taken = _fill(self._ballast)
        os.sync()  # delayed allocation: what others have in memory takes its blocks now, too
        taken += _fill(self._ballast)
        if leave:
            os.truncate(self._ballast, max(0, self._ballast.stat().st_size - leave))
        return taken - leave

    def give_back(self, size: int) -> None:
        """So many bytes of what ``fill`` took; whoever waits for room soon meets the end of it again."""
        if self._ballast.exists():
            os.truncate(self._ballast, max(0, self._ballast.stat().st_size - size))

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)

    def exhaust(self) -> None:
        """Thin disks: take the room below. Blocks that were written before can be written again."""
        if not self.thin:
            raise RigError("only a thin disk can be exhausted from below: Disk(..., thin=True)")
        self.failed = True
        os.sync()
        _fill(self._below / "ballast")

    def fail(self) -> None:
        """From now on everything ends in EIO. What was not synced is gone."""
        self.failed = True
        mount = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(mount, _SHUTDOWN, struct.pack("I", _NOLOGFLUSH))
        finally:
            os.close(mount)

    def replace(self) -> None:
        """After ``fail`` or ``exhaust``: mount it anew. Nobody may have a file open on it any more."""
        (self._below / "ballast").unlink(missing_ok=True)
        unmount(self.path)
        checked = attempt(("fsck.ext4", "-p", str(self._image)))
        # It says so with a code above 0 when it has mended something; a mount tells whether that is enough.
        try:
            self._mount()
        except RigError as error:
            raise RigError(f"{error} (fsck: {checked})") from error
        self.failed = False

    def close(self) -> None:
        """Unmount and delete."""
        remove_directory(self.directory)


def _fill(path: Path) -> int:
    """Grow the file until there is no space at all; returns by how much."""
    taken = 0
    with open(path, "ab", buffering=0) as ballast:
        for size in (MIB, 4096, 1024):
            with contextlib.suppress(OSError):
                while True:
                    taken += ballast.write(b"\xff" * size)
        with contextlib.suppress(OSError):
            os.fsync(ballast.fileno())
    return taken
