"""Timers in checkpoints: what comes back after a restart, interrupted merges, and damage in their files."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.replica.checkpoints import (
    CheckpointJob,
    Checkpoints,
    MergeJob,
    snapshot_name,
    timers_name,
)
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.timers import store
from escrowmq.replication.timers.record import KEY_BYTES, RECORD, deliver_ms_of, last_key, log_index_of, split
from escrowmq.replication.timers.sealed_file import FAN_IN, SealedFile
from tests.sim.environment.disk import PowerCut, SimDisk
from tests.support.fed_state import dump, waiting
from tests.support.storage import sim_disk, take, to_the_end

NOW_MS = 1_700_000_000_000
VISITS = 10


def empty() -> StateMachine:
    return StateMachine(0, 1)


class Kept:
    """A state with one partition, on a disk, and what should wait in it. ``sizes``: of ``Checkpoints``."""

    def __init__(self, **sizes: Any) -> None:
        self.sizes = sizes
        self.state, self.disk = empty(), sim_disk()
        self.state.topics.create("t", {"partitions": 1})
        self.state.applied_index, self.state.now_ms = 1, NOW_MS
        self.checkpoints = Checkpoints(self.disk, **sizes)
        self.expected: list[bytes] = []

    def schedule(self, *delays: int) -> None:
        self.state.applied_index += 1
        index = self.state.applied_index
        records = [
            RECORD.pack(NOW_MS + delay, 0, index, row, index, 30, 100) for row, delay in enumerate(delays)
        ]
        self.state.timers.keep(records, self.state.timers.counts.of(records), NOW_MS)
        self.expected = sorted([*self.expected, *records])

    def cancel(self, record: bytes) -> None:
        self.state.applied_index += 1
        counts, newest = self.state.timers.counts.of([record]), [log_index_of(record)]
        self.state.timers.cancel(NOW_MS, record[:KEY_BYTES], [1], counts, newest)
        self.expected.remove(record)

    def release(self, until_ms: int) -> None:
        self.state.applied_index += 1
        gone = [record for record in self.expected if deliver_ms_of(record) <= until_ms]
        self.state.timers.release(last_key(until_ms), self.state.timers.counts.of(gone))
        self.expected = [record for record in self.expected if record not in gone]

    def names(self) -> list[str]:
        return [name for name in self.disk.names() if "timers" in name]

    def again(self, *, doubtful: bool = False) -> tuple[StateMachine, Checkpoints, list[str]]:
        """After a restart."""
        reports: list[str] = []
        checkpoints = Checkpoints(self.disk, reports.append, **self.sizes)
        state, _ = checkpoints.recover(empty, doubtful=doubtful)
        return state, checkpoints, reports


def with_two_files() -> Kept:
    """Snapshots 2 and 3, each with a file of its own; the newer one names both."""
    kept = Kept()
    kept.schedule(1_000, 400_000)
    take(kept.checkpoints, kept.state)
    kept.schedule(2_000, 100_000_000)
    take(kept.checkpoints, kept.state)
    assert kept.names() == [timers_name(2), timers_name(3)]
    return kept


# ------------------------------------------------------------------ what comes back


def test_what_waits_comes_back_after_a_restart() -> None:
    kept = with_two_files()
    kept.cancel(kept.expected[1])
    kept.release(NOW_MS + 1_500)
    take(kept.checkpoints, kept.state)
    state, _, reports = kept.again()
    assert waiting(state) == kept.expected == waiting(kept.state) and not reports
    assert dump(state) == dump(kept.state)


def test_changes_during_a_checkpoint_are_not_in_it_and_not_lost() -> None:
    kept = Kept()
    kept.schedule(1_000, 2_000)
    expected, indexes = kept.expected.copy(), kept.state.applied_index
    kept.checkpoints.begin(kept.state, 1)
    kept.schedule(3_000)
    kept.cancel(kept.expected[0])
    kept.release(NOW_MS + 2_500)
    to_the_end(kept.checkpoints, kept.state)
    assert waiting(kept.state) == kept.expected
    state, _, _ = kept.again()
    assert (state.applied_index, waiting(state)) == (indexes, expected)


def test_a_file_is_kept_as_long_as_a_snapshot_names_it_or_the_state_reads_it() -> None:
    kept = with_two_files()
    kept.release(NOW_MS + 500_000)
    assert [file.name for file in kept.state.timers.store.files] == [timers_name(3)]
    kept.schedule(600_000)
    take(kept.checkpoints, kept.state)
    assert timers_name(2) in kept.names(), "the older of the two snapshots names it"
    kept.release(NOW_MS + 600_000)
    take(kept.checkpoints, kept.state)
    assert kept.names() == [timers_name(3), timers_name(5)]
    assert kept.state.timers.store.retired == []


def test_nothing_is_written_for_timers_that_are_all_released() -> None:
    kept = Kept()
    kept.schedule(1_000)
    kept.release(NOW_MS + 1_000)
    kept.schedule(2_000)
    kept.release(NOW_MS + 2_000)
    take(kept.checkpoints, kept.state)
    assert kept.names() == [] and waiting(kept.again()[0]) == []


def test_a_full_disk_costs_a_checkpoint_and_no_timer() -> None:
    kept = Kept()
    kept.schedule(*range(1_000, 60_000, 1_000))
    kept.disk.capacity = 700
    kept.checkpoints.begin(kept.state, 1)
    to_the_end(kept.checkpoints, kept.state)
    assert kept.checkpoints.indexes == [] and waiting(kept.state) == kept.expected
    kept.disk.capacity = None
    kept.schedule(5_500)
    take(kept.checkpoints, kept.state)
    assert waiting(kept.again()[0]) == kept.expected == waiting(kept.state)


def test_many_in_memory_make_a_checkpoint_due() -> None:
    kept = Kept(young_max=3)
    take(kept.checkpoints, kept.state)
    kept.schedule(1_000, 2_000)
    assert not kept.checkpoints.due(kept.state.applied_index)
    kept.schedule(3_000)
    assert kept.checkpoints.due(kept.state.applied_index)
    take(kept.checkpoints, kept.state)
    assert not kept.checkpoints.due(kept.state.applied_index)


def test_no_step_of_a_capture_reads_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = with_two_files()
    kept.schedule(*range(1_000, 9_000))

    applying = True

    def watched(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: Any) -> Any:
            assert not applying, "in the applying thread"
            return read(*args)

        return reading

    monkeypatch.setattr(store, "split", watched(split))
    monkeypatch.setattr(SealedFile, "_checked", watched(SealedFile._checked))
    kept.checkpoints.begin(kept.state, 1)
    while (job := kept.checkpoints.step(kept.state, VISITS)) is None:
        pass
    assert isinstance(job, CheckpointJob)
    applying = False
    job.run()
    applying = True
    kept.checkpoints.done(kept.state, job)
    kept.checkpoints.step(kept.state, VISITS)
    kept.release(NOW_MS + 1_500)
    applying = False
    assert waiting(kept.state) == kept.expected


# ------------------------------------------------------------------ merging


def ready_to_merge(slice_bytes: int = 200) -> Kept:
    """Seven files; the next checkpoint brings the eighth, and then they are merged."""
    kept = Kept(slice_bytes=slice_bytes)
    for n in range(FAN_IN - 1):
        kept.schedule(*(1_000 * at + n for at in range(1, 40)))
        if n:
            kept.cancel(kept.expected[n])
        take(kept.checkpoints, kept.state)
    kept.schedule(77_000)
    return kept


def merging_begun(kept: Kept) -> MergeJob:
    kept.checkpoints.begin(kept.state, 1)
    while not isinstance(job := kept.checkpoints.step(kept.state, VISITS), MergeJob):
        if job is not None:
            job.run()
            kept.checkpoints.done(kept.state, job)
    return job


def to_its_end(kept: Kept, job: MergeJob) -> None:
    """After ``job.run``."""
    kept.checkpoints.done(kept.state, job)
    to_the_end(kept.checkpoints, kept.state)


def test_eight_files_are_merged_and_the_next_snapshot_names_the_one() -> None:
    kept = ready_to_merge()
    take(kept.checkpoints, kept.state)
    (merged,) = kept.state.timers.store.files
    assert merged.name == f"{kept.state.applied_index:016x}-1.timers"
    assert waiting(kept.state) == kept.expected == waiting(kept.again()[0])
    for _ in range(2):
        kept.schedule(90_000)
        take(kept.checkpoints, kept.state)
    assert len(kept.names()) == 3 and waiting(kept.again()[0]) == kept.expected


def test_a_checkpoint_does_not_wait_for_a_merge() -> None:
    kept = ready_to_merge()
    job = merging_begun(kept)
    kept.schedule(88_000)
    kept.checkpoints.want(kept.state.applied_index)
    assert kept.checkpoints.due(kept.state.applied_index)
    kept.checkpoints.begin(kept.state, 1)
    assert kept.checkpoints.step(kept.state, VISITS) is None, "one job at a time"
    job.run()
    assert not job.finished
    kept.checkpoints.done(kept.state, job)
    checkpoint = kept.checkpoints.step(kept.state, VISITS)
    assert isinstance(checkpoint, CheckpointJob)
    checkpoint.run()
    kept.checkpoints.done(kept.state, checkpoint)
    to_the_end(kept.checkpoints, kept.state)
    assert len(kept.state.timers.store.files) == 2
    assert waiting(kept.state) == kept.expected == waiting(kept.again()[0])


def test_a_release_during_a_merge_is_not_undone_by_it() -> None:
    kept = ready_to_merge()
    job = merging_begun(kept)
    job.run()
    kept.release(NOW_MS + 20_000)
    kept.cancel(kept.expected[3])
    to_its_end(kept, job)
    take(kept.checkpoints, kept.state)
    assert waiting(kept.state) == kept.expected == waiting(kept.again()[0])
    kept.release(NOW_MS + 100_000)
    assert kept.state.timers.store.files == []


def test_a_merge_that_is_interrupted_anywhere_leaves_no_trace() -> None:
    operations = 0
    while True:
        kept = ready_to_merge(slice_bytes=4_000)
        job = merging_begun(kept)
        kept.disk.stop_after(operations)
        try:
            job.run()
            to_its_end(kept, job)
        except PowerCut:
            kept.disk.power_cut()
        else:
            assert job.finished and operations > 3
            break
        state, checkpoints, reports = kept.again()
        assert waiting(state) == kept.expected and not reports
        assert not any(name.endswith(".tmp") for name in kept.names())
        kept.state, kept.checkpoints = state, checkpoints
        kept.schedule(99_000)
        take(checkpoints, state)
        assert len(state.timers.store.files) == 2 and waiting(kept.again()[0]) == kept.expected
        operations += 1


def test_a_disk_that_is_full_during_a_merge_is_no_harm() -> None:
    kept = ready_to_merge()
    job = merging_begun(kept)
    job.run()
    kept.disk.capacity = 0
    to_its_end(kept, job)
    assert job.error is not None and len(kept.state.timers.store.files) == FAN_IN
    assert not any(name.endswith(".tmp") for name in kept.names())
    kept.disk.capacity = None
    take(kept.checkpoints, kept.state)
    assert len(kept.state.timers.store.files) == 1 and waiting(kept.again()[0]) == kept.expected


# ------------------------------------------------------------------ damage


def spoil(disk: SimDisk, name: str, at: int = 20) -> None:
    disk.flip(name, at, 4)


def test_a_restart_does_not_read_the_blocks_and_a_doubtful_one_does() -> None:
    kept = with_two_files()
    spoil(kept.disk, timers_name(3))
    state, _, reports = kept.again()
    assert state.applied_index == 3 and not reports
    with pytest.raises(CorruptLog, match=timers_name(3)):
        waiting(state)
    state, checkpoints, reports = kept.again(doubtful=True)
    assert state.applied_index == 2 and "damaged" in reports[0]
    assert checkpoints.drop_damaged(timers_name(3)) is True
    to_the_end(checkpoints, state, VISITS)
    assert kept.names() == [timers_name(2)]


def test_a_damaged_file_that_the_state_reads_cannot_be_let_go() -> None:
    kept = with_two_files()
    assert kept.checkpoints.drop_damaged(timers_name(2)) is False
    kept.release(NOW_MS + 500_000)
    assert kept.checkpoints.drop_damaged(timers_name(2)) is True
    assert kept.checkpoints.indexes == [], "both snapshots name it"
    to_the_end(kept.checkpoints, kept.state, VISITS)
    assert kept.checkpoints.due(kept.state.applied_index), "another one with the next entry"


@pytest.mark.parametrize("when", ["captured", "written"])
def test_a_file_that_is_being_written_or_named_cannot_be_let_go(when: str) -> None:
    kept = with_two_files()
    kept.schedule(5_000)
    kept.checkpoints.begin(kept.state, 1)
    if when == "written":
        job = kept.checkpoints.step(kept.state, VISITS)
        assert isinstance(job, CheckpointJob)
        job.run()
        assert kept.checkpoints.drop_damaged(timers_name(4)) is False
    kept.release(NOW_MS + 500_000)
    assert kept.checkpoints.drop_damaged(timers_name(2)) is False


def test_damage_that_a_merge_meets_ends_the_replica() -> None:
    kept = ready_to_merge()
    spoil(kept.disk, timers_name(2))
    state, checkpoints, _ = kept.again()
    kept.state, kept.checkpoints = state, checkpoints
    kept.schedule(10)
    job = merging_begun(kept)
    with pytest.raises(CorruptLog, match=timers_name(2)):
        job.run()


def lost(kept: Kept) -> None:
    """A defect: what was added is not in memory."""
    kept.state.applied_index += 1
    record = RECORD.pack(NOW_MS + 9, 0, 5, 0, kept.state.applied_index, 30, 100)
    counts = kept.state.timers.counts
    counts.add(*counts.of([record]))


def test_a_checkpoint_of_fewer_timers_than_the_log_has_is_damage() -> None:
    kept = with_two_files()
    lost(kept)
    kept.checkpoints.begin(kept.state, 1)
    job = kept.checkpoints.step(kept.state, VISITS)
    assert isinstance(job, CheckpointJob)
    with pytest.raises(CorruptLog, match="4 timers, and the log has 5"):
        job.run()
    assert not kept.disk.exists(snapshot_name(kept.state.applied_index))


def test_a_snapshot_whose_files_are_missing_or_too_few_is_not_used() -> None:
    kept = with_two_files()
    kept.disk.remove(timers_name(3))
    state, _, reports = kept.again()
    assert state.applied_index == 2 and "missing" in reports[0]
    kept.disk.write_atomic(timers_name(3), [kept.disk.read_all(timers_name(2))])
    kept.disk.remove(timers_name(2))
    kept.disk.write_atomic(timers_name(2), [kept.disk.read_all(timers_name(3))])
    state, _, reports = kept.again()
    assert state.applied_index == 3, "the same number of timers: only its bytes could tell"


@pytest.mark.parametrize("seed", range(6))
def test_a_long_life_with_restarts(seed: int) -> None:
    """Schedules, cancels, releases, checkpoints, crashes and merges in a drawn order."""
    kept = Kept(timer_classes=(16, 128, 1_024), slice_bytes=300)
    drawn, now_ms = random.Random(seed), NOW_MS
    for _ in range(250):
        what = drawn.random()
        if what < 0.5:
            first = now_ms - NOW_MS + 1
            kept.schedule(
                *(first + drawn.choice((3, 900, 70_000, 9_000_000)) for _ in range(drawn.randrange(1, 6)))
            )
        elif what < 0.65 and kept.expected:
            kept.cancel(drawn.choice(kept.expected))
        elif what < 0.75:
            now_ms += drawn.choice((2, 800, 50_000))
            kept.release(now_ms)
        elif what < 0.97:
            take(kept.checkpoints, kept.state)
            assert len(kept.state.timers.store.files) < 4 * FAN_IN
            if drawn.random() < 0.3:
                state, checkpoints, reports = kept.again(doubtful=drawn.random() < 0.5)
                assert dump(state)["timers"] == dump(kept.state)["timers"] and not reports
                kept.state, kept.checkpoints = state, checkpoints
        assert waiting(kept.state) == kept.expected
