"""A replica that cannot start, cannot read or cannot even say so: it ends, and comes back healthy.

Three real replicas over real files; disk faults are injected at the system call or at the disk.
"""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.errors import CorruptLog, DiskFailed, DiskFull, ReadFailed, Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.format.find_table import KEY
from escrowmq.replication.host.due_checks import bounds
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.log.datadir import BEHIND, DAMAGED, LEARNER, PORT_FILE, WANTS_COPY
from escrowmq.replication.log.vote import FILE_SIZE
from escrowmq.replication.log.vote import NAME as VOTE_FILE
from escrowmq.replication.model import NO_ID
from escrowmq.replication.raft.node import RaftNode
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.state.stored_runs import StoredTable
from escrowmq.replication.timers.store import TimerStore
from tests.support.broker_group import BrokerGroup, texts
from tests.support.failing_disk import failing
from tests.support.requests import prepare
from tests.support.waiting import wait_until


def raft_threads(rid: int) -> int:
    return sum(thread.name == f"raft-{rid}" for thread in threading.enumerate())


# ------------------------------------------------------------------ starting
def test_a_replica_starts_on_a_full_disk(trio: BrokerGroup) -> None:
    written, victim = trio.stop_a_full_follower()
    trio.disks.before("write_atomic", failing(DiskFull("no space left")), f"*/{PORT_FILE}")
    trio.start(victim)
    assert texts(trio.alive[victim], 100) == written
    assert raft_threads(victim) == 1


def test_a_start_that_fails_late_leaves_no_second_node_behind(trio: BrokerGroup) -> None:
    written, victim = trio.stop_a_full_follower()
    trio.disks.before("write_atomic", failing(DiskFailed("as it happens"), times=2), f"*/{PORT_FILE}")
    member = trio.create(victim)
    for _ in range(2):
        with pytest.raises(DiskFailed):
            member.open()
        assert raft_threads(victim) == 0
    member.open()  # as the actor does, over the same directory
    assert raft_threads(victim) == 1
    assert texts(member, 100) == written
    assert victim not in trio.ended


@pytest.mark.parametrize("mark", [LEARNER, WANTS_COPY])
def test_a_damaged_mark_counts_as_one(trio: BrokerGroup, mark: str) -> None:
    written, victim = trio.stop_a_full_follower()
    (trio.path / f"r{victim}" / mark).write_bytes(b"\xe9\xff")
    trio.start(victim)
    assert texts(trio.alive[victim], 100) == written


def test_one_that_is_behind_and_not_sound_comes_back_as_a_learner(trio: BrokerGroup) -> None:
    """It cannot know what it acknowledged last, so its vote must not count until it has caught up."""
    written, victim = trio.stop_a_full_follower()
    (trio.path / f"r{victim}" / "log" / VOTE_FILE).write_bytes(bytes(FILE_SIZE))
    (trio.path / f"r{victim}" / WANTS_COPY).write_text(BEHIND)
    left: list[str] = []
    trio.disks.before("write_atomic", lambda touched: left.append(touched.path.name))
    trio.start(victim)
    assert LEARNER in left
    assert texts(trio.alive[victim], 100) == written


# ------------------------------------------------------------------ reading
def fail_reads(
    monkeypatch: pytest.MonkeyPatch, folder: Path, times: int = 1 << 30, suffix: str = ""
) -> list[int]:
    """Makes reads of the files that ``folder`` has now fail with EIO, ``times`` times; returns the reads that
    did."""
    pread, failed = os.pread, list[int]()
    held = [
        path.open("rb") for path in (folder / "log").iterdir() if path.name.endswith(suffix)
    ]  # so that no new file has an old one's inode
    bad_files = {os.fstat(file.fileno()).st_ino for file in held}

    def bad(number: int, size: int, pos: int, held: object = held) -> bytes:
        inode = os.fstat(number).st_ino
        if inode in bad_files and len(failed) < times:
            failed.append(inode)
            raise OSError(errno.EIO, "Input/output error")
        return pread(number, size, pos)

    monkeypatch.setattr(os, "pread", bad)
    return failed


def cold(trio: BrokerGroup, rid: int) -> None:
    """Restarts a replica, so that none of its data is in memory."""
    trio.stop(rid)
    trio.start(rid)


def test_a_replica_that_cannot_read_ends_and_repairs_itself(
    trio: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, first = trio.stop_a_full_follower()
    trio.start(first)
    texts(trio.alive[first], 100)
    victim = trio.a_follower()
    cold(trio, victim)
    failed = fail_reads(monkeypatch, trio.path / f"r{victim}")
    with pytest.raises(Unavailable):
        trio.alive[victim].parts.reads.fetch([("t", 0, 0)], 1 << 30, 0.0)
    assert failed
    assert isinstance(trio.ended[victim], ReadFailed)
    assert (trio.path / f"r{victim}" / WANTS_COPY).read_text() == DAMAGED
    trio.stop(victim)
    trio.start(victim)  # as the supervisor of the process does; nothing of the old files can be read
    assert texts(trio.alive[victim], 100) == written
    assert not (trio.path / f"r{victim}" / WANTS_COPY).exists()


def test_one_bad_moment_of_the_disk_is_nobodys_business(
    trio: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, victim = trio.stop_a_full_follower()
    trio.start(victim)
    texts(trio.alive[victim], 100)
    cold(trio, victim)
    failed = fail_reads(monkeypatch, trio.path / f"r{victim}", times=1)
    assert texts(trio.alive[victim], 100) == written
    assert len(failed) == 1 and victim not in trio.ended


def has_stored_runs(trio: BrokerGroup) -> tuple[list[str], int]:
    """What was written, and a follower that is away, with run files."""
    written, victim = trio.stop_a_full_follower()
    trio.start(victim)
    wait_until(lambda: list((trio.path / f"r{victim}" / "log").glob("*.runs")), what="a run file")
    trio.stop(victim)
    return written, victim


def test_a_replica_that_cannot_read_its_run_files_at_the_start_repairs_itself(
    trio: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped, one such sector was a signal, and ended each process that was started."""
    written, victim = has_stored_runs(trio)
    failed = fail_reads(monkeypatch, trio.path / f"r{victim}", suffix=".runs")
    trio.start(victim)
    assert failed and victim not in trio.ended
    assert texts(trio.alive[victim], 100) == written


def test_a_replica_whose_run_file_is_cut_off_under_its_reader_leaves_for_repair(trio: BrokerGroup) -> None:
    """Mapped, a page beyond the end was a signal too."""
    written, victim = has_stored_runs(trio)
    trio.start(victim)
    for path in (trio.path / f"r{victim}" / "log").glob("*.runs"):
        os.truncate(path, 20)
    with pytest.raises(Unavailable):
        trio.alive[victim].parts.reads.fetch([("t", 0, 0)], 1 << 30, 0.0)
    assert isinstance(trio.ended[victim], CorruptLog)
    trio.stop(victim)
    trio.start(victim)
    assert texts(trio.alive[victim], 100) == written


def test_whoever_cannot_read_run_files_or_timers_makes_the_replica_leave_for_repair(
    trio: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, victim = has_stored_runs(trio)
    trio.start(victim)
    failed = fail_reads(monkeypatch, trio.path / f"r{victim}", suffix=".runs")
    parts = trio.alive[victim].parts
    reads, running, state = parts.reads, parts.running, parts.running.replica.state
    stored = state.topics.find("t", 0).index.sealed[0]  # type: ignore[union-attr]
    assert isinstance(stored, StoredTable) and len(stored) > 1
    leave, met = RunningReplica.leave, list[BaseException]()

    def noted(self: RunningReplica, error: BaseException) -> Unavailable:
        met.append(error)
        return Unavailable("leaves", 1.0)

    def unreadable(*_: object) -> None:
        raise ReadFailed("cannot read 01.timers at byte 8: Input/output error")

    monkeypatch.setattr(RunningReplica, "leave", noted)
    monkeypatch.setattr(RaftNode, "ready", True)
    monkeypatch.setattr(Replica, "confirm", lambda self, told: told(True))
    monkeypatch.setattr(TimerStore, "listed", unreadable)
    for read in (
        lambda: reads.fetch([("t", 0, 0)], 1 << 30, 0.0),
        lambda: reads.fetch_ends("t", 0, 0, 1 << 40, 1, 10),
        lambda: reads.offsets([("t", 0, stored.last_time_ms)]),
        lambda: parts.messages.shares.progress("t", 0, 0, ["g"]),
        lambda: parts.scheduled.messages("t", None, 10),
    ):
        with pytest.raises(Unavailable, match="leaves"):
            read()
    state.topics.cuts.floor = stored.low + 1  # the start is looked for when it is next asked for
    for read in (
        lambda: reads.partition_bounds("t"),
        lambda: parts.messages.find(("t", 0, NO_ID), (KEY, b"k", ""), 0, 1 << 40, 10, 1.0),
        lambda: running.if_leading(lambda state: bounds(state, [("t", 0, 0)])),
        lambda: running.led(lambda: bounds(state, [("t", 0, 0)])),
        lambda: running.confirmed(lambda state: bounds(state, [("t", 0, 0)])),
        lambda: running.confirmed(lambda state: bounds(state, [("t", 0, 0)]), in_loop=True),
    ):
        with pytest.raises(Unavailable, match="leaves"):
            read()
    assert failed and len(met) == 11 and all(isinstance(error, ReadFailed) for error in met)
    with pytest.raises(Unavailable):
        raise leave(running, met[0])
    assert isinstance(trio.ended[victim], ReadFailed)
    assert (trio.path / f"r{victim}" / WANTS_COPY).read_text() == DAMAGED


def test_a_leader_that_cannot_read_what_a_peer_wants_to_copy_ends(
    trio: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.stop_a_full_follower()
    leader = trio.leader()
    name = trio.segments(leader.rid)[0].name
    fail_reads(monkeypatch, trio.path / f"r{leader.rid}")
    with pytest.raises(Unavailable):
        leader.parts.offers.checkpoint_read(name, 0, 100)
    assert isinstance(trio.ended[leader.rid], ReadFailed)


def test_a_replica_ends_even_where_it_can_leave_no_mark(trio: BrokerGroup) -> None:
    trio.disks.before("write_atomic", failing(DiskFull("no space left")))
    victim = trio.a_follower()
    with pytest.raises(DiskFull):
        trio.alive[victim].parts.running.end(CorruptLog("found while reading"))
    assert isinstance(trio.ended[victim], CorruptLog)


# ------------------------------------------------------------------ answering late
def test_a_list_that_nobody_waits_for_holds_the_table_no_longer(trio: BrokerGroup) -> None:
    trio.topic()
    trio.submit(prepare(["a", "b"]))
    parts = trio.leader().parts
    driver, inspection = parts.running.driver, parts.inspection
    table = parts.running.replica.state.transactions.app("app").open
    goes_on = threading.Event()
    driver.submit(lambda: goes_on.wait(5.0) and None)
    call: Any = driver.call
    driver.call = partial(call, timeout_s=0.05)  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        inspection.transactions()
    driver.call = call  # type: ignore[method-assign]
    goes_on.set()
    assert not driver.call(lambda: table.in_use)
    assert inspection.transactions()[1].tx_ids == ("a", "b")
    assert trio.submit(ops.commit("app", ["a", "b"])) == [[0]]
