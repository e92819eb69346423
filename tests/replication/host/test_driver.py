"""The driver: one thread, coalesced ticks, a full disk that loses nothing, and an end when one is due."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.errors import ApplyFailed, Closed, DiskFull, FsyncFailed, Unavailable
from escrowmq.replication.host.driver import INLINE_BYTES_MAX, QUICK_RUN, Driver
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.net.handshake import PeerIdentity
from escrowmq.replication.raft.node import PeerLink, RaftNode
from tests.sim.environment.disk import SimDisk
from tests.support.raft_group import Outcome, RaftGroup
from tests.support.waiting import wait_until


class WatchedDisk(SimDisk):
    """Notes which thread syncs, and which segments go; these wait for ``unlink``."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.threads, self.removed = list[str](), list[str]()
        self.unlink = threading.Event()
        self.unlink.set()

    def step(self, kind: str) -> None:
        if kind == "sync":
            self.threads.append(threading.current_thread().name.partition("-")[0])
        super().step(kind)

    def remove(self, name: str) -> None:
        if name.endswith(".log"):
            self.unlink.wait(10.0)
            self.removed.append(name)
        super().remove(name)


class Solo:
    """A group of one on a disk in memory, run by the real driver."""

    def __init__(self, use_uvloop: bool = True, segment_bytes: int = 64 << 20, listen_port: int = 0) -> None:
        self.disk = WatchedDisk(random.Random(0))
        self.journal = SegmentJournal(self.disk, segment_bytes=segment_bytes)
        self.fatal: list[BaseException] = []
        self.applied: list[bytes] = []
        self.ticks = 0
        self.fail_apply = False
        self.driver = Driver(
            self._build,
            self.journal,
            identity=PeerIdentity("c", 0, "r0"),
            peers=frozenset(),
            listen_host="127.0.0.1",
            listen_port=listen_port,
            secret=b"s",
            resolve=lambda peer: None,
            fatal=self.fatal.append,
            after_tick=self._after_tick,
            use_uvloop=use_uvloop,
        )

    def _build(self, link: PeerLink, clock: Callable[[], float]) -> RaftNode:
        return RaftNode("r0", [], self.journal, link, self._apply, clock=clock, rng=random.Random(0))

    def _apply(self, index: int, term: int, command: bytes) -> None:
        if self.fail_apply and command:
            raise RuntimeError("a bug")
        if command:
            self.applied.append(command)

    def _after_tick(self) -> float:
        self.ticks += 1
        return float("inf")

    def start(self) -> None:
        """Until it leads."""
        self.driver.start()
        wait_until(lambda: self.driver.node.ready, what="the only replica's leadership")

    def propose(self, command: bytes) -> Outcome:
        outcome = Outcome()
        self.driver.submit(lambda: self.driver.node.propose(command, outcome.settle))
        return outcome


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def solo(request: pytest.FixtureRequest) -> Iterator[Solo]:
    member = Solo(request.param)
    member.start()
    yield member
    member.driver.stop()


def test_it_commits_on_either_loop(solo: Solo) -> None:
    assert solo.propose(b"\0x").wait() is True
    assert solo.applied == [b"\0x"]


def test_many_calls_cost_few_ticks(solo: Solo) -> None:
    def burst() -> None:
        for _ in range(5000):
            solo.driver.submit(lambda: None)

    before = solo.ticks
    threads = [threading.Thread(target=burst) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    solo.driver.call(lambda: None)
    assert solo.ticks - before < 3000


def test_call_returns_and_raises_what_the_function_does(solo: Solo) -> None:
    assert solo.driver.call(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        solo.driver.call(lambda: 1 // 0)
    assert solo.fatal == []


def test_a_failed_fsync_is_fatal_and_nothing_is_acknowledged(solo: Solo) -> None:
    solo.disk.fail_next("sync")
    ends_without_an_answer(solo)
    with pytest.raises(Closed):
        solo.driver.submit(lambda: None)


def ends_without_an_answer(solo: Solo) -> None:
    outcome = solo.propose(b"\0x")
    wait_until(lambda: solo.fatal, what="the end")
    assert isinstance(solo.fatal[0], FsyncFailed)
    time.sleep(0.05)
    assert outcome.calls == 0


def on_a_quick_disk(solo: Solo) -> list[str]:
    """The thread of each sync from now on, when all syncs were quick so far."""
    for _ in range(QUICK_RUN):
        solo.driver.call(lambda: solo.driver.sync_choice.took(0.0, 0.0))
    solo.disk.threads.clear()
    return solo.disk.threads


def test_small_commits_on_a_quick_disk_need_no_other_thread(solo: Solo) -> None:
    threads = on_a_quick_disk(solo)
    assert solo.propose(b"\0small").wait() is True
    assert threads == ["raft"]
    assert solo.propose(b"\0" + bytes(INLINE_BYTES_MAX)).wait() is True
    assert threads == ["raft", "fsync"], "a larger one leaves the loop to others"
    assert solo.journal.durable_index == solo.journal.last_index


def test_a_failed_sync_in_the_loop_is_fatal_as_in_the_other_thread(solo: Solo) -> None:
    threads = on_a_quick_disk(solo)
    solo.disk.fail_next("sync")
    ends_without_an_answer(solo)
    assert threads == ["raft"]


@pytest.mark.parametrize("beside", [True, False], ids=["beside", "planted: in the group commit's thread"])
def test_commits_do_not_wait_for_segments_to_be_unlinked(
    monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Unlinking takes 27 ms for 64 MiB and 350 ms for 1 GiB on ext4, and retention drops many segments at
    once."""
    solo = Solo(segment_bytes=200)
    unlink, removed = solo.disk.unlink, solo.disk.removed
    if not beside:
        monkeypatch.setattr(Driver, "_begin_removal", lambda self: self._journal.sync())
    solo.start()
    for number in range(20):
        assert solo.propose(b"\0" + bytes(50) + b"%d" % number).wait() is True
    unlink.clear()
    first = solo.driver.call(lambda: solo.journal.drop_before(12))
    assert first > 5, "several segments"
    timer = threading.Timer(0.3, unlink.set)
    timer.start()
    assert solo.propose(b"\0meanwhile").wait() is True
    assert (removed == []) is beside
    unlink.set()
    wait_until(lambda: len(removed) > 2, what="the removals")
    assert removed == sorted(removed), "the oldest first: a power cut must not leave a hole"
    timer.cancel()
    solo.driver.stop()
    assert not solo.driver.running and not solo.fatal


def test_an_apply_that_raises_is_fatal(solo: Solo) -> None:
    solo.fail_apply = True
    solo.propose(b"\0x")
    wait_until(lambda: solo.fatal, what="the end")
    assert isinstance(solo.fatal[0], ApplyFailed)
    assert len(solo.fatal) == 1


def test_a_replica_that_cannot_continue_hears_nobody(solo: Solo, monkeypatch: pytest.MonkeyPatch) -> None:
    solo.fail_apply = True
    solo.propose(b"\0x")
    wait_until(lambda: solo.fatal, what="the end")
    heard: list[str] = []
    monkeypatch.setattr(RaftNode, "deliver", lambda self, peer, message: heard.append(peer))
    solo.driver.received("r1", {"type": "next_node_idx"})
    assert heard == [] and len(solo.fatal) == 1


def test_a_full_disk_refuses_new_entries_keeps_the_queued_ones_and_goes_on_when_there_is_room(
    solo: Solo,
) -> None:
    assert solo.propose(b"\0before").wait() is True
    solo.disk.capacity = solo.disk.used_bytes()
    queued = solo.propose(b"\0queued")
    wait_until(lambda: solo.driver.disk_full, what="the full disk's notice")
    refused = solo.propose(b"\0refused")
    assert refused.wait() is False
    assert isinstance(refused.result, DiskFull)
    assert queued.calls == 0
    solo.disk.capacity = None
    assert queued.wait() is True
    assert not solo.driver.disk_full
    assert solo.propose(b"\0after").wait() is True
    assert solo.applied == [b"\0before", b"\0queued", b"\0after"]
    assert solo.fatal == []


def test_stop_settles_what_is_open_and_refuses_what_comes_later() -> None:
    member = Solo()
    member.start()
    member.disk.capacity = member.disk.used_bytes()
    outcome = member.propose(b"\0x")
    wait_until(lambda: member.driver.disk_full)
    member.driver.stop()
    assert outcome.wait(1) is None
    assert outcome.calls == 1
    with pytest.raises(Closed):
        member.driver.submit(lambda: None)
    member.driver.stop()


def test_an_address_that_is_taken_is_reported_at_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        member = Solo(listen_port=taken.getsockname()[1])
        with pytest.raises(Unavailable, match="in use"):
            member.driver.start()
        member.driver.stop()


def test_stopping_before_starting_is_harmless() -> None:
    member = Solo()
    for _ in range(2):
        member.driver.stop()
    assert member.driver.address is None and member.fatal == [] and member.ticks == 0


def test_a_leader_that_is_killed_is_replaced_and_acknowledged_entries_stay(tmp_path: Path) -> None:
    """Killed: no handover, no sync, sockets reset."""
    with RaftGroup(tmp_path) as group:
        leader = group.leader()
        outcomes = [leader.propose(b"\0%d" % n) for n in range(50)]
        assert all(o.wait() is True for o in outcomes)
        group.kill(leader.rid)
        second = group.leader(timeout_s=20)
        assert second.commands() == [b"\0%d" % n for n in range(50)]
        assert second.propose(b"\0after").wait() is True


def test_a_large_backlog_reaches_a_replica_that_was_away(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        leader = group.leader()
        away = group.a_follower()
        group.stop(away)
        bodies: list[Any] = [b"\0" + random.Random(n).randbytes(100_000) for n in range(200)]
        assert all(o.wait() is True for o in [leader.propose(b) for b in bodies])
        (back,) = group.start(away)
        wait_until(lambda: len(back.commands()) == 200, what="20 MB of catch-up")
        assert back.commands() == bodies
