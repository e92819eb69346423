"""The replicated log as pysyncobj's journal: segment files, group commit, positions instead of bodies.

add() only queues: it costs microseconds and never touches the disk. A sync job (begin_sync, run in
any thread, end_sync) makes everything queued durable at once. Only entries up to ``durable_index`` may be
acknowledged, and nothing queued is ever dropped because the disk is full. All
methods belong to the loop thread, except read(), read_range(), stored() and a job's run(), which any thread
may call. This must never cut off an entry that was durable, unless Raft says that it conflicts, and never
report a commit index that its own entries do not prove.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Protocol, overload

from pysyncobj.journal import Journal

from escrowmq.replication.errors import CorruptLog, OffsetGone
from escrowmq.replication.format.codec import MEMBERSHIP
from escrowmq.replication.format.entry import HEADER_SIZE, UNSYNCED_MAX, encode_header
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    encode_file_header,
    log_name,
    sidecar_name,
)
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.holes import Hole, KnownHoles, StoredEntry, TermRuns, as_stored, fitting
from escrowmq.replication.log.install import finish_install
from escrowmq.replication.log.member_history import MemberHistory
from escrowmq.replication.log.recovery import recover, segment_firsts
from escrowmq.replication.log.segment import (
    OpenSegment,
    Segment,
    SegmentInfo,
    SegmentReader,
    SegmentTable,
    sidecar_is_sound,
    write_sidecar,
)
from escrowmq.replication.log.syncjob import Mend, Seal, SyncJob, Write
from escrowmq.replication.log.vote import VoteFile

# ------------------------------------------------------------------ entries as pysyncobj reads them
# The journal as the list of (command, index, term) that pysyncobj expects. A body is read only when it is
# asked for: pysyncobj asks for the index or term of log[-1] and log[0] all the time.


class EntrySource(Protocol):
    """What a view needs from the journal."""

    def read(self, index: int) -> bytes: ...

    def term_at(self, index: int) -> int | None: ...


class Entry:
    """One entry; behaves like the tuple (command, index, term)."""

    __slots__ = ("_index", "_log")

    def __init__(self, log: EntrySource, index: int) -> None:
        self._log, self._index = log, index

    def __getitem__(self, field: int) -> bytes | int | None:
        if field == 0:
            return self._log.read(self._index)
        if field == 1:
            return self._index
        if field == 2:
            return self._log.term_at(self._index)
        raise IndexError(field)

    def __iter__(self) -> Iterator[bytes | int | None]:
        return iter((self[0], self[1], self[2]))

    def __len__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list | Entry):
            return NotImplemented
        return len(other) == 3 and all(self[k] == other[k] for k in (1, 2, 0))

    __hash__ = None  # type: ignore[assignment]  # like a list: equal to unhashable things

    def __repr__(self) -> str:
        return f"Entry(index={self._index}, term={self._log.term_at(self._index)})"


class EntryRange:
    """Entries [first, end), as a read-only sequence."""

    __slots__ = ("_end", "_first", "_log")

    def __init__(self, log: EntrySource, first: int, end: int) -> None:
        self._log, self._first, self._end = log, first, max(first, end)

    def __len__(self) -> int:
        return self._end - self._first

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> EntryRange: ...

    def __getitem__(self, item: int | slice) -> Entry | EntryRange:
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            assert step == 1, "pysyncobj takes plain slices only"
            return EntryRange(self._log, self._first + start, self._first + stop)
        size = self._end - self._first
        position = item + size if item < 0 else item
        if not 0 <= position < size:
            raise IndexError(item)
        return Entry(self._log, self._first + position)

    def __iter__(self) -> Iterator[Entry]:
        for index in range(self._first, self._end):
            yield Entry(self._log, index)


# ------------------------------------------------------------------ entries in memory
# Recent log entries in memory, from which they are written, sent to followers and applied.
#
# Bounded, except that an entry that is not on disk yet is never evicted: no other place has it. Any thread
# may look entries up; only the loop thread changes them.


class EntryCache:
    """Commands by log index, the oldest evicted first."""

    __slots__ = ("_bytes_max", "_low", "entries", "get", "held_bytes")

    def __init__(self, bytes_max: int, next_index: int) -> None:
        self.entries: dict[int, bytes] = {}
        self.held_bytes, self._bytes_max = 0, bytes_max
        self._low = next_index  # no entry below it is held
        self.get: Callable[[int], bytes | None] = self.entries.get

    def put(self, index: int, command: bytes, durable: int) -> None:
        """Hold the newest entry; if needed, evict entries up to ``durable``."""
        self.entries[index] = command
        self.held_bytes += len(command)
        if self.held_bytes > self._bytes_max:
            self.shrink(durable)

    def shrink(self, durable: int) -> None:
        """Evict down to the limit, but nothing after ``durable``."""
        index = self._low
        while self.held_bytes > self._bytes_max and index <= durable:
            self._forget(index)
            index += 1
        self._low = index

    def cut_after(self, keep: int, last: int) -> None:
        """Forget entries keep + 1 to last (a conflict)."""
        for index in range(max(keep + 1, self._low), last + 1):
            self._forget(index)
        self._low = min(self._low, keep + 1)

    def cut_before(self, first: int) -> None:
        """Forget entries before ``first`` (retention)."""
        for index in range(self._low, first):
            self._forget(index)
        self._low = max(self._low, first)

    def restart_at(self, next_index: int) -> None:
        """The log is empty and continues at ``next_index``."""
        assert not self.entries
        self._low = next_index

    def _forget(self, index: int) -> None:
        command = self.entries.pop(index, None)
        if command is not None:
            self.held_bytes -= len(command)


# ------------------------------------------------------------------ what waits for the disk
# What waits for the disk: entries of the next group commit, and segments to be removed.
#
# At most one job of each kind is under way. Unlinking a segment and syncing its directory takes tens of
# milliseconds, hundreds for a large one. So that no group commit waits for it, removals are jobs of their
# own, run in another thread, one segment after the other. Entries that add() queues during a group commit
# go into the next one. Entries that a full disk rejected are retried first and alone, because their headers
# say which of them one sync covers. Belongs to the loop thread.


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

    @property
    def has_removals(self) -> bool:
        """Whether segments wait to be removed, but for the one that is being removed."""
        return bool(self._removals)

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


# ------------------------------------------------------------------ journal


_MEMBERSHIP = bytes((MEMBERSHIP,))


class SegmentJournal(Journal):  # type: ignore[misc]  # pysyncobj has no types
    """See the module's docstring. Attributes, read-only for others:

    ``first_index``, ``last_index``, ``last_term``: of the entries held, including queued ones (empty:
    first_index == last_index + 1). ``durable_index``: up to here the log survives a power cut.
    ``generation`` changes whenever entries are cut off. ``holes``: damaged entries met so far.
    ``members``: which configuration of the group is in force from which entry on; a configuration in a
    damaged entry is missing until the entry is mended.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        segment_bytes: int = 64 << 20,  # one snapshot and one directory sync per 64 MB of log
        cache_bytes: int = 16 << 20,  # a follower that lags by less is served from memory
        open_segments: int = 64,  # sealed segments whose descriptors and positions are held open for readers
        on_roll: Callable[[int], None] | None = None,
        mendable: bool = False,  # the caller has damaged entries mended, so they are holes: see holes.py
    ) -> None:
        assert FILE_HEADER_SIZE < segment_bytes < 1 << 31, "positions are 32 bits wide"
        #: Whether ``begin_sync`` may have a job, and ``begin_removal``. (Read in every tick, hence no call.)
        self.has_unsynced = self.has_unremoved = False
        self._disk, self._segment_bytes, self.on_roll = disk, segment_bytes, on_roll
        self.generation = 0
        finish_install(disk)
        self._vote = VoteFile(disk, must_exist=bool(segment_firsts(disk)))
        log = recover(disk, mendable=mendable)
        self.holes = KnownHoles(log.holes)
        #: The first entry after the given one that is known to be damaged. Called several times a tick.
        self.damaged, self.damaged_after = self.holes.by_index, self.holes.after
        self._reader = SegmentReader(disk, open_segments, self.holes.note, mendable=mendable)
        self._table = SegmentTable([s.first for s in log.segments], log.segments)
        self._terms: TermRuns = log.terms
        self.members: MemberHistory = log.members
        #: Damaged entries that no sidecar describes: any may be a configuration. Always replaced as a whole.
        self._untold = frozenset(hole.first for hole in log.holes if not hole.term)
        self.first_index = log.segments[0].first if log.segments else 1
        self.last_index = self.durable_index = log.segments[-1].last if log.segments else 0
        self.last_term = self._terms.at(self.last_index) if len(self) else 0
        self.cache = EntryCache(cache_bytes, self.last_index + 1)
        self._queue = CommitQueue(disk, self.last_index + 1)
        self._resume_newest()

    def _resume_newest(self) -> None:
        """Make the last segment of the table the one that add() appends to."""
        newest = self._table.segments[-1].opened if self._table.segments else None
        self._positions: array[int] = newest.positions if newest is not None else array("I")
        self._end = self._positions[-1] if newest is not None else self._segment_bytes

    # ---------------------------------------------------------------- adding

    def add(self, command: bytes, index: int, term: int) -> None:
        """Queue the entry after the last one, without copying it; takes about 1 µs for 1 KB."""
        size, rolled = HEADER_SIZE + len(command), False
        if self._end + size > self._segment_bytes:
            rolled = self._roll(index)
        assert index == self.last_index + 1, f"entry {index} does not follow entry {self.last_index}"
        if term != self.last_term or index == self.first_index:
            self._terms.append(index, term)
        if command[:1] == _MEMBERSHIP:
            self.members.note(index, command)
        queue = self._queue
        unsynced = index - queue.batch_first
        header = encode_header(command, index, term, unsynced if unsynced < UNSYNCED_MAX else UNSYNCED_MAX)
        buffers = queue.buffers
        if buffers is None:
            buffers = queue.start_write(self._table.segments[-1], index)
        buffers += (header, command)
        self.cache.put(index, command, self.durable_index)
        self._end += size
        self._positions.append(self._end)
        self.last_index, self.last_term = index, term
        self.has_unsynced = True
        if rolled and self.on_roll is not None:
            self.on_roll(index)

    def newest_file(self) -> str | None:
        """Name of the file that entries are written into; None: it is not created yet. Any thread."""
        segments = self._table.segments
        if not segments or (opened := segments[-1].opened) is None or opened.file is None:
            return None
        return log_name(segments[-1].first)

    def _roll(self, index: int) -> bool:
        """Begin a segment at ``index``; True if that sealed another. An empty segment is never sealed."""
        segments = self._table.segments
        if not segments:
            self.first_index, self.last_index = index, index - 1
            self._terms = TermRuns()
            self.cache.restart_at(index)
        elif segments[-1].first == index:
            return False  # an entry larger than a segment gets one of its own
        else:
            full = segments[-1]
            full.last = index - 1
            terms = self._terms.between(full.first, full.last)
            members = None if self._has_untold(full) else self.members.between(full.first, full.last)
            self._queue.seal(full, Seal(self._positions, terms, members), index)
        segment = Segment(index, index, 0, sealed=False)
        segment.opened = OpenSegment(None, array("I", (FILE_HEADER_SIZE,)))
        self._table = SegmentTable([*self._table.firsts, index], [*segments, segment])
        self._resume_newest()
        return bool(segments)

    # ---------------------------------------------------------------- syncing

    @property
    def disk_full(self) -> bool:
        """The last sync found no room. Its entries are queued again; begin_sync() retries them."""
        return self._queue.disk_full

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the disk, without those of a job under way."""
        return self._queue.waiting_bytes()

    def begin_sync(self) -> SyncJob | None:
        """Everything queued, as a job for any thread; None if one is under way or nothing is queued."""
        queue = self._queue
        if queue.job is not None:
            return None
        job = queue.begin(self.last_index, self.durable_index)
        self.has_unsynced = bool(queue)  # what was added while a full disk's rest waited
        return job

    def end_sync(self, job: SyncJob) -> None:
        """Adopt what a finished job did. A job that was overtaken by a cut changes nothing."""
        if not self._queue.end(job):
            return
        if job.disk_full:  # what did not fit is queued again
            self.has_unsynced = True
        self.durable_index = max(self.durable_index, job.durable)
        for segment in job.sealed:
            segment.sealed = True
            self._reader.admit(segment)
        for hole in job.mended:
            self.holes.forget(hole, mended=True)
        self.cache.shrink(self.durable_index)

    def begin_removal(self) -> SyncJob | None:
        """The removal of the next dropped segment, as a job for any thread, independent of those of
        ``begin_sync``; None if one is under way or there is none."""
        job = self._queue.begin_removal()
        self.has_unremoved = self._queue.has_removals
        return job

    def end_removal(self, job: SyncJob) -> None:
        """The job has removed its files."""
        self._queue.end_removal(job)

    def sync(self) -> None:
        """Make everything queued durable, in this thread; on a full disk it stays queued. Dropped segments
        are removed first: that may free the room that is needed."""
        while (removal := self._queue.removal or self.begin_removal()) is not None:
            removal.run()
            self.end_removal(removal)
        self._settle()
        while (job := self.begin_sync()) is not None:
            job.run()
            self.end_sync(job)
            if job.disk_full:
                return

    def _settle(self) -> None:
        """Wait for the job under way, if any: run() returns when the job is done, in whichever thread."""
        job = self._queue.job
        if job is not None:
            job.run()
            self.end_sync(job)

    # ---------------------------------------------------------------- cutting and retention

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Cut off everything from list position ``entryFrom`` on (a conflict). Durable at return; rare."""
        keep = self.first_index + entryFrom - 1
        if keep >= self.last_index:
            return
        assert entryFrom >= 0
        self._settle()
        self.generation += 1
        self._queue.cut_after(keep)
        self.cache.cut_after(keep, self.last_index)
        self._table = _cut_files(self._disk, self._reader, self._table, keep)
        self._terms.cut_after(keep)
        self.members.cut_after(keep)
        self._untold = frozenset(index for index in self._untold if index <= keep)
        self.holes.keep_within(self.first_index, keep)
        self.durable_index = min(self.durable_index, keep)
        self.last_index = keep
        self.last_term = self._terms.at(keep) if len(self) else 0
        self._resume_newest()

    def clear(self) -> None:
        """Remove every entry, durably. Only a dump of pysyncobj's own would ask for this; we make none."""
        self.deleteEntriesFrom(0)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """pysyncobj's compaction, as far as whole sealed segments allow."""
        self.drop_before(self.first_index + entryTo)

    def drop_before(self, index: int) -> int:
        """Retention: drop whole sealed segments that end before ``index``, keeping at least two entries.

        Returns the new first index. The following removal jobs (``begin_removal``) remove the files.
        """
        limit = min(index, self.last_index - 1)
        firsts, segments = self._table
        drop = 0
        while drop + 1 < len(segments) and firsts[drop + 1] <= limit and segments[drop].sealed:
            self._queue.remove(firsts[drop])
            self.has_unremoved = True
            drop += 1
        if drop:
            self._table = SegmentTable(firsts[drop:], segments[drop:])
            self.first_index = firsts[drop]
            for segment in segments[:drop]:
                segment.opened = None  # its file closes with its last reader
            self.cache.cut_before(self.first_index)
            self._terms.cut_before(self.first_index)
            self.members.cut_before(self.first_index)
            self._untold = frozenset(index for index in self._untold if index >= self.first_index)
            self.holes.keep_within(self.first_index, self.last_index)
        return self.first_index

    # ---------------------------------------------------------------- reading

    def term_at(self, index: int) -> int | None:
        """Term of an entry, None if it is not in the log."""
        if not self.first_index <= index <= self.last_index:
            return None
        return self.last_term if index >= self._terms.newest_start else self._terms.at(index)

    def first_of_term(self, index: int) -> int:
        """First entry in the log with the same term as ``index``, which must be in the log."""
        return max(self.first_index, self._terms.start_of(index))

    def read(self, index: int) -> bytes:
        """The whole command. Thread-safe. OffsetGone if it is not in the log, CorruptLog if damaged."""
        command = self.cache.get(index)
        return command if command is not None else self._reader.read_entry(self._segment(index), index)

    def read_range(self, index: int, pos: int, size: int) -> bytes:
        """Bytes [pos, pos + size) of a command, with at most one read. Thread-safe; raises as read()."""
        command = self.cache.get(index)
        if command is None:
            return self._reader.read_slice(self._segment(index), index, pos, size)
        if pos < 0 or size < 0 or pos + size > len(command):
            raise ValueError(f"entry {index} has {len(command)} bytes, not [{pos}, {pos + size})")
        return command[pos : pos + size]

    def batch(self, index: int, max_bytes: int) -> list[tuple[bytes, int, int]]:
        """Entries from ``index`` on as (command, index, term): at least one, at most ``max_bytes``."""
        out: list[tuple[bytes, int, int]] = []
        get, last, room = self.cache.get, self.last_index, max_bytes
        term = until = -1
        while index <= last and (command := get(index)) is not None:
            room -= len(command)
            if room < 0 and out:
                break
            if index > until:
                newest = index >= self._terms.newest_start
                term, until = (self.last_term, last) if newest else self._terms.run_at(index)
            out.append((command, index, term))
            index += 1
        return out if out or index > last else self._batch_from_disk(index, max_bytes)

    def _batch_from_disk(self, index: int, max_bytes: int) -> list[tuple[bytes, int, int]]:
        """Consecutive entries of one segment, with one read."""
        segment, reader = self._segment(index), self._reader
        last = reader.run_within(segment, index, max_bytes, self.durable_index)
        commands = reader.read_run(segment, index, last)
        return [(command, at, self._terms.at(at)) for at, command in enumerate(commands, index)]

    def _segment(self, index: int) -> Segment:
        segment = self._table.find(index)
        if segment is None:
            raise OffsetGone(f"log entry {index} is gone; the log begins at {self.first_index}")
        return segment

    def segment_start(self, index: int) -> int:
        """First index of the segment that holds ``index``."""
        return self._segment(index).first

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first. Sealed ones are durable and never change."""
        return self._table.infos(self.last_index)

    def __len__(self) -> int:
        return self.last_index - self.first_index + 1

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> EntryRange: ...

    def __getitem__(self, item: int | slice) -> Entry | EntryRange:
        """Indexed by position in the list, not by log index; no body is read before it is needed."""
        first, end = self.first_index, self.last_index + 1
        if isinstance(item, slice):  # as in EntryRange, without one of the whole log
            start, stop, _ = item.indices(end - first)
            return EntryRange(self, first + start, first + stop)
        return EntryRange(self, first, end)[item]

    # ---------------------------------------------------------------- damage

    def stored(self, first: int, last: int, bytes_max: int) -> bytes:
        """Entries ``first`` to ``last`` as they are on disk, each verified: whole entries of at most
        ``bytes_max`` together, or the first one alone. Ends before one that is damaged or not here.
        Thread-safe."""
        parts, room, generation = list[bytes](), bytes_max, self.generation
        for index in range(first, min(last, self.durable_index) + 1):
            segment = self._table.find(index)
            try:
                raw = b"" if segment is None else self._reader.read_raw(segment, index)
            except (OffsetGone, CorruptLog):
                break
            room -= len(raw)
            if not raw or (room < 0 and parts):
                break
            parts.append(raw)
        return b"".join(parts) if generation == self.generation else b""  # from one log, not from two

    def verify(self, index: int, bytes_max: int, *, cold: bool = False) -> tuple[int, int]:
        """Check that entries from ``index`` on are what was written: (next entry to check, bytes read).

        At least one entry, at most those of its segment. Damaged ones are added to ``holes``. Thread-safe.
        Raises OffsetGone if ``index`` is not on disk here (any more), CorruptLog for damage beyond single
        entries.
        """
        segment, durable = self._segment(index), self.durable_index
        if index > durable:
            raise OffsetGone(f"log entry {index} is not on disk yet")
        last = self._reader.run_within(segment, index, bytes_max, durable)
        return last + 1, self._reader.verify_run(segment, index, last, cold=cold)

    def frame_is_sound(self, index: int) -> bool:
        """Whether the file of the segment that holds entry ``index`` has its header, and a sealed one its
        sidecar; ``mend_frame`` rewrites them. A segment with a damaged entry that no sidecar describes has no
        sidecar until the entry is mended. Thread-safe."""
        segment = self._segment(index)
        if not self._reader.header_is_sound(segment):
            return False
        if not segment.sealed or self._has_untold(segment):
            return True
        return sidecar_is_sound(self._disk, segment.first, segment.last)

    def mend_frame(self, index: int) -> bool:
        """Rewrite a damaged header with the next sync job, and a sealed segment's sidecar immediately."""
        segment = self._segment(index)
        if not self._reader.header_is_sound(segment):
            hole = Hole(segment.first, segment.first, segment.first - 1, 0, FILE_HEADER_SIZE)
            self._queue.mend(Mend(hole, None, encode_file_header(segment.first)))
            self.has_unsynced = True
        if (
            segment.sealed
            and not self._has_untold(segment)
            and not sidecar_is_sound(self._disk, segment.first, segment.last)
        ):
            terms = self._terms.between(segment.first, segment.last)
            members = self.members.between(segment.first, segment.last)
            write_sidecar(self._disk, segment.first, self._reader.open(segment).positions, terms, members)
        return True

    def _has_untold(self, segment: Segment) -> bool:
        """Whether what is known of this segment may lack a configuration. A sidecar would be trusted without
        another check, even once the entry is whole again: so none is written."""
        return any(segment.first <= index <= segment.last for index in self._untold)

    def stored_bytes(self) -> int:
        """Durable bytes of all segments. Thread-safe."""
        return sum([segment.durable_size for segment in self._table.segments])

    def cached(self, index: int) -> bytes | None:
        """The command, if it is in memory. Thread-safe."""
        return self.cache.get(index)

    def is_sound(self, hole: Hole) -> bool:
        """Whether the entry turns out to be readable. Thread-safe."""
        segment = self._table.find(hole.first)
        try:
            return segment is not None and bool(self._reader.read_raw(segment, hole.first))
        except (OffsetGone, CorruptLog):
            return False

    def mend(self, hole: Hole, entry: StoredEntry) -> bool:
        """Rewrite a damaged entry with the next sync job; False if ``entry`` is not the one that belongs
        there.

        Its term proves it: an entry of this index and this term is the same in every log.
        """
        segment = self._table.find(hole.first)
        if not self.holes.known(hole) or segment is None or entry.index != hole.first:
            return False
        if not fitting(hole, [entry], self.term_at):
            return False
        newest = segment is self._table.segments[-1] or not segment.sealed
        assert segment.opened is not None or not newest
        file = segment.opened.file if newest and segment.opened is not None else None
        news = entry.command[:1] == _MEMBERSHIP and self.members.command(entry.index) != entry.command
        if news:
            self.members.note(entry.index, entry.command)
        self._untold -= {entry.index}
        self._queue.mend(Mend(hole, file, as_stored([entry]), sidecar_is_stale=news))
        self.has_unsynced = True
        return True

    # ---------------------------------------------------------------- term, vote, commit index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Durable at return, and what the log holds since its beginning before it: after a power cut a vote
        without a log is taken for a log that was lost (host/restoring.py). On a full disk the vote is
        stored all the same."""
        if self.durable_index == 0:
            self.sync()
        self._vote.set(term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        return self._vote.term

    def getVotedForNodeId(self) -> str | None:
        return self._vote.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Not stored: see getRaftCommitIndex."""

    def getRaftCommitIndex(self) -> int:
        """Always 1. After a crash a stored commit index can be ahead of the journal, and an isolated leader
        would then report success without a quorum; Raft learns it again from a majority anyway."""
        return 1

    def close(self) -> None:
        """Write what is queued (unless the disk is full) and close. Reads in progress finish."""
        self.sync()
        self._reader.close(self._table.segments)
        self._vote.close()

    def _destroy(self) -> None:
        self.close()


def _cut_files(disk: Disk, reader: SegmentReader, table: SegmentTable, keep: int) -> SegmentTable:
    """Cut everything after entry ``keep``; the returned table's last segment takes new entries.

    Newest segment first, each removal synced before the next: whatever a power cut leaves is a log
    without gaps, a little longer than wanted, and Raft cuts it again.
    """
    firsts, segments = table
    kept = bisect_left(firsts, keep + 1)
    for segment in reversed(segments[kept:]):
        if segment.opened is None or segment.opened.file is not None:  # otherwise it was never created
            disk.remove(sidecar_name(segment.first))
            disk.remove(segment.name)
            disk.sync_dir()
        segment.opened = None
    if kept:
        _cut_segment(disk, reader, segments[kept - 1], keep)
    return SegmentTable(firsts[:kept], segments[:kept])


def _cut_segment(disk: Disk, reader: SegmentReader, segment: Segment, keep: int) -> None:
    """Cut the segment that holds ``keep`` after it, and open it for appending."""
    opened = reader.open(segment)
    if segment.sealed:
        segment.sealed = False
        disk.remove(sidecar_name(segment.first))
        disk.sync_dir()
    segment.opened = opened
    del opened.positions[keep + 2 - segment.first :]
    end = opened.positions[-1]
    if opened.file is not None and opened.file.size() > end:
        opened.file.truncate(end)
        opened.file.sync()
        segment.durable_size = end
