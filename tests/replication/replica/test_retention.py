"""Retention in slices, while entries are applied, and what a leader does first."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.replica.compaction import RetentionRound
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.state.index import PartitionIndex
from tests.support.fed_state import FedState
from tests.support.requests import message, prepare
from tests.support.single import Single


def test_a_round_goes_on_while_entries_are_applied_and_keeps_what_they_need() -> None:
    log = FedState()
    for number in range(4):
        log.add(ops.create_topic(f"u{number}", {"partitions": 1}))
    log.prepare(["old"])
    opened_at = log.index
    for number in range(4):
        log.add(ops.message(f"u{number}", 0, "p", 0, -1, [b"x"]))
    look = RetentionRound(log.state, log.now_ms, snapshot_index=log.index)
    assert look.step(3) == [] and not look.done
    log.commit(["old"])  # readable now, in a partition that the round has passed, and no longer open
    while not look.done:
        look.step(1)
    assert look.first_needed_index == opened_at


def test_what_was_deleted_and_created_again_during_a_round_is_not_trimmed() -> None:
    log = FedState()
    settings = {"partitions": 2, "retention_ms": 1}
    log.add(ops.create_topic("short", settings))
    for partition in (0, 1):
        log.add(ops.message("short", partition, "p", 0, -1, [b"x"] * 5))
    log.now_ms += 10_000
    look = RetentionRound(log.state, log.now_ms, snapshot_index=log.index)
    found = look.step(3)
    log.add(ops.delete_topic("short"))
    log.add(ops.create_topic("short", settings))
    while not look.done:
        found += look.step(1)
    assert found == []


def test_a_slice_visits_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[PartitionIndex] = []
    oldest = PartitionIndex.oldest_log_index

    def counted(self: PartitionIndex) -> int | None:
        visited.append(self)
        return oldest(self)

    monkeypatch.setattr(PartitionIndex, "oldest_log_index", counted)
    log = FedState()
    log.add(*(ops.create_topic(f"many{n}", {"partitions": 50}) for n in range(20)))
    look = RetentionRound(log.state, log.now_ms, snapshot_index=1)
    for slices in range(1, 11):
        look.step(100)
        assert len(visited) == 100 * slices and not look.done
    look.step(100)
    assert look.done and len(visited) == 1_002


def test_a_new_leader_has_a_pause_before_retention(tmp_path: Path) -> None:
    single = Single(tmp_path, segment_bytes=5_000, limits=Limits(retention_pause_ms=3_000))
    single.submit(ops.create_topic("t", {"partitions": 1, "retention_ms": 1_000}))
    for seq in range(60):
        single.submit(message("t", 0, [b"x" * 500], seq=seq))
    single.now_ms += 60_000
    single.fail_over()
    single.replica.pump(single.now_ms)
    index = single.state.topics.topics["t"].partitions[0].index
    for _ in range(29):
        single.now_ms += 100
        single.replica.on_timer(single.now_ms)
        single.replica.pump(single.now_ms)
    assert index.start == 0
    single.now_ms += 200
    single.replica.on_timer(single.now_ms)
    single.replica.pump(single.now_ms)
    assert index.start == 60
    single.close()


def test_a_checkpoint_is_taken_in_slices_and_later_on_other_replicas(tmp_path: Path) -> None:
    single = Single(
        tmp_path, segment_bytes=20_000, limits=Limits(slice_visits=1, slice_pause_ms=10), delay_bytes=8_000
    )
    single.submit(ops.create_topic("t", {"partitions": 8}))
    rolled_at = 0
    while not single.checkpoints.busy:
        assert len(single.journal.segments()) < 3
        single.submit(message("t", 0, [b"x" * 1_000], seq=-1))
        if not rolled_at and len(single.journal.segments()) == 2:
            rolled_at = single.journal.last_index
    assert single.journal.last_index - rolled_at == 7, "so many bytes behind the roll"
    taken_at = single.journal.last_index
    for _ in range(30):
        single.now_ms += 9
        single.submit(prepare([f"x{single.journal.last_index}"]))
    assert single.checkpoints.indexes == [taken_at] and not single.checkpoints.busy
    single.close()
    again = Single(tmp_path, segment_bytes=20_000)
    assert again.state.topics.topics["t"].partitions[0].index.end == taken_at - 2
    again.close()
