"""A power cut for code that uses the real file system: what was never synced is gone.

Watches os.fsync and os.fdatasync while the code runs. ``after_power_cut`` then builds the directory that
a disk would show: files as they were at their last sync, under the names of the directory's last sync.
Code that never syncs finds an empty directory, which is the point.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


class PowerWatch:
    """Records what is durable in ``folder``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.syncs = 0
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[str, int] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def watched(number: int) -> None:
            sync(number)
            self.syncs += 1
            info = os.fstat(number)
            if stat.S_ISDIR(info.st_mode):
                if os.path.samefile(f"/proc/self/fd/{number}", self.folder):
                    self._names = {entry.name: entry.inode() for entry in os.scandir(self.folder)}
            else:
                self._contents[info.st_ino] = Path(f"/proc/self/fd/{number}").read_bytes()

        return watched

    def after_power_cut(self, target: Path) -> Path:
        """``target``, filled with what survives."""
        target.mkdir()
        for name, inode in self._names.items():
            (target / name).write_bytes(self._contents.get(inode, b""))
        return target
