"""Segments, their sidecars, the vote file, snapshots, run files and files of timers, damaged in every way.

Each is tried twice: with its checksums as the damage left them, and with checksums put right again.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.segment_format import decode_sidecar, encode_sidecar
from escrowmq.replication.log import recovery, vote
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state import snapshot as snapshots
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.timers.record import FIRST_KEY, KEY_BYTES
from escrowmq.replication.timers.runs import in_order
from escrowmq.replication.timers.sealed_file import SealedFile, verify_timers
from tests.fuzz.engine import EXAMPLES, Target, drawn, fuzz
from tests.sim.environment.disk import SimDisk
from tests.support.fed_state import dump
from tests.support.golden_files import (
    FILES,
    NEWEST,
    RUNS,
    SEALED,
    SIDECAR,
    SNAPSHOT,
    TIMERS,
    WHOLE_SNAPSHOT,
    mend_runs,
    mend_segment,
    mend_sidecar,
    mend_snapshot,
    mend_timers,
    mend_vote,
)
from tests.support.golden_storage import FOLDER, build
from tests.support.stored_bytes import StoredBytes, run_file


# ------------------------------------------------------------------ what is run
def disk_with(name: str, data: bytes) -> SimDisk:
    disk = build()
    if disk.exists(name):
        disk.remove(name)
    disk.write_atomic(name, (data,))
    return disk


def recovered(name: str) -> Callable[[bytes], None]:
    """A log with this file in it is opened and read from end to end, or refused; never shortened silently."""

    def run(data: bytes) -> None:
        disk = disk_with(name, data)
        before = {n: disk.read_all(n) for n in disk.names() if n.endswith(".log")}
        try:
            recovery.recover(disk)
        except EscrowMQError:
            assert {n: disk.read_all(n) for n in disk.names() if n.endswith(".log")} == before
            raise
        assert name == NEWEST or {n: disk.read_all(n) for n in disk.names() if n.endswith(".log")} == before
        disk = disk_with(name, data)
        journal = SegmentJournal(disk, segment_bytes=220)
        for index in range(journal.first_index, journal.last_index + 1):
            journal.read(index)
        journal.close()

    return run


def voted(data: bytes) -> None:
    found = vote.VoteFile(disk_with(vote.NAME, data))
    assert 0 <= found.term < 1 << 64
    assert found.voted_for is None or len(found.voted_for.encode()) <= vote.VOTE_BYTES_MAX


def sidecar(data: bytes) -> None:
    decode_sidecar(data, 1)


def restored(data: bytes) -> None:
    snapshots.restore(empty(), "x.snap", data)


def empty() -> StateMachine:
    return StateMachine(GID, GROUPS)


def opened(data: bytes) -> None:
    for _, table in run_file(data).tables():
        assert table.rows(0, 1) and table.size() >= 0 and table.end >= table.base


def found_again(data: bytes) -> None:
    """Read it as a restart does: a snapshot is used as a whole, or reported and ignored as a whole."""
    disk, name = SimDisk(random.Random(0)), f"{5:016x}.snap"
    disk.write_atomic(name, (data,))
    disk.write_atomic("a.runs", (RUNS,))  # which the good one names
    reports: list[str] = []
    checkpoints = Checkpoints(disk, reports.append)
    state, term = checkpoints.recover(empty)
    if reports:
        assert len(reports) == 1 and name in reports[0]
        assert (dump(state), term, checkpoints.indexes) == (dump(empty()), 0, [])
    else:
        expected = empty()
        expected_term, run_files = snapshots.restore(expected, name, data)
        assert set(run_files) <= {"a.runs"}
        for _ in run_files:
            snapshots.adopt_runs(expected, run_file(RUNS).tables())
        assert (dump(state), term, checkpoints.indexes) == (dump(expected), expected_term, [5])


def read_timers(data: bytes) -> None:
    """Every reader comes to an end, and what is read through the one is sound for the other."""
    file = SealedFile("x.timers", StoredBytes(data))
    found = [record for part in in_order([file], FIRST_KEY, 2) for record in part]
    assert found == sorted(found) and len(found) <= len(file)
    assert abs(file.living_after(FIRST_KEY)) < 1 << 63 and file.about_after(file.last_key) <= len(file)
    for record in found:
        file.row_at(record[:KEY_BYTES])
    for _ in verify_timers("x.timers", lambda at, size: data[at : at + size], len(data), 50):
        pass


_META = next(snapshots.decode("golden", SNAPSHOT))[3]
GID, GROUPS = _META["gid"], _META["groups"]
TARGETS = [
    Target("sealed segment", recovered(SEALED), [FILES[SEALED]]),
    Target("sealed segment, checksums right", recovered(SEALED), [FILES[SEALED]], mend_segment),
    Target("newest segment", recovered(NEWEST), [FILES[NEWEST]]),
    Target("newest segment, checksums right", recovered(NEWEST), [FILES[NEWEST]], mend_segment),
    Target("sidecar beside its segment", recovered(SIDECAR), [FILES[SIDECAR]]),
    Target("sidecar, checksum right", recovered(SIDECAR), [FILES[SIDECAR]], mend_sidecar),
    Target("sidecar alone", sidecar, [FILES[SIDECAR]], mend_sidecar),
    Target("vote", voted, [FILES["vote"]]),
    Target("vote, checksums right", voted, [FILES["vote"]], mend_vote),
    Target("snapshot", restored, [SNAPSHOT]),
    Target("snapshot, checksums right", restored, [SNAPSHOT], mend_snapshot),
    Target("snapshot at a restart", found_again, [SNAPSHOT], mend_snapshot),
    Target("snapshot with everything", restored, [WHOLE_SNAPSHOT], mend_snapshot),
    Target("snapshot with everything at a restart", found_again, [WHOLE_SNAPSHOT], mend_snapshot),
    Target("run file", opened, [RUNS]),
    Target("run file, checksum right", opened, [RUNS], mend_runs),
    Target("file of timers", read_timers, [TIMERS]),
    Target("file of timers, checksums right", read_timers, [TIMERS], mend_timers),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_damaged_files_are_refused_with_an_error_of_ours(target: Target) -> None:
    fuzz(target, EXAMPLES // 2)


def test_a_good_snapshot_is_found_again_without_a_report() -> None:
    disk = SimDisk(random.Random(0))
    disk.write_atomic(f"{5:016x}.snap", (SNAPSHOT,))
    disk.write_atomic("a.runs", (RUNS,))
    reports: list[str] = []
    state, _ = Checkpoints(disk, reports.append).recover(empty)
    assert reports == [] and state.applied_index > 0 and state.topics.topics
    found_again(SNAPSHOT)


def test_mending_leaves_good_files_as_they_are() -> None:
    for target in TARGETS:
        for seed in target.seeds:
            assert target.mend(seed) == seed, target.name


@drawn(st.lists(st.integers(0, (1 << 32) - 1), min_size=1), st.sets(st.integers(0, 99), max_size=5))
def test_a_sidecar_comes_back_as_it_was(positions: list[int], terms: set[int]) -> None:
    runs = list(enumerate(sorted(terms), start=7))
    found = decode_sidecar(encode_sidecar(7, array("I", positions), runs), 7)
    assert found is not None
    assert (list(found.positions), found.terms) == (positions, runs)


@drawn(st.integers(0, (1 << 64) - 1), st.none() | st.text(min_size=1, max_size=25))
def test_a_vote_comes_back_as_it_was(term: int, name: str | None) -> None:
    record = vote.Record(5, term, name)
    if "\0" not in (name or ""):
        assert vote.decode(vote.encode(record)) == record


def test_a_vote_that_is_no_text_counts_as_a_damaged_slot() -> None:
    """Found by fuzzing; and two slots of one sequence number could not be compared."""
    good = FILES["vote"]
    at = vote.SLOT_POSITIONS[1]
    bad = mend_vote(good[: at + 24] + b"\x80" + good[at + 25 :])
    assert vote.decode(bad[at : at + vote.SLOT.size]) is None
    assert vote.VoteFile(disk_with(vote.NAME, bad)).voted_for == "r1"
    same_number = vote.encode(vote.Record(3, 3, None)).ljust(at, b"\0")
    voted(same_number + vote.encode(vote.Record(3, 3, "r1")).ljust(at, b"\0"))


def test_the_corpus_is_what_replicas_write() -> None:
    disk = build()
    assert {name: disk.read_all(name) for name in FILES} == FILES
    assert Path(FOLDER).is_dir()
