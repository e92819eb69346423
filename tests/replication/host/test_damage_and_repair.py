"""Damage is never served and never spread; replicas that are behind never block the group.

Each of these tests was once a failing schedule of the simulator.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.host import restoring
from escrowmq.replication.host.repair import Manifest, NoPeers, copy_from_leader, offered_files
from escrowmq.replication.host.running_replica import NOT_RUNNING
from escrowmq.replication.host.snapshot_source import SnapshotSource
from escrowmq.replication.log.datadir import BEHIND, WANTS_COPY, Marks
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.segment import BLOCK_BYTES
from escrowmq.replication.log.vote import VoteFile
from escrowmq.replication.replica.checkpoints import Checkpoints, snapshot_name
from escrowmq.replication.state.machine import StateMachine
from tests.support.broker_group import BrokerGroup, texts
from tests.support.golden_files import SNAPSHOT
from tests.support.storage import NEWEST, command, sim_disk, synced_log, take
from tests.support.waiting import wait_until


@pytest.mark.parametrize("size", [40, BLOCK_BYTES - 1, 2 * BLOCK_BYTES, 10 * BLOCK_BYTES + 5])
def test_a_bit_that_flips_after_the_first_read_is_not_served(size: int) -> None:
    disk = sim_disk()
    journal = SegmentJournal(disk, cache_bytes=0)
    body = command(1, size)
    journal.add(body, 1, 1)
    journal.sync()
    cold = SegmentJournal(disk, cache_bytes=0)
    for pos in range(0, size, 7000):
        for length in (1, 30, size - pos):
            part = min(length, size - pos)
            assert cold.read_range(1, pos, part) == body[pos : pos + part]
    assert cold.read_range(1, size, 0) == b""
    disk.flip(NEWEST, disk.size_of(NEWEST) - 5)
    with pytest.raises(CorruptLog):
        cold.read_range(1, size - 10, 10)


def test_a_snapshot_that_claims_another_version_is_passed_over() -> None:
    disk = sim_disk()
    checkpoints = Checkpoints(disk)
    state = StateMachine(0, 1)
    for index in (5, 9):
        state.applied_index = index
        take(checkpoints, state)
    disk.flip("0000000000000009.snap", 4, 0x40)  # the byte of the version
    reports: list[str] = []
    found, _ = Checkpoints(disk, reports.append).recover(lambda: StateMachine(0, 1))
    assert found.applied_index == 5 and "version" in reports[0]


def test_a_superseded_snapshot_that_a_crash_left_is_not_what_the_log_is_kept_for() -> None:
    """Broker seed 432437: the snapshot's entries were gone, and a leader that asked for them ended,
    repeatedly."""
    disk = sim_disk()
    checkpoints = Checkpoints(disk)
    state = StateMachine(0, 1)
    left = b""
    for index in (4, 75, 83):
        state.applied_index = index
        take(checkpoints, state)
        if index == 4:
            left = disk.read_all("0000000000000004.snap")
    assert checkpoints.oldest_needed_index() == 75
    disk.write_atomic("0000000000000004.snap", [left])
    again = Checkpoints(disk)
    found, _ = again.recover(lambda: StateMachine(0, 1))
    assert found.applied_index == 83 and again.oldest_needed_index() == 75
    found.applied_index = 90
    take(again, found)
    assert sorted(n for n in disk.names() if n.endswith(".snap")) == [
        "0000000000000053.snap",
        "000000000000005a.snap",
    ]


class Leader(NoPeers):
    """A peer that leads, as the repair sees it."""

    def __init__(self, disk: Disk, term: int) -> None:
        self._disk, self._term = disk, term

    def manifest(self, peer: str) -> Manifest | None:
        segments = [(s.name, s.size) for s in SegmentJournal(self._disk).segments()]
        return Manifest(peer, self._term, 1, offered_files(self._disk, segments, None))

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        return self._disk.open(name).read(pos, size)


def disk_with(last: int, term: int) -> Disk:
    """A log of entries of term 1, except the last one, which is of ``term``."""
    disk = sim_disk()
    journal = SegmentJournal(disk)
    for index in range(1, last + 1):
        journal.add(command(index), index, term if index == last else 1)
    journal.setCurrentTerm(term, None)
    journal.close()
    return disk


def test_a_leader_of_an_earlier_term_is_the_last_choice() -> None:
    own, deposed, leader = disk_with(last=8, term=1), disk_with(last=8, term=1), disk_with(last=9, term=3)
    VoteFile(own).set(3, None)
    sources = {"r0": Leader(deposed, 2), "r1": Leader(leader, 3)}
    asked: list[str] = []

    class Both(Leader):
        """The second one leads, and answers late."""

        def manifest(self, peer: str) -> Manifest | None:
            asked.append(peer)
            return sources[peer].manifest(peer) if peer == "r0" or len(asked) > 4 else None

        def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
            return sources[peer].read(peer, name, pos, size)

    copy_from_leader(own, ["r0", "r1"], Both(leader, 3), lambda s: None, 1.0, lambda text: None)
    assert SegmentJournal(own).last_index == 9


# ------------------------------------------------------------------ whole groups
def test_a_damaged_log_is_not_copied_and_its_owner_mends_it(trio: BrokerGroup) -> None:
    """The leader left for repair when it heard of the damage, and with it the only replica to copy from."""
    written, behind = trio.stop_a_full_follower()
    leader = trio.leader()
    oldest = trio.segments(leader.rid)[0]  # sealed: nothing reads it unasked
    data = bytearray(oldest.read_bytes())
    data[len(data) // 2] ^= 8
    oldest.write_bytes(data)
    (trio.path / f"r{behind}" / WANTS_COPY).write_text(BEHIND)
    own = trio.segments(behind)
    trio.start(behind)
    assert set(own) <= set(trio.segments(behind))
    wait_until(lambda: leader.parts.running.journal.holes.mended == 1, 10.0, "it is mended")
    assert not trio.ended and trio.leader() is leader
    for member in list(trio.alive.values()):
        assert texts(member, 100) == written


def test_a_leader_offers_nothing_while_it_has_no_snapshot() -> None:
    """Replicas of earlier software would take what is left, and could not start any more."""
    disk = sim_disk()
    synced_log(disk, 50, segment_bytes=200)
    journal = SegmentJournal(disk, segment_bytes=200)
    running = SimpleNamespace(
        closed=False,
        rid=0,
        setup=SimpleNamespace(report=print),
        node=SimpleNamespace(is_leader=True, term=1, commit_index=50),
        driver=SimpleNamespace(call=lambda read: read()),
        journal=journal,
        checkpoints=SimpleNamespace(indexes=[]),
        disk=disk,
    )
    offers = SnapshotSource(cast(Any, running))
    assert offers.checkpoint_manifest()[0] == "ok", "it has the whole log"
    journal.drop_before(11)
    journal.sync()
    assert offers.checkpoint_manifest() == NOT_RUNNING
    disk.write_atomic(snapshot_name(20), [SNAPSHOT])
    running.checkpoints.indexes = [20]
    assert offers.checkpoint_manifest()[0] == "ok"


def test_a_majority_that_is_only_behind_does_not_wait_for_a_leader_for_ever(trio: BrokerGroup) -> None:
    written, first = trio.stop_a_full_follower()
    leader = trio.leader().rid
    second = trio.a_follower()
    trio.stop(second)
    trio.stop(leader)
    for rid in (first, second):
        (trio.path / f"r{rid}" / WANTS_COPY).write_text(BEHIND)
    trio.patience_s = 0.5
    trio.start(leader, first, second)
    assert texts(trio.leader(), 100) == written


def test_a_replica_that_stops_looking_for_a_leader_does_not_say_that_it_will_look_again() -> None:
    log, reports = sim_disk(), list[str]()
    journal = SegmentJournal(log)
    journal.add(command(1), 1, 1)
    journal.sync()
    journal.close()
    marks = Marks(sim_disk(1))
    marks.write(WANTS_COPY, BEHIND)
    source = SimpleNamespace(manifest=lambda peer: None)
    setup = cast(Any, SimpleNamespace(peers=["b"], source=source, report=reports.append))
    started = restoring.Restoring[SegmentJournal](
        log, marks, setup, lambda s: None, 60.0, lambda doubtful: SegmentJournal(log)
    ).restore()
    assert started.last_index == 1
    (report,) = reports
    assert report.startswith("no leader to copy the log from; continuing without it")
