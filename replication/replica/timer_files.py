"""Files of timers as part of checkpoints: written with one, merged between two, checked after a damage.

A merge of a hundred million records takes minutes. So its job runs a slice at a time, and a checkpoint that
is wanted meanwhile comes first. What it has written so far has no name that a start would read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from escrowmq.replication.errors import CorruptLog, DiskFull
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.stored_files import StoredFiles
from escrowmq.replication.timers.merging import choose, merged
from escrowmq.replication.timers.sealed_file import SUFFIX, SealedFile, encode, verify_timers
from escrowmq.replication.timers.store import Frozen, TimerStore

#: Bytes that one slice of a merge writes: half a second, with its rests.
SLICE_BYTES: Final = 16 << 20
#: Bytes that are checked at once.
PIECE_BYTES: Final = 1 << 20
_HALF_WRITTEN: Final = (SUFFIX + ".tmp", ".runs.tmp")


def timers_name(index: int) -> str:
    """File name of the timers that the checkpoint after this log entry writes."""
    return f"{index:016x}{SUFFIX}"


def write_young(
    disk: Disk, files: StoredFiles, name: str, store: TimerStore, frozen: Frozen, rest: Callable[[], None]
) -> SealedFile | None:
    """Write what the store had in memory; None: all of it was released. Raises DiskFull."""
    records = store.to_write(frozen, rest)
    first = next(records, None)
    if first is None:
        return None
    disk.write_atomic(name, encode(chain((first,), records), rest))
    return SealedFile(name, files.file(name))


def check_count(name: str, files: Iterable[SealedFile], cursor: bytes, expected: int) -> None:
    """Raise CorruptLog if these files, which are all that the snapshot ``name`` has, hold fewer living timers
    behind the cursor than the log says. They may hold more: those of topics that were deleted."""
    found = sum(file.living_after(cursor) for file in files)
    if found < expected:
        raise CorruptLog(f"{name}: its files hold {found} timers, and the log has {expected}")


def open_files(files: StoredFiles, names: Sequence[str], *, doubtful: bool) -> list[SealedFile]:
    """The files that a snapshot names. ``doubtful``: check every block of them now. Damage was found in
    some file, and otherwise only its first reader would find it, again and again. Raises CorruptLog,
    ReadFailed or UnknownVersion."""
    found = []
    for name in names:
        file = files.file(name)
        if doubtful:
            for _ in verify_timers(name, file.read, file.size, PIECE_BYTES):
                pass
        found.append(SealedFile(name, file))
    return found


def remove_half_written(disk: Disk) -> None:
    """What a merge or a checkpoint had written when the process ended."""
    for name in disk.names():
        if name.endswith(_HALF_WRITTEN):
            disk.remove(name)


class MergeJob:
    """Merges files into one. ``run`` writes the next slice, in any one thread at a time; then ``finished``
    tells whether more is to come. An interrupted one leaves nothing that is ever read."""

    def __init__(
        self, disk: Disk, stored: StoredFiles, files: Sequence[SealedFile], cursor: bytes, index: int
    ) -> None:
        """``index``: of the last applied entry."""
        self.files = files
        self.name = next(name for name in _names(index) if not disk.exists(name))
        self.finished = False
        self.error: DiskFull | None = None
        self.file: SealedFile | None = None  # when it is finished; None: nothing is left of the files
        self._disk, self._stored, self._cursor = disk, stored, cursor
        self._out: File | None = None
        self._parts: Iterator[bytes] = iter(())

    def run(self, rest: Callable[[], None] = lambda: None) -> None:
        """Write a slice. Raises CorruptLog if one of the files is damaged, and the disk's errors."""
        try:
            self.finished = self._slice(rest)
        except DiskFull as error:  # nothing is lost; the next checkpoint tries again
            self.finished, self.error = True, error
            self._parts, self._out = iter(()), None
            self._disk.remove(self.name + ".tmp")

    def _slice(self, rest: Callable[[], None]) -> bool:
        if self._out is None:
            records = merged(self.files, self._cursor, rest)
            first = next(records, None)
            if first is None:
                return True
            self._parts = encode(chain((first,), records), rest)
            self._disk.remove(self.name + ".tmp")
            self._out = self._disk.open(self.name + ".tmp", create=True)
        written = 0
        for part in self._parts:
            self._out.append((part,))
            written += len(part)
            if written >= SLICE_BYTES:
                self._out.sync()
                return False
        self._out.sync()
        self._out.close()
        self._disk.rename(self.name + ".tmp", self.name)
        self._disk.sync_dir()
        self.file = SealedFile(self.name, self._stored.file(self.name))
        return True


def next_merge(disk: Disk, stored: StoredFiles, store: TimerStore, index: int) -> MergeJob | None:
    """What is to be merged now, if anything. ``index``: of the last applied entry."""
    files = choose(store.files, store.cursor)
    return MergeJob(disk, stored, files, store.cursor, index) if files else None


def _names(index: int) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"{index:016x}-{number}{SUFFIX}"
