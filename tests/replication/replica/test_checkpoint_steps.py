"""A checkpoint during other work: no step takes longer with more partitions, and damage that is found in its
files meanwhile counts."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from escrowmq.replication.host import maintenance
from escrowmq.replication.host.maintenance import CheckpointThread
from escrowmq.replication.replica import checkpoints as under_test
from escrowmq.replication.replica.checkpoints import CheckpointJob, Checkpoints, snapshot_name
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.stored_runs import StoredTable
from tests.sim.environment.disk import SimDisk
from tests.support.storage import sim_disk, take, to_the_end

PARTITIONS = 600
VISITS = 10


class WatchedDisk(SimDisk):
    """Records what is done to files."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.called: list[str] = []

    def remove(self, name: str) -> None:
        self.called.append("remove")
        super().remove(name)

    def rename(self, name: str, new: str) -> None:
        self.called.append("rename")
        super().rename(name, new)

    def sync_dir(self) -> None:
        self.called.append("sync_dir")
        super().sync_dir()

    def write_atomic(self, name: str, parts: Iterable[bytes]) -> None:
        self.called.append("write_atomic")
        super().write_atomic(name, parts)


def begun(partitions: int = PARTITIONS) -> tuple[StateMachine, WatchedDisk, Checkpoints]:
    """A state with a run in each partition, at index 7."""
    state, disk = StateMachine(0, 1), WatchedDisk()
    state.topics.create("t", {"partitions": partitions})
    publish(state, 1)
    state.applied_index = 7
    return state, disk, Checkpoints(disk)


def publish(state: StateMachine, index: int) -> None:
    for partition in state.topics.slots.values():
        partition.index.append(index, 10, 50, 1, 5)


def written(state: StateMachine, checkpoints: Checkpoints) -> CheckpointJob:
    checkpoints.begin(state, 1)
    while (job := checkpoints.step(state, VISITS)) is None:
        pass
    assert isinstance(job, CheckpointJob)
    job.run()
    checkpoints.done(state, job)
    return job


# ------------------------------------------------------------------ found damaged


def test_a_file_that_is_removed_while_the_next_state_is_captured_comes_first() -> None:
    """The removal's job was lost sight of when the state was whole, and its end was taken for a mistake."""
    state, disk, checkpoints = begun()
    written(state, checkpoints)
    to_the_end(checkpoints, state, VISITS)
    state.applied_index = 8
    checkpoints.begin(state, 1)
    checkpoints.drop_damaged(snapshot_name(7))
    removal = checkpoints.step(state, VISITS)
    assert removal is not None and checkpoints.step(state, 2 * PARTITIONS) is None
    removal.run()
    checkpoints.done(state, removal)
    assert isinstance(checkpoints.step(state, 2 * PARTITIONS), CheckpointJob)
    assert not disk.exists(snapshot_name(7))


def found_damaged_while_it_is_put_in_place() -> tuple[Checkpoints, SimDisk]:
    state, disk, checkpoints = begun()
    written(state, checkpoints)
    checkpoints.step(state, VISITS)
    assert checkpoints.busy, "further slices are to come"
    checkpoints.drop_damaged(snapshot_name(7))  # as the scrubber reports it, or a peer that copies it
    to_the_end(checkpoints, state, VISITS)
    assert not disk.exists(snapshot_name(7))
    assert checkpoints.due(8), "another one with the next entry"
    state.applied_index = 8
    take(checkpoints, state)
    return checkpoints, disk


def test_a_snapshot_that_was_let_go_while_its_runs_were_put_in_place_does_not_count() -> None:
    """Otherwise retention would take the log to be safe up to there."""
    checkpoints, disk = found_damaged_while_it_is_put_in_place()
    assert checkpoints.indexes == [8] and checkpoints.oldest_needed_index() is None
    again, _ = Checkpoints(disk).recover(lambda: StateMachine(0, 1))
    assert again.applied_index == 8
    assert [p.index.end for p in again.topics.slots.values()] == [1] * PARTITIONS


def test_one_that_is_let_go_while_it_is_written_does_not_come_back() -> None:
    """The damaged file of that name was an older one; which of the two it was cannot be told."""
    state, disk, checkpoints = begun(3)
    checkpoints.begin(state, 1)
    while (job := checkpoints.step(state, VISITS)) is None:
        pass
    checkpoints.drop_damaged(snapshot_name(7))
    job.run()
    checkpoints.done(state, job)
    to_the_end(checkpoints, state, VISITS)
    assert checkpoints.indexes == [] and not disk.exists(snapshot_name(7))


def test_a_damaged_snapshot_is_removed_by_a_job_and_not_in_the_thread_that_applies() -> None:
    """Unlinking a large file takes long, and that thread sends heartbeats."""
    state, disk, checkpoints = begun(3)
    take(checkpoints, state)
    checkpoints.drop_damaged(snapshot_name(7))
    assert disk.exists(snapshot_name(7)) and not checkpoints.due(8), "another one when it is gone"
    job = checkpoints.step(state, VISITS)
    assert job is not None and disk.exists(snapshot_name(7))
    assert checkpoints.step(state, VISITS) is None, "one job at a time"
    job.run()
    checkpoints.done(state, job)
    assert not disk.exists(snapshot_name(7)) and checkpoints.due(8)


# ------------------------------------------------------------------ what a step takes


class Looks(dict[int, Any]):
    """Partitions by slot, which counts how often one was looked up."""

    count = 0

    def __contains__(self, slot: object) -> bool:
        self.count += 1
        return super().__contains__(slot)


def looked_at_ends(monkeypatch: pytest.MonkeyPatch) -> list[StoredTable]:
    seen: list[StoredTable] = []
    end = StoredTable.end.fget  # type: ignore[attr-defined]

    def look(self: StoredTable) -> int:
        seen.append(self)
        found: int = end(self)
        return found

    monkeypatch.setattr(StoredTable, "end", property(look))
    return seen


def test_no_step_after_it_was_written_looks_at_more_partitions_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, _, checkpoints = begun()
    written(state, checkpoints)
    seen = looked_at_ends(monkeypatch)
    steps = 0
    while checkpoints.busy:
        checkpoints.step(state, VISITS)
        assert len(seen) <= 3 * VISITS, f"step {steps}"
        steps, seen[:] = steps + 1, []
    assert steps >= PARTITIONS // VISITS


def test_no_step_looks_at_all_partitions_of_a_topic_that_was_deleted() -> None:
    state, disk, checkpoints = begun()
    take(checkpoints, state)
    (runs,) = [name for name in disk.names() if name.endswith(".runs")]
    state.topics.delete("t")
    slots = state.topics.slots = Looks(state.topics.slots)
    for index in (8, 9, 10):
        state.applied_index = index
        checkpoints.begin(state, 1)
        assert slots.count <= under_test.LOOKS_AT_BEGIN
        slots.count = 0
        while (job := checkpoints.step(state, VISITS)) is None:
            pass
        job.run()
        checkpoints.done(state, job)
        while checkpoints.busy:
            removal = checkpoints.step(state, VISITS)
            assert slots.count <= VISITS
            if removal is not None:
                removal.run()
                checkpoints.done(state, removal)
            slots.count = 0
    assert not disk.exists(runs), "nobody reads it, and both snapshots that named it are gone"


def test_what_a_file_holds_of_a_topic_that_is_there_keeps_it() -> None:
    state, disk, checkpoints = begun(100)
    state.topics.create("u", {"partitions": 1})
    state.topics.find("u", 0).index.append(1, 10, 50, 1, 5)  # type: ignore[union-attr]
    take(checkpoints, state)
    (runs,) = [name for name in disk.names() if name.endswith(".runs")]
    state.topics.delete("t")
    for index in range(8, 14):
        state.applied_index = index
        take(checkpoints, state)
    assert disk.exists(runs)
    again, _ = Checkpoints(disk).recover(lambda: StateMachine(0, 1))
    assert len(again.topics.find("u", 0).index.runs_from(0)) == 1  # type: ignore[union-attr]


# ------------------------------------------------------------------ what waits for the disk


def superseding() -> tuple[StateMachine, WatchedDisk, Checkpoints]:
    """The last of the checkpoints after which files are removed."""
    state, disk, checkpoints = begun(3)
    for index in (7, 8):
        state.applied_index = index
        publish(state, index)
        take(checkpoints, state)
    state.applied_index = 9
    disk.called.clear()
    publish(state, 9)
    checkpoints.begin(state, 1)
    return state, disk, checkpoints


def test_the_applying_thread_writes_and_removes_no_file() -> None:
    """Unlinking a large file takes as long as several heartbeats."""
    state, disk, checkpoints = superseding()
    jobs = 0
    while checkpoints.busy:
        job = checkpoints.step(state, VISITS)
        assert disk.called == []
        if job is not None:
            job.run()
            disk.called.clear()
            checkpoints.done(state, job)
            assert disk.called == []
            jobs += 1
    assert jobs == 2 and not disk.exists(snapshot_name(7)) and checkpoints.indexes == [8, 9]


def test_none_begins_while_files_are_removed() -> None:
    """Otherwise its run file, which no snapshot names yet, could be among them."""
    state, _, checkpoints = superseding()
    while (job := checkpoints.step(state, VISITS)) is None or isinstance(job, CheckpointJob):
        if job is not None:
            job.run()
            checkpoints.done(state, job)
    checkpoints.want(9)
    assert not checkpoints.due(10)
    job.run()
    checkpoints.done(state, job)
    assert checkpoints.due(10)


# ------------------------------------------------------------------ beside other threads


def test_the_thread_that_writes_rests_so_often_that_others_get_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every half millisecond: packing and visiting ten thousand topics takes a tenth of a second."""
    state, disk = StateMachine(0, 1), sim_disk()
    for n in range(1_000):
        state.topics.create(f"t{n}", {"partitions": 4})
    publish(state, 1)
    state.applied_index = 7
    packed, since, pauses = under_test.snapshots.pack, [0], list[int]()

    def pack(value: Any) -> bytes:
        since[0] += 1
        return packed(value)

    def rest() -> None:
        pauses.append(since[0])
        since[0] = 0

    monkeypatch.setattr(under_test.snapshots, "pack", pack)
    checkpoints = Checkpoints(disk)
    checkpoints.begin(state, 1)
    while (job := checkpoints.step(state, 10_000)) is None:
        pass
    job.run(rest)
    checkpoints.done(state, job)
    assert disk.exists(snapshot_name(7))
    assert max(pauses) < 100, "so many topics are packed without a rest"
    assert pauses.count(0) > 3 * 4_000 / 64, "the run file is written, summed and read"


def test_a_replica_s_checkpoints_are_written_with_these_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    rested, done = [], threading.Event()
    monkeypatch.setattr(maintenance, "rest", lambda: rested.append(threading.current_thread().name))
    state, _, checkpoints = begun()
    checkpoints.begin(state, 1)
    while (job := checkpoints.step(state, VISITS)) is None:
        pass
    thread = CheckpointThread("checkpoint-1", lambda error: None, lambda fn: fn())
    thread.start(job, done.set)
    assert done.wait(10.0) and thread.stop(10.0)
    assert set(rested) == {"checkpoint-1"} and sum(thread.seconds.counts) == 1


def two_snapshots() -> tuple[StateMachine, SimDisk, Checkpoints, str]:
    """The name is that of the run file which only the newer one needs."""
    state, disk, checkpoints = begun()
    take(checkpoints, state)
    publish(state, 8)
    state.applied_index = 8
    take(checkpoints, state)
    return state, disk, checkpoints, f"{8:016x}.runs"


def test_a_run_file_that_the_state_reads_cannot_be_let_go() -> None:
    _, disk, checkpoints, name = two_snapshots()
    assert disk.exists(name)
    assert checkpoints.drop_damaged(name) is False
    assert checkpoints.indexes == [7, 8]


def test_a_damaged_run_file_that_no_start_uses_goes_and_the_replica_stays() -> None:
    """The start took the older snapshot. Scrubbing met the file again after each start, and ended the replica
    each time, until a newer snapshot took its place."""
    _, disk, _, name = two_snapshots()
    disk.write_atomic(name, [bytes(disk.open(name).size())])
    again = Checkpoints(disk)
    state, _ = again.recover(lambda: StateMachine(0, 1))
    assert state.applied_index == 7, "from the older one"
    assert again.drop_damaged(name) is True
    to_the_end(again, state, VISITS)
    assert not disk.exists(name) and again.indexes == [7]


def test_a_snapshot_that_needs_a_damaged_run_file_does_not_count_any_more() -> None:
    state, disk, checkpoints, name = two_snapshots()
    checkpoints.run_files.remove(name)  # retention has passed all that the state read from it
    assert checkpoints.drop_damaged(name) is True
    assert checkpoints.indexes == [7], "a restart could not use the newer one"
    to_the_end(checkpoints, state, VISITS)
    assert not disk.exists(name) and checkpoints.due(9), "another one with the next entry"
