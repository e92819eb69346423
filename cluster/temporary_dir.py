"""Temporary data directories: removed at the end, or at the next start if their program was killed.

A directory is marked by a lock file, which its program keeps locked as long as it lives, and which contains
the program's pid once it is locked. A program that starts later removes the marked directories of its own
user that no process holds: neither their program nor a broker that outlives it for a while. A directory
without the mark belongs to somebody else, whatever its name, and is never touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from escrowmq.replication.errors import DataDirLocked
from escrowmq.replication.log.datadir import take_lock

PREFIX = "escrowmq-"
MARK = "temporary.lock"
#: Locks of other processes that may use a data directory: the supervisor and each replica.
_OTHER_LOCKS = ("*.lock", "*/lock")


class TemporaryDir:
    """A new directory at ``path``. Directories that killed programs left behind are removed first."""

    def __init__(self, parent: Path | None = None) -> None:
        where = Path(tempfile.gettempdir()) if parent is None else parent
        sweep(where)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
        self._lock = take_lock(self.path / MARK, 0o600, lambda holder: f"process {holder} holds {self.path}")

    def remove(self) -> None:
        """Remove the directory and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(parent: Path) -> None:
    """Remove the directories that killed programs of this user left in ``parent``.

    A directory that is in use or cannot be removed stays until the next time.
    """
    for path in parent.glob(f"{PREFIX}*/{MARK}"):
        with contextlib.suppress(OSError, DataDirLocked), _held(path.parent):
            shutil.rmtree(path.parent)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold all locks of a directory. Raises DataDirLocked, also if it is another user's or incomplete."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not (path / MARK).read_bytes():
        raise DataDirLocked(f"{path} is not left over")
    with contextlib.ExitStack() as locks:
        for pattern in _OTHER_LOCKS:
            for lock in path.glob(pattern):
                number = take_lock(lock, 0o644, lambda holder: f"process {holder} is in {path}")
                locks.callback(os.close, number)
        yield
