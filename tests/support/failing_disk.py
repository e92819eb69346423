"""Real directories, of which some operations fail, wait or are noted: the ``disk`` of a ``ReplicaSetup``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from escrowmq.replication.log.disk import Disk, RealDisk, RealFile


class Touched(NamedTuple):
    """What an operation is about to touch. ``inode``: of a file that is open, else 0."""

    path: Path
    inode: int = 0


Act = Callable[[Touched], None]


def failing(error: Exception, times: int = 1 << 30) -> Act:
    """Raises ``error``, for so many operations."""
    left = [times]

    def fail(touched: Touched) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise copy(error)  # one that is raised again remembers where it was before

    return fail


class FailingDisks:
    """Opens directories. ``before`` says what shall happen before an operation that is named as in ``Disk``
    and ``File``; several rules apply one after the other, in any thread."""

    def __init__(self) -> None:
        self._rules: list[tuple[str, str, Act]] = []
        #: Free bytes of directories, in place of the real ones.
        self.room: dict[Path, int] = {}

    def __call__(self, path: Path) -> Disk:
        return _Directory(path, self)

    def before(self, operation: str, act: Act, where: str = "*") -> None:
        """``where``: of the paths that match, as a shell does it."""
        self._rules.append((operation, where, act))

    def heal(self) -> None:
        """From now on nothing fails."""
        self._rules.clear()

    def meet(self, operation: str, touched: Touched) -> None:
        """Called by the operations themselves."""
        for rule, where, act in list(self._rules):
            if rule == operation and fnmatch(str(touched.path), where):
                act(touched)


class _Directory(RealDisk):
    def __init__(self, path: Path, disks: FailingDisks) -> None:
        super().__init__(path)
        self._disks = disks

    def open(self, name: str, create: bool = False) -> _OpenFile:
        self._disks.meet("open", Touched(self.path / name))
        return _OpenFile(self.path / name, create, self._disks)

    def exists(self, name: str) -> bool:
        self._disks.meet("exists", Touched(self.path / name))
        return super().exists(name)

    def remove(self, name: str) -> None:
        self._disks.meet("remove", Touched(self.path / name))
        super().remove(name)

    def write_atomic(self, name: str, parts: Iterable[bytes]) -> None:
        self._disks.meet("write_atomic", Touched(self.path / name))
        super().write_atomic(name, parts)

    def free_bytes(self) -> int:
        self._disks.meet("free_bytes", Touched(self.path))
        room = self._disks.room.get(self.path)
        return super().free_bytes() if room is None else room


class _OpenFile(RealFile):
    __slots__ = ("_disks", "_touched")

    def __init__(self, path: Path, create: bool, disks: FailingDisks) -> None:
        super().__init__(path, create)
        self._disks, self._touched = disks, Touched(path, path.stat().st_ino)

    def append(self, buffers: Sequence[bytes]) -> None:
        self._disks.meet("append", self._touched)
        super().append(buffers)

    def read(self, pos: int, size: int) -> bytes:
        self._disks.meet("read", self._touched)
        return super().read(pos, size)

    def sync(self) -> None:
        self._disks.meet("sync", self._touched)
        super().sync()
