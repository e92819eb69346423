"""Run files are merged: what a replica reads stays the same, at every moment and after every crash."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import pytest

from benchmarks.stored import a_large_log, within_budget
from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.log.disk import StoredFiles
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.replica.run_merging import FAN_IN, RunMergeJob, level_of
from escrowmq.replication.state import stored_runs
from escrowmq.replication.state.index import Run
from escrowmq.replication.state.machine import StateMachine
from tests.sim.environment.disk import PowerCut, SimDisk
from tests.support.storage import sim_disk

PARTITIONS, VISITS = 5, 3


class Kept:
    """A state and its checkpoints over a disk, without a log."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        partitions: int = PARTITIONS,
        **sizes: Any,
    ) -> None:
        self.disk = disk or sim_disk()
        self.checkpoints = Checkpoints(self.disk, **sizes)
        self.state, _ = self.checkpoints.recover(lambda: StateMachine(0, 1))
        if not self.state.topics.topics:
            self.state.topics.create("t", {"partitions": partitions})

    def publish(self, rows: int = 1) -> None:
        state = self.state
        state.applied_index += 1
        for number, partition in enumerate(state.topics.slots.values()):
            for row in range(rows + number % 2):
                partition.index.append(state.applied_index, 100 * row, 50, 2, state.applied_index)

    def take(self) -> None:
        """A checkpoint, and all merges that it begins."""
        self.checkpoints.begin(self.state, 1)
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[str]:
        while self.checkpoints.busy:
            job = self.checkpoints.step(self.state, VISITS)
            if job is not None:
                job.run()
                yield type(job).__name__
                self.checkpoints.done(self.state, job)
            yield ""

    def content(self) -> dict[int, list[Run]]:
        slots = self.state.topics.slots
        return {slot: slots[slot].index.runs_from(slots[slot].index.start, 1 << 30) for slot in slots}

    def run_files(self) -> list[str]:
        return [name for name in self.disk.names() if name.endswith(".runs")]


def test_files_are_as_few_as_the_logarithm_of_their_number_and_hold_the_same() -> None:
    kept, twin = Kept(), Kept(fan_in=1_000)
    most = 0
    for _ in range(2 * FAN_IN**2 + 3):
        for one in (kept, twin):
            one.publish()
            one.take()
        most = max(most, len(kept.checkpoints.run_files))
    assert len(twin.checkpoints.run_files) == 2 * FAN_IN**2 + 3
    assert most <= 2 * FAN_IN + 1 and sorted(map(level_of, kept.checkpoints.run_files))[-2:] == [2, 2]
    assert len(kept.run_files()) <= len(kept.checkpoints.run_files) + FAN_IN, "inputs are removed"
    again = Kept(kept.disk)
    assert kept.content() == twin.content() == again.content()
    assert kept.checkpoints.files.descriptors <= 64
    slot = next(iter(kept.state.topics.slots))
    assert len(kept.state.topics.slots[slot].index.sealed) == len(kept.checkpoints.run_files)


def test_a_log_of_many_files_keeps_few_descriptors_and_little_heap() -> None:
    """The same for 1 TiB and 10,000 partitions: ``python -m benchmarks.stored --large 1024``."""
    figures = a_large_log(2, 20)
    assert within_budget(figures) and figures["most run files"] <= 2 * FAN_IN
    assert figures["checkpoints"] == 4 * FAN_IN


@pytest.mark.parametrize(
    "seed", [2, 5, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 1, 3, 4, 6, 7))]
)
def test_whatever_happens_meanwhile_nothing_that_is_read_changes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appending, retention, deletion, more checkpoints, restarts and power cuts, between any two steps."""
    monkeypatch.setattr(stored_runs, "BLOCK", 3)
    rng = random.Random(seed)
    sizes: dict[str, Any] = {
        "fan_in": 2 + seed % 2,
        "slice_bytes": 200,
        "piece_bytes": 40 if seed % 2 else 1 << 20,
    }
    kept, expected, merged = Kept(**sizes), dict[int, list[Run]](), 0

    def check() -> None:
        for slot, partition in kept.state.topics.slots.items():
            start = partition.index.start
            runs = [run for run in expected.get(slot, []) if run.base + run.messages > start]
            assert partition.index.runs_from(start, 1 << 30) == runs, f"slot {slot}"
            for run in rng.sample(runs, min(len(runs), 2)):
                assert partition.index.runs_from(run.base + run.messages - 1, 1) == [run]
            lowest = min((run.log_index for run in runs), default=None)
            assert partition.index.oldest_log_index() == lowest

    for index in range(1, 31):
        kept.publish(rng.randint(1, 5))
        for slot, partition in kept.state.topics.slots.items():
            known = expected.setdefault(slot, [])
            known += partition.index.runs_from(known[-1].base + known[-1].messages if known else 0, 1 << 30)
        action = rng.randrange(8)
        slots = list(kept.state.topics.slots)
        if action == 0:
            partition = kept.state.topics.slots[rng.choice(slots)]
            partition.index.trim(rng.randint(partition.index.start, partition.index.end))
        elif action == 1:
            kept.state.topics.cuts.floor = max(kept.state.topics.cuts.floor, rng.randint(0, index))
        elif action == 2 and "u" in kept.state.topics.topics:
            kept.state.topics.delete("u")
        elif action == 3 and "u" not in kept.state.topics.topics:
            kept.state.topics.create("u", {"partitions": 2})
        kept.checkpoints.begin(kept.state, 1)
        steps = kept.steps()
        for what in islice(steps, rng.choice((5, 30, 1 << 30))):
            merged += what == "RunMergeJob"
            if what == "RunMergeJob" or rng.random() < 0.04:
                check()
        for _ in steps:
            pass
        check()
        if action > 5:
            kept.disk.power_cut() if action == 6 else kept.disk.kill()
            before = {slot: p.index.start for slot, p in kept.state.topics.slots.items()}
            kept = Kept(kept.disk, **sizes)
            assert {slot: p.index.start for slot, p in kept.state.topics.slots.items()} == before
            check()
    assert merged > 5


def test_a_crash_at_any_operation_of_a_merge_loses_nothing() -> None:
    before = Kept(fan_in=2, partitions=2)
    for _ in range(3):
        before.publish()
        before.take()
    for at in range(200):
        kept = Kept(deepcopy(before.disk), fan_in=2)
        kept.disk.rng.seed(at)
        kept.disk.stop_after(at)
        try:
            for _ in range(3):  # the inputs of the first merge go at the last one
                kept.publish()
                kept.take()
        except PowerCut:
            expected = kept.content()
            kept.disk.power_cut()
        else:
            assert at > 30, "it went through all operations"
            return
        again = Kept(kept.disk, fan_in=2)
        written = {slot: runs[: len(again.content()[slot])] for slot, runs in expected.items()}
        assert again.content() == written and again.state.applied_index in range(3, 7)
        again.publish()
        again.take()
        assert not [name for name in again.disk.names() if name.endswith(".tmp")]
    raise AssertionError("a merge without end")


def merging(kept: Kept) -> RunMergeJob:
    """Checkpoints until a merge is to be run."""
    while True:
        kept.publish()
        kept.checkpoints.begin(kept.state, 1)
        while kept.checkpoints.busy:
            job = kept.checkpoints.step(kept.state, VISITS)
            if isinstance(job, RunMergeJob):
                return job
            if job is not None:
                job.run()
                kept.checkpoints.done(kept.state, job)


def test_damage_in_an_input_is_not_given_a_new_checksum() -> None:
    kept = Kept()
    job = merging(kept)
    name = job.files[3].name
    kept.disk.flip(name, kept.disk.size_of(name) - 20)
    with pytest.raises(CorruptLog, match=name):
        job.run()
    assert not kept.disk.exists(job.name)


def test_a_full_disk_puts_a_merge_off() -> None:
    kept = Kept()
    job = merging(kept)
    expected = kept.content()
    kept.disk.capacity = kept.disk.used_bytes() + 100
    job.run()
    kept.checkpoints.done(kept.state, job)
    assert job.error is not None and kept.content() == expected
    kept.disk.capacity = None
    kept.publish()
    kept.take()
    assert level_of(kept.checkpoints.run_files[0]) == 1 and not kept.disk.exists(job.name + ".tmp")


def test_a_merge_leaves_the_room_that_new_work_needs() -> None:
    """A leader refuses work below its reserve, and inputs go only after two more snapshots."""
    kept = Kept(fan_in=2, reserve_bytes=1_000)
    kept.publish()
    kept.take()
    kept.disk.capacity = kept.disk.used_bytes() + 3_000
    kept.publish()
    for name in ("first", "second"):
        kept.publish()
        kept.disk.capacity = kept.disk.used_bytes() + 3_000 if name == "second" else None
        kept.checkpoints.begin(kept.state, 1)
        for what in kept.steps():
            if what == "CheckpointJob" and name == "first":
                kept.disk.capacity = kept.disk.used_bytes() + 1_100
        merged = [name for name in kept.checkpoints.run_files if level_of(name)]
        assert bool(merged) == (name == "second") and kept.disk.free_bytes() >= 1_000


def test_a_directory_of_the_time_before_merges_is_read_and_merged_from_then_on() -> None:
    old = Kept(fan_in=1_000)
    for _ in range(FAN_IN + 3):
        old.publish()
        old.take()
    kept = Kept(old.disk)
    assert kept.content() == old.content() and len(kept.checkpoints.run_files) == FAN_IN + 3
    kept.publish()
    kept.take()
    assert [*map(level_of, kept.checkpoints.run_files)] == [1, 0, 0, 0, 0]
    expected = kept.content()
    for _ in range(2):  # then no kept snapshot names the inputs
        kept.take()
    assert len(kept.run_files()) == 5 and Kept(kept.disk).content() == kept.content() == expected


def test_no_step_of_a_merge_looks_at_more_partitions_than_it_may() -> None:
    kept = Kept(partitions=100)
    job = merging(kept)
    job.run()
    kept.checkpoints.done(kept.state, job)
    steps = 0
    while kept.checkpoints.busy:
        before = sum(p.index.sealed[0].file is job.runs for p in kept.state.topics.slots.values())  # type: ignore[union-attr]
        kept.checkpoints.step(kept.state, VISITS)
        after = sum(p.index.sealed[0].file is job.runs for p in kept.state.topics.slots.values())  # type: ignore[union-attr]
        assert after - before <= VISITS
        steps += 1
    assert steps >= 100 // VISITS


def test_what_a_deleted_topic_had_is_left_out_and_a_reader_that_has_it_reads_on() -> None:
    kept = Kept(fan_in=2)
    kept.state.topics.create("u", {"partitions": 1})
    kept.publish()
    kept.take()
    gone = kept.state.topics.find("u", 0).index  # type: ignore[union-attr]
    expected = gone.runs_from(0)
    kept.state.topics.delete("u")
    for _ in range(8):
        kept.publish()
        kept.take()
    assert f"{1:016x}.runs" not in kept.run_files()
    merged = StoredFiles(kept.disk).file(kept.checkpoints.run_files[0])
    assert len(stored_runs.open_runs(merged, stored_runs.KeptBlocks())) == PARTITIONS
    gone.sealed[0].file._kept._blocks.clear()  # type: ignore[union-attr]
    assert gone.runs_from(0) == expected, "its file has no name any more"
