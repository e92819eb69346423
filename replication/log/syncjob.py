"""A group commit on its way to disk: append, fdatasync, seal, remove; in any one thread.

The loop thread makes a job, another thread runs it, the loop thread reads its result. A job keeps
the order that recovery relies on: a segment is synced before the next one is created, and a new
segment's directory entry is synced before its entries count as durable. Dropped segments have jobs of
their own (journal.py). A job runs only once, however often it is called.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from escrowmq.replication.errors import DiskFull
from escrowmq.replication.format.segment_format import encode_file_header, log_name, sidecar_name
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.holes import Hole, write_hole
from escrowmq.replication.log.segment import OpenSegment, Segment, write_sidecar

#: Entries per append call; each has two buffers, and one system call takes 1024.
_ENTRIES_PER_APPEND: Final = 512
#: A write of more buffers is not a small one, whatever their size.
_SMALL_BUFFERS: Final = 32


class Seal(NamedTuple):
    """Content of a sealed segment's sidecar: see ``write_sidecar``. ``members`` None: a damaged entry may be
    a configuration, so no sidecar is written."""

    positions: array[int]
    terms: list[tuple[int, int]]
    members: list[tuple[int, bytes]] | None


@dataclass(slots=True)
class Write:
    """Queued entries of one segment: header, command, header, command, ..."""

    segment: Segment
    opened: OpenSegment
    first: int  # index of the first entry in ``buffers``; grows as they are written
    buffers: list[bytes] = field(default_factory=list)
    #: Set when the segment is full: its positions, term runs and members, for the sidecar.
    seal: Seal | None = None


@dataclass(slots=True)
class Mend:
    """What to write in place of a damaged entry. ``file``: of the newest segment; None: it is opened.
    ``sidecar_is_stale``: the entry is a configuration that was not known, so the sidecar may lack it."""

    hole: Hole
    file: File | None
    data: bytes
    sidecar_is_stale: bool = False


class SyncJob:
    """One trip to the disk. The results may be read once :meth:`run` has returned."""

    def __init__(
        self,
        disk: Disk,
        writes: list[Write],
        removals: Sequence[int],
        durable: int,
        mends: Sequence[Mend] = (),
    ) -> None:
        #: Highest index up to which everything is durable.
        self.durable = durable
        #: Whether an append found no room. Nothing is lost: ``rest`` holds what was not written.
        self.disk_full = False
        self.rest: list[Write] = []
        self.sealed: list[Segment] = []
        self.mended: list[Hole] = []
        self._disk, self._writes, self._removals, self._mends = disk, writes, removals, mends
        self._lock = threading.Lock()
        self._settled = False
        self._error: BaseException | None = None

    def append_bytes(self) -> int | None:
        """How much it writes, if it is nothing but an append to one open segment; else None."""
        if self._removals or self._mends or len(self._writes) != 1:
            return None
        write = self._writes[0]
        if write.seal is not None or write.opened.file is None or len(write.buffers) > _SMALL_BUFFERS:
            return None
        return sum(map(len, write.buffers))

    def run(self) -> None:
        """Do the work, or wait for the thread that is doing it. DiskFailed, FsyncFailed: end the process."""
        with self._lock:
            if self._settled:
                if self._error is not None:
                    raise self._error
                return
            try:
                self._run()
            except BaseException as error:
                self._error = error
                raise
            finally:
                self._settled = True

    def _run(self) -> None:
        for first in self._removals:
            # One by one, oldest first: a power cut must not leave a gap in the sequence.
            self._disk.remove(log_name(first))
            self._disk.remove(sidecar_name(first))
            self._disk.sync_dir()
        for mend in self._mends:
            if mend.sidecar_is_stale:  # remove it first: once the entry is sound, a start would trust it
                self._disk.remove(sidecar_name(mend.hole.segment))
                self._disk.sync_dir()
            if write_hole(self._disk, mend.hole, mend.data, mend.file):
                self.mended.append(mend.hole)
        for i, write in enumerate(self._writes):
            try:
                self._perform(write)
            except DiskFull:
                self.disk_full = True
                self.rest = self._writes[i:]
                return

    def _perform(self, write: Write) -> None:
        opened, segment = write.opened, write.segment
        file, created = opened.file, False
        if file is None:
            file = opened.file = self._create(segment)
            created = True
        changed = created or bool(write.buffers)
        try:
            while write.buffers:
                part = write.buffers[: 2 * _ENTRIES_PER_APPEND]
                file.append(part)
                del write.buffers[: len(part)]
                write.first += len(part) // 2
        finally:
            # Also on a full disk: what did fit becomes durable and need not be written again, and
            # what was cut back must not reappear.
            if changed:
                file.sync()
                if created:
                    self._disk.sync_dir()
                self.durable = max(self.durable, write.first - 1)
                segment.durable_size = file.size()
        if write.seal is not None:
            if write.seal.members is not None:
                write_sidecar(self._disk, segment.first, *write.seal[:2], write.seal.members)
            self.sealed.append(segment)

    def _create(self, segment: Segment) -> File:
        file = self._disk.open(segment.name, create=True)
        assert not file.size(), f"{segment.name} exists already"
        try:
            file.append((encode_file_header(segment.first),))
        except DiskFull:
            self._disk.remove(segment.name)  # a conflict may drop the segment before there is room
            raise
        return file
