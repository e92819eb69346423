"""What waits for the disk: entries of the next group commit, and segments to be removed.

At most one job of each kind is under way. Unlinking a segment and syncing its directory takes tens of
milliseconds, hundreds for a large one. So that no group commit waits for it, removals are jobs of their own,
run in another thread, one segment after the other. Entries that add() queues during a group commit go into
the next one. Entries that a full disk rejected are retried first and alone, because their headers say which
of them one sync covers. Belongs to the loop thread.
"""

from __future__ import annotations

from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.holes import Hole
from escrowmq.replication.log.segment import Segment
from escrowmq.replication.log.syncjob import Mend, Seal, SyncJob, Write


class CommitQueue:
    """``batch_first``: first entry that the next job's sync covers. ``buffers``: where add() appends."""

    def __init__(self, disk: Disk, next_index: int) -> None:
        self.batch_first = next_index
        self.buffers: list[bytes] | None = None  # of the last write in the queue; None: start one
        self.disk_full = False
        self.job: SyncJob | None = None
        self._disk = disk
        self._writes: list[Write] = []
        self._retry: list[Write] = []
        self.removal: SyncJob | None = None
        self._removals: list[int] = []
        self._mends: dict[Hole, Mend] = {}  # a second request for a hole replaces the first

    def __bool__(self) -> bool:
        return bool(self._writes or self._retry or self._mends)

    def waiting_bytes(self) -> int:
        """Bytes queued, without those of a job under way."""
        return sum(len(part) for writes in (self._retry, self._writes) for w in writes for part in w.buffers)

    def start_write(self, segment: Segment, index: int) -> list[bytes]:
        """Begin to queue entries of ``segment``, the next one being ``index``."""
        assert segment.opened is not None
        write = Write(segment, segment.opened, index)
        self._writes.append(write)
        self.buffers = write.buffers
        return write.buffers

    def seal(self, segment: Segment, seal: Seal, index: int) -> None:
        """``segment`` is full; the next entry, ``index``, begins another."""
        if self.buffers is None:
            self.start_write(segment, index)
        assert self._writes[-1].segment is segment
        self._writes[-1].seal = seal
        self.buffers = None
        self.batch_first = index  # a job syncs a segment before it creates the next one

    def remove(self, first: int) -> None:
        """Remove the files of the segment that begins at ``first``, after the removals requested earlier."""
        self._removals.append(first)

    def mend(self, mend: Mend) -> None:
        """Rewrite a damaged entry with the next job."""
        self._mends[mend.hole] = mend

    def begin(self, last: int, durable: int) -> SyncJob | None:
        """Everything queued up to ``last`` as a job; None if one is under way or nothing is queued."""
        if self.job is not None or not (self._writes or self._retry or self._mends):
            return None
        if self._retry:
            writes, self._retry = self._retry, []
        else:
            writes, self._writes, self.buffers = self._writes, [], None
            self.batch_first = last + 1
        mends, self._mends = self._mends, {}
        self.job = SyncJob(self._disk, writes, (), durable, list(mends.values()))
        return self.job

    def begin_removal(self) -> SyncJob | None:
        """The removal of the oldest segment to be removed; None if one is under way or there is none."""
        if self.removal is not None or not self._removals:
            return None
        self.removal = SyncJob(self._disk, [], (self._removals.pop(0),), 0)
        return self.removal

    def end_removal(self, job: SyncJob) -> None:
        """Take a finished removal back."""
        if job is self.removal:
            self.removal = None

    def end(self, job: SyncJob) -> bool:
        """Take a finished job back; False if it was taken back already."""
        if job is not self.job:
            return False
        self.job, self.disk_full, self._retry = None, job.disk_full, job.rest
        return True

    def cut_after(self, keep: int) -> None:
        """Forget queued entries after ``keep`` (a conflict). No job may be under way."""
        assert self.job is None
        self._retry = _cut(self._retry, keep)
        self._writes = _cut(self._writes, keep)
        self._mends = {hole: mend for hole, mend in self._mends.items() if hole.last <= keep}
        self.buffers = None
        self.batch_first = min(self.batch_first, keep + 1)


def _cut(writes: list[Write], keep: int) -> list[Write]:
    kept = []
    for write in writes:
        del write.buffers[2 * max(0, keep + 1 - write.first) :]
        if write.segment.last >= keep:  # the segment becomes the newest one again
            write.seal = None
        if write.segment.first <= keep and (write.buffers or write.seal is not None):
            kept.append(write)
    return kept
