"""Planted faults between the product and its disk: data that is not synced, not checked, or not kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from escrowmq.replication.errors import FsyncFailed
from escrowmq.replication.format import entry
from escrowmq.replication.log import recovery, segment
from escrowmq.replication.log.disk import File
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.syncjob import SyncJob
from escrowmq.replication.replica import run_merging
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.replica.run_merging import RunMergeJob
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from tests.controls.planting import plant
from tests.controls.raft_faults import LOST, VOTES
from tests.sim.environment.disk import SimDisk, SimFile
from tests.sim.group import broker_app

#: Reports of a replica whose state does not match its log.
STATE = (
    *(
        "state-differs",
        "restart-differs",
        "inconsistent-offsets",
        "lost-write",
        "duplicate",
        "committed-twice",
        "torn",
        "gap",
    ),
    *("both-decided", "unstable-outcome", "unresolved", "wrong-place", "lost-offset", "prepared-lost"),
    "unexpected-answer",
)
#: The product itself finds that synced data is missing; without flipped bits that is a violation.
REFUSED = "CorruptLog"
#: The replica calls entries durable that its disk has not kept, while other disks have. It cannot mend
#: them: until the power fails it reads them from its page cache, where they are sound.
NOT_KEPT = "unmended"


@plant("fsync-off", *LOST, *VOTES, REFUSED)
def fsync_off(patch: pytest.MonkeyPatch) -> None:
    """The disk reports a sync, and keeps everything in the page cache until the power fails."""
    patch.setattr(SimFile, "sync", lambda self: self._check("sync"))


@plant("fsync-of-the-log-off", *LOST, NOT_KEPT, passing_over=(REFUSED,), start=7)
def fsync_of_the_log_off(patch: pytest.MonkeyPatch) -> None:
    """Votes and snapshots are synced, entries are not: acknowledged entries are lost without a trace."""
    sync = SimFile.sync
    patch.setattr(SimFile, "sync", lambda self: None if self._name.endswith(".log") else sync(self))


@plant("directory-not-synced", *LOST, *VOTES, REFUSED, start=1)
def directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Files are synced, but their names in the directory are not."""
    patch.setattr(SimDisk, "sync_dir", lambda self: self.step("sync_dir"))


@plant(
    "durable-before-fsync",
    *LOST,
    REFUSED,
    "restart-differs",  # what was applied is not on the disk yet
    passing_over=("OffsetGone", "KeyError", "unbounded"),
    workload="raw",
    start=3,
)
def durable_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """The journal calls an entry durable when its sync begins, not when it has ended."""
    begin = SegmentJournal.begin_sync

    def hasty(self: SegmentJournal) -> SyncJob | None:
        job = begin(self)
        if job is not None:
            self.durable_index = self.last_index
        return job

    patch.setattr(SegmentJournal, "begin_sync", hasty)


@plant(
    "failed-fsync-believed",
    *LOST,
    REFUSED,
    NOT_KEPT,
    workload="raw",
    often={"failed-fsync": 60, "power-cut": 40},
)
def failed_fsync_believed(patch: pytest.MonkeyPatch) -> None:
    """A replica continues after a failed sync, as if the next one would write what the kernel has dropped."""
    sync = SimFile.sync

    def shrug(self: SimFile) -> None:
        try:
            sync(self)
        except FsyncFailed:
            if not self._name.endswith(".log"):
                raise

    patch.setattr(SimFile, "sync", shrug)


@plant("torn-tail-cuts-too-much", "restart-differs", *LOST, REFUSED, workload="raw")
def torn_tail_cuts_too_much(patch: pytest.MonkeyPatch) -> None:
    """Recovery cuts off the last sound entry too."""
    scan_newest = recovery._scan_newest

    def shorter(first: int, file: File, log: recovery.RecoveredLog, mendable: bool) -> entry.Scan:
        found = scan_newest(first, file, log, mendable)
        if len(found.positions) > 2 and found.terms[-1][0] < first + len(found.positions) - 2:
            found.positions.pop()
        return found

    patch.setattr(recovery, "_scan_newest", shorter)


@plant(
    "checksums-off",
    *LOST,
    *STATE,
    "unknown-message",
    "ApplyFailed",
    REFUSED,
    chaos_s=10.0,
    passing_over=("AssertionError",),
    often={"flip-log": 120, "roll": 40},
)
def checksums_off(patch: pytest.MonkeyPatch) -> None:
    """Checksums of entries are not verified, so that a flipped bit goes unnoticed."""

    def trusting(data: memoryview, at: int) -> entry.EntryHeader | None:
        body = at + entry.HEADER_SIZE
        if body > len(data):
            return None
        magic, _, _, unsynced, size, _, term, index = entry.HEADER.unpack_from(data, at)
        if magic != entry._MAGIC or body + size > len(data):
            return None
        return entry.EntryHeader(index, term, unsynced, size)

    for module in (entry, recovery):
        patch.setattr(module, "read_entry", trusting)
    patch.setattr(segment, "sound_command", lambda raw, index: raw[entry.HEADER_SIZE :])


@plant("snapshot-without-its-last-entry", *STATE, often={"snapshot": 40, "roll": 40, "kill": 30})
def snapshot_without_its_last_entry(patch: pytest.MonkeyPatch) -> None:
    """A snapshot gives as its index an entry whose effects it does not hold."""
    whole = Replica.apply

    def early(self: Replica, index: int, term: int, command: bytes) -> Any:
        if self.checkpoints.due(index, len(command)):
            self.checkpoints.begin(self.state, term)
            _let(self.checkpoints, index=index)
            self._checkpoint_slice()
        return whole(self, index, term, command)

    patch.setattr(Replica, "apply", early)


@plant("snapshot-without-settled", *STATE, start=2, often={"snapshot": 40, "roll": 40, "kill": 30})
def snapshot_without_settled(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets which transactions are settled."""
    _begun(patch, settled=[])


@plant("snapshot-without-producers", *STATE, start=2, often={"snapshot": 40, "roll": 40, "kill": 30})
def snapshot_without_producers(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets the sequence numbers of producers: a batch that is sent again is stored again."""
    _begun(patch, producers=[])


@plant("snapshot-of-several-moments", *STATE, often={"snapshot": 60, "roll": 40, "kill": 30})
def snapshot_of_several_moments(patch: pytest.MonkeyPatch) -> None:
    """A snapshot holds a partition as it is when the snapshot reaches it, and not as it was when the snapshot
    began."""

    def append(self: PartitionIndex, *args: int) -> int:
        cut, self._cut = self._cut, self._cuts.number
        base = whole(self, *args)
        self._cut = cut
        return base

    whole = PartitionIndex.append
    patch.setattr(PartitionIndex, "append", append)


@plant(
    "snapshot-in-place",
    *STATE,
    *LOST,
    REFUSED,
    "UnknownVersion",
    chaos_s=10.0,
    within=40,
    start=11,
    often={"snapshot": 60, "roll": 60, "power-cut": 60},
)
def snapshot_in_place(patch: pytest.MonkeyPatch) -> None:
    """A file that must appear whole or not at all is written under its final name, unsynced."""

    def careless(self: SimDisk, name: str, parts: Iterable[bytes]) -> None:
        self.remove(name)
        file = self.open(name, create=True)
        for part in parts:
            file.append((part,))

    patch.setattr(SimDisk, "write_atomic", careless)


def _begun(patch: pytest.MonkeyPatch, **changes: object) -> None:
    """Take every snapshot with these fields changed."""
    begin = Checkpoints.begin

    def changed(self: Checkpoints, state: StateMachine, term: int) -> None:
        begin(self, state, term)
        _let(self, **changes)

    patch.setattr(Checkpoints, "begin", changed)


def _let(checkpoints: Checkpoints, **changes: object) -> None:
    assert checkpoints._capture is not None
    checkpoints._capture.snapshot = replace(checkpoints._capture.snapshot, **changes)


#: Schedules in which run files are merged, and read again.
MERGES: dict[str, int] = {"snapshot": 60, "roll": 60, "kill": 40}


@plant("merged-away-too-early", REFUSED, *STATE, often=MERGES, start=5)
def merged_away_too_early(patch: pytest.MonkeyPatch) -> None:
    """Run files go as soon as they are merged, although only the next snapshot names the result."""
    _merging(patch)
    swap = Checkpoints._swap_merged

    def early(self: Checkpoints, state: StateMachine, job: RunMergeJob) -> Iterator[None]:
        yield from swap(self, state, job)
        self._unneeded = [*(self._unneeded or ()), *(file.name for file in job.files)]

    patch.setattr(Checkpoints, "_swap_merged", early)


@plant("merged-without-the-first", "AssertionError", REFUSED, *STATE, often=MERGES, start=1)
def merged_without_the_first(patch: pytest.MonkeyPatch) -> None:
    """A merged run file lacks what the first of its inputs has."""
    _merging(patch)
    of = run_merging._Parts._of
    patch.setattr(run_merging._Parts, "_of", lambda self, index: of(self, index)[-1:])


@plant(
    "merged-file-not-synced",
    REFUSED,
    *STATE,
    start=104,
    chaos_s=12.0,
    often={**MERGES, "power-cut": 60},
)
def merged_file_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A merged run file gets its name before its content is on the disk."""
    _merging(patch)
    patch.setattr(run_merging._Output, "end", _end_without_sync)


def _merging(patch: pytest.MonkeyPatch) -> None:
    """Schedules are too short for merges of eight files."""
    patch.setattr(broker_app, "FAN_IN", 2)


def _end_without_sync(self: run_merging._Output) -> None:
    self._flush()
    self._file.write_at(0, run_merging.packed_head(self._crc, self._directory))
