"""Checkpoints on disk: when to take one, writing it beside the log, finding the newest good one.

A checkpoint is a snapshot file ``<index>.snap`` plus the run files and files of timers that it names. Two
snapshots are kept, so that a damaged one costs a longer redo and not the replica. Files are written and
removed in whatever thread the caller provides (``run`` of a job): unlinking a run file of 480 MB takes
200 ms on ext4. Everything else happens in the applying thread, and work that visits partitions is done there
in slices (``step``): first the state is captured; when it is written the stored runs replace those on the
heap, and then superseded files are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from escrowmq.replication.errors import CorruptLog, DiskFull, ReadFailed, UnknownVersion
from escrowmq.replication.log.disk import Disk, File, StoredFiles
from escrowmq.replication.replica.run_merging import FAN_IN, RunMergeJob, choose
from escrowmq.replication.state import snapshot as snapshots
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import Capture, release_steps
from escrowmq.replication.state.stored_runs import KeptBlocks, RunFile, encode_runs, open_runs
from escrowmq.replication.timers.sealed_file import CLASSES, SUFFIX, SealedFile, encode, merged, verify_timers
from escrowmq.replication.timers.sealed_file import choose as choose_timers
from escrowmq.replication.timers.store import YOUNG_MAX, Frozen, TimerStore

# ------------------------------------------------------------------ files of timers
# Files of timers as part of checkpoints: written with one, merged between two, checked after a damage.
#
# A merge of a hundred million records takes minutes. So its job runs a slice at a time, and a checkpoint
# that is wanted meanwhile comes first. What it has written so far has no name that a start would read.


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
        self,
        disk: Disk,
        stored: StoredFiles,
        files: Sequence[SealedFile],
        cursor: bytes,
        index: int,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        """``index``: of the last applied entry."""
        self._slice_bytes = slice_bytes
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
            if written >= self._slice_bytes:
                self._out.sync()
                return False
        self._out.sync()
        self._out.close()
        self._disk.rename(self.name + ".tmp", self.name)
        self._disk.sync_dir()
        self.file = SealedFile(self.name, self._stored.file(self.name))
        return True


def _names(index: int) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"{index:016x}-{number}{SUFFIX}"


# ------------------------------------------------------------------ checkpoints


SNAPSHOTS_KEPT = 2
#: Ends of the names of files that snapshots name.
STATE_PARTS = (".runs", SUFFIX)
#: A snapshot is taken at a segment roll once the log has grown by this many times the last snapshot's
#: size. Small states: at every roll. A million open transactions (90 MB): every sixth 64 MiB segment,
#: which keeps the cost of snapshots at a few percent and the redo at a restart in proportion.
LOG_PER_SNAPSHOT = 4
#: Tables of run files that are checked when a checkpoint begins, to find files that are still read. Usually
#: one per file is enough; after a topic of many partitions was deleted, the rest is checked in slices.
LOOKS_AT_BEGIN = 64


@dataclass
class CheckpointJob:
    """One checkpoint to be written. ``run`` touches nothing but its own copies and the disk."""

    disk: Disk
    files: StoredFiles
    kept: KeptBlocks
    snapshot: snapshots.Snapshot
    run_file: str | None
    timers: TimerStore
    error: DiskFull | None = field(default=None)
    snapshot_bytes: int = 0
    runs: RunFile | None = None  # once it is written
    timers_file: SealedFile | None = None
    damaged: bool = False  # found damaged before it was adopted; set in the applying thread

    @property
    def timers_name(self) -> str:
        """The file of timers that it writes, if it writes one."""
        return timers_name(self.snapshot.index)

    def run(self, rest: Callable[[], None] = lambda: None) -> None:
        """Write the run file and the timers, then the snapshot that names them; each appears whole or not at
        all. ``rest()`` is called after every half millisecond of work: see state/snapshot.py. Raises
        CorruptLog if timers are missing."""
        try:
            if self.run_file is not None:
                self.disk.write_atomic(self.run_file, encode_runs(self.snapshot.tables, rest))
                self.runs = open_runs(self.files.file(self.run_file), self.kept, rest)
            self._write_timers(rest)
            self.disk.write_atomic(snapshot_name(self.snapshot.index), self._counted(rest))
        except DiskFull as error:  # the log still has everything, and the next roll tries again
            self.error = error

    def _write_timers(self, rest: Callable[[], None]) -> None:
        frozen, meta = self.snapshot.timers, self.snapshot.meta
        files = frozen.files
        if frozen.young:
            self.timers_file = write_young(self.disk, self.files, self.timers_name, self.timers, frozen, rest)
            files = [*files, self.timers_file] if self.timers_file else files
        if files:
            meta["timer_files"] = [file.name for file in files]
        check_count(snapshot_name(self.snapshot.index), files, frozen.cursor, snapshots.timers_alive(meta))

    def _counted(self, rest: Callable[[], None]) -> Iterator[bytes]:
        for part in snapshots.encode(self.snapshot, rest):
            self.snapshot_bytes += len(part)
            yield part


@dataclass(frozen=True)
class RemovalJob:
    """Removes files that nothing refers to any more."""

    disk: Disk
    files: StoredFiles
    names: Sequence[str]
    #: Files that nothing reads any more. Gigabytes are freed with the last reference, which takes long.
    unread: list[SealedFile]

    def run(self, rest: Callable[[], None] = lambda: None) -> None:
        self.unread.clear()
        for name in self.names:
            self.files.retire(name)
            self.disk.remove(name)
        self.disk.sync_dir()


#: Jobs that run in another thread than the applying one.
Job = CheckpointJob | RemovalJob | MergeJob | RunMergeJob


class Checkpoints:
    """The checkpoints of one replica."""

    def __init__(
        self,
        disk: Disk,
        report: Callable[[str], None] = lambda text: None,
        *,
        segment_bytes: int = 1 << 40,
        delay_bytes: int = 0,
        fan_in: int = FAN_IN,
        reserve_bytes: int = 0,
        young_max: int = YOUNG_MAX,
        timer_classes: Sequence[int] = CLASSES,
        slice_bytes: int = SLICE_BYTES,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """``segment_bytes``: the growth of the log from roll to roll. ``delay_bytes``: how far after the
        roll a checkpoint is taken, so that the replicas of a group do not take theirs at the same time.
        ``fan_in``: how many run files are merged into one. ``reserve_bytes``: the free space that is left to
        the log: a merge that would take of it waits. ``young_max``: timers in memory that make one due.
        ``timer_classes``: see ``choose_timers``. ``slice_bytes`` and ``piece_bytes``: what a merge reads or
        writes in one slice, and at once."""
        self._young_max, self._timer_classes = young_max, timer_classes
        self._slice_bytes, self._piece_bytes = slice_bytes, piece_bytes
        self._segment_bytes, self._delay_bytes = segment_bytes, delay_bytes
        self._rolls = self._last_bytes = 0
        self._disk = disk
        self._report = report
        self.files = StoredFiles(disk)
        self._kept = KeptBlocks()
        self.run_files: list[str] = []  # that the state reads, oldest first
        self._runs: dict[str, RunFile] = {}
        self._named: dict[int, list[str]] = {}  # snapshot -> run files it needs
        self._capture: Capture | None = None
        self._running: Job | None = None
        self._unneeded: list[str] | None = None  # files that the next step removes
        self._timers: TimerStore | None = None  # of the state
        self._fan_in, self._reserve_bytes = fan_in, reserve_bytes
        self._merge: MergeJob | RunMergeJob | None = None  # when there is nothing else to do
        self._plan: Iterator[None] | None = None  # of this merge
        self._swaps: Iterator[None] | None = None  # remaining work for a checkpoint that was written
        #: ``begin`` is wanted after this entry; None: not yet.
        self.wanted_at: int | None = None
        self._wait_bytes = 0
        self.indexes: list[int] = []  # of good snapshots, oldest first

    def want(self, index: int) -> None:
        """A segment was rolled: take a checkpoint once ``index`` is applied, if it is worth it by then."""
        self._rolls += 1
        if self._rolls * self._segment_bytes >= LOG_PER_SNAPSHOT * self._last_bytes:
            self.wanted_at, self._wait_bytes = index, self._delay_bytes

    def due(self, applied_index: int, size: int = 0) -> bool:
        """Whether to call ``begin`` now, after entry ``applied_index`` of ``size`` bytes."""
        if self._timers is not None and self._timers.young >= self._young_max and self.wanted_at is None:
            self.wanted_at, self._wait_bytes = applied_index, 0
        if self.wanted_at is None or applied_index < self.wanted_at:
            return False
        self._wait_bytes -= size
        return self._wait_bytes <= 0 and not self._under_way()

    def _under_way(self) -> bool:
        """Whether a checkpoint must wait: not for a merge."""
        running = self._running is not None and self._running is not self._merge
        return self._has_steps() or running

    @property
    def busy(self) -> bool:
        """Whether ``step`` has anything to do."""
        waits = self._capture is not None or self._swaps is not None or self._unneeded is not None
        return waits or self._merge is not None

    def _has_steps(self) -> bool:
        return self._capture is not None or self._swaps is not None or self._unneeded is not None

    def begin(self, state: StateMachine, term: int) -> None:
        """Begin a checkpoint of the present state. ``step`` then returns the job, to be run in any thread,
        after which the caller calls ``done`` and ``step`` again."""
        assert not self._under_way()
        self.wanted_at, self._wait_bytes, self._rolls = None, 0, 0
        self._timers = state.timers.store
        looks = LOOKS_AT_BEGIN
        merging = [file.name for file in self._merge.files] if self._merge is not None else []
        for name in [name for name in self.run_files if name not in merging]:
            for alive in self._look(state, name):
                looks -= 1
                if alive or looks <= 0:
                    break
            else:
                self.run_files.remove(name)
        self._capture = Capture(state, term, self.run_files)

    def step(self, state: StateMachine, visits: int) -> Job | None:
        """Visit up to ``visits`` more partitions; returns a job once the state is captured, and again when
        files are to be removed."""
        if self._swaps is not None:
            for _ in islice(self._swaps, visits):
                pass
            if self._swaps is not None:
                return None
        if self._unneeded is not None and self._running is None:
            self._running, self._unneeded = self._removal(state, self._unneeded), None
            return self._running
        if self._running is not None:
            return None  # what is captured waits for a removal, or a slice of a merge, that is under way
        if self._capture is None:
            if self._plan is not None and _is_left(self._plan, visits):
                return None
            self._running, self._plan = self._merge, None
            return self._merge
        if not self._capture.step(visits):
            return None
        copy, self._capture = self._capture.snapshot, None
        name = None
        if copy.tables:
            name = f"{copy.index:016x}.runs"
            self.run_files.append(name)
            copy.meta["run_files"].append(name)
        self._running = CheckpointJob(self._disk, self.files, self._kept, copy, name, state.timers.store)
        return self._running

    def _removal(self, state: StateMachine, names: Sequence[str]) -> RemovalJob:
        store = state.timers.store
        retired, store.retired = store.retired, []
        return RemovalJob(self._disk, self.files, names, retired)

    def _look(self, state: StateMachine, name: str) -> Iterator[bool]:
        """Whether any partition still reads runs of this file (retention moves starts past them), one table
        after the other, ending at the first True. A table that is found unused stays so and is not checked
        again."""
        slots, file = state.topics.slots, self._runs[name]
        while file.left:
            slot, end = file.slot_and_end(file.left - 1)
            if slot in slots and slots[slot].index.start < end:
                yield True
                return
            file.left -= 1
            yield False

    def done(self, state: StateMachine, job: Job) -> None:
        """The job has run. After a checkpoint: the next steps replace heap runs by those of the file, and
        then remove superseded files."""
        assert job is self._running
        if isinstance(job, CheckpointJob):
            self._swaps = self._swap(state, job)
            return
        self._running = None
        if isinstance(job, RemovalJob) or not job.finished:
            return
        if job.error is not None:
            self._report(f"{job.name} not written, so files stay that would be merged into it: {job.error}")
            self._merge = None
        elif isinstance(job, RunMergeJob):
            self._swaps = self._swap_merged(state, job)
        else:
            state.timers.store.merged(job.files, job.file)
            self._merge = None
            self._choose_merge(state)

    def _choose_merge(self, state: StateMachine) -> None:
        """What is to be merged now, if anything."""
        store = state.timers.store
        if timers := choose_timers(store.files, store.cursor, self._timer_classes):
            self._merge = MergeJob(
                self._disk, self.files, timers, store.cursor, state.applied_index, self._slice_bytes
            )
            return
        chosen = choose([self._runs[name] for name in self.run_files if name in self._runs], self._fan_in)
        if chosen:
            self._merge = RunMergeJob(
                self._disk,
                self.files,
                self._kept,
                chosen,
                self._reserve_bytes,
                self._slice_bytes,
                self._piece_bytes,
            )
            self._plan = self._merge.plan(state)

    def _swap_merged(self, state: StateMachine, job: RunMergeJob) -> Iterator[None]:
        """The inputs stay for the snapshots that name them, and the next snapshot names the result."""
        for slot, table in job.runs.tables() if job.runs is not None else ():
            if (partition := state.topics.slots.get(slot)) is not None:
                partition.index.merged(table, job.files)
            yield
        names = [file.name for file in job.files]
        at = self.run_files.index(names[0])
        self.run_files[at : at + len(names)] = [] if job.runs is None else [job.name]
        for name in names:
            del self._runs[name]
        if job.runs is not None:
            self._runs[job.name] = job.runs
        self._merge = self._swaps = None
        self._choose_merge(state)

    def _swap(self, state: StateMachine, job: CheckpointJob) -> Iterator[None]:
        yield from release_steps(state, job.snapshot)
        if job.error is not None:
            self._report(f"checkpoint at {job.snapshot.index} not written: {job.error}")
        tables = job.snapshot.tables
        if job.run_file is not None and job.runs is None:
            # Its runs stay on the heap as sealed tables; write them with the next one.
            self.run_files.remove(job.run_file)
            while tables:
                slot, columns = tables.popitem()
                if slot in state.topics.slots:
                    state.topics.slots[slot].index.unseal(columns)
                yield
        elif job.runs is not None:
            self._runs[job.runs.name] = job.runs
            for slot, table in job.runs.tables():
                tables.pop(slot, None)  # so that those on the heap are released one by one too
                snapshots.adopt(state, slot, table)
                yield
        for name in self.run_files:
            for _ in self._look(state, name):
                yield
        if job.error is None:
            state.timers.store.sealed(job.snapshot.timers, job.timers_file)
            self._count(job)
            if self._merge is None:
                self._choose_merge(state)
            superseded = self._superseded()  # includes the damaged one, if it was not removed before
            self._unneeded = superseded or self._unneeded
        self._swaps = self._running = None

    def _count(self, job: CheckpointJob) -> None:
        """Adopt it as complete, unless it proved damaged while it was put in place."""
        index = job.snapshot.index
        self._last_bytes = job.snapshot_bytes
        if not job.damaged:
            self.indexes.append(index)
            self._named[index] = snapshots.named_files(job.snapshot.meta)

    def _superseded(self) -> list[str]:
        """Snapshots beyond those that are kept, and files that none of the kept names and the state does not
        read; forgotten here."""
        while len(self.indexes) > SNAPSHOTS_KEPT:
            self._named.pop(self.indexes.pop(0), None)
        kept = {snapshot_name(index) for index in self.indexes}
        names = self._disk.names()
        found = [name for name in names if name.endswith(".snap") and name not in kept]
        if all(index in self._named for index in self.indexes):
            needed = {name for named in self._named.values() for name in named}
            needed.update(self.run_files, self._read())
            parts = [name for name in names if name.endswith(STATE_PARTS) and name not in needed]
            for name in parts:
                self._runs.pop(name, None)
            found += parts
        return found

    def drop_damaged(self, name: str) -> bool:
        """A snapshot, or a file that snapshots name, proved damaged: remove it in a later step, and take
        another snapshot then. False: the state in memory reads this file, so it cannot be relied on
        either."""
        if name.endswith(STATE_PARTS):
            return self._drop_damaged_part(name)
        index = int(name.removesuffix(".snap"), 16)
        if isinstance(self._running, CheckpointJob) and self._running.snapshot.index == index:
            self._running.damaged = True
        if index in self.indexes:
            self.indexes.remove(index)
        self._named.pop(index, None)
        self._unneeded = [*(self._unneeded or ()), name]
        self.wanted_at = self._wait_bytes = 0
        return True

    def _drop_damaged_part(self, name: str) -> bool:
        """A start that finds it damaged uses an older snapshot and redoes the log, so it may belong to a
        snapshot that is not used. Of a snapshot whose files are not known, it may be one."""
        if name in self.run_files or name in self._read():
            return False
        using = [index for index in self.indexes if name in self._named.get(index, (name,))]
        for index in using:
            self.indexes.remove(index)
            self._named.pop(index, None)
        self._runs.pop(name, None)
        self._unneeded = [*(self._unneeded or ()), name]
        if using:
            self.wanted_at = self._wait_bytes = 0
        return True

    def _read(self) -> set[str]:
        """Names of files of timers that the state reads, and of all files of the state that are being read,
        written or named just now."""
        if self._timers is None:
            return set()
        names = {file.name for file in self._timers.files}
        if self._merge is not None:
            names.update((self._merge.name, *(file.name for file in self._merge.files)))
        if isinstance(self._running, CheckpointJob):
            names.add(self._running.timers_name)
        under_way = self._running if isinstance(self._running, CheckpointJob) else self._capture
        if under_way is not None:
            names.update(file.name for file in under_way.snapshot.timers.files)
            names.update(under_way.snapshot.meta["run_files"])
        return names

    def oldest_needed_index(self) -> int | None:
        """Log entries after this one are needed to recover from the older of the kept snapshots."""
        # There may be more: a crash can leave a superseded one, whose part of the log is gone.
        return self.indexes[-SNAPSHOTS_KEPT] if len(self.indexes) >= SNAPSHOTS_KEPT else None

    def recover(
        self, state_factory: Callable[[], StateMachine], *, doubtful: bool = False
    ) -> tuple[StateMachine, int]:
        """The state of the newest good snapshot and the term of its last entry; an empty state and 0 if none.
        ``doubtful``: damage was found in some file, so every block of every file is checked.

        A damaged snapshot is reported, and the one before it is used. Raises NewerLevel for a sound
        one of newer software: it is not damaged, and continuing without it would look like damage.
        """
        remove_half_written(self._disk)
        names = sorted((n for n in self._disk.names() if n.endswith(".snap")), reverse=True)
        chosen: tuple[StateMachine, int] | None = None
        for name in names:
            if chosen is not None:
                self.indexes.insert(0, int(name[:-5], 16))
                continue
            state = state_factory()
            try:
                data = self._disk.read_all(name)
                term, files = snapshots.restore(state, name, data)
                self._last_bytes = len(data)
                run_files = [file for file in files if not file.endswith(SUFFIX)]
                for run_file in run_files:
                    runs = self._runs[run_file] = open_runs(self.files.file(run_file), self._kept)
                    snapshots.adopt_runs(state, runs.tables())
                self._restore_timers(state, name, [file for file in files if file.endswith(SUFFIX)], doubtful)
            except snapshots.NewerLevel:
                raise
            except (CorruptLog, ReadFailed, UnknownVersion) as error:
                # UnknownVersion too: one flipped bit can cause it. What follows is redone from the log.
                self._report(f"{name} is damaged and not used: {error}")
                continue
            self.run_files = list(run_files)
            self._named[state.applied_index] = files
            self.indexes.insert(0, int(name[:-5], 16))
            chosen = state, term
        state, term = chosen or (state_factory(), 0)
        self._timers = state.timers.store
        return state, term

    def _restore_timers(self, state: StateMachine, name: str, names: Sequence[str], doubtful: bool) -> None:
        store = state.timers.store
        store.restore(open_files(self.files, names, doubtful=doubtful))
        check_count(name, store.files, store.cursor, state.timers.counts.total)


def _is_left(steps: Iterator[None], visits: int) -> bool:
    """Do so many of the steps; whether any may be left."""
    return sum(1 for _ in islice(steps, visits)) == visits


def snapshot_name(index: int) -> str:
    """File name of the snapshot after log entry ``index``."""
    return f"{index:016x}.snap"
