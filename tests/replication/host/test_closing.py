"""Closing a replica at any moment (while it opens, runs or writes a checkpoint) frees its directory.

Uses real files and threads.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.errors import (
    Closed,
    DataDirLocked,
    DiskFailed,
    EscrowMQError,
    Unavailable,
)
from escrowmq.replication.format import ops
from escrowmq.replication.host.repair import NoPeers
from escrowmq.replication.host.replica_process import ReplicaProcess, open_replica
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running_replica import NOT_RUNNING, RunningReplica
from tests.support.failing_disk import FailingDisks, Touched, failing
from tests.support.one_replica import nothing_left, opens_and_has_everything, running
from tests.support.requests import message
from tests.support.waiting import wait_until


class Slow:
    """An operation of the disk that takes until ``goes_on``."""

    def __init__(self) -> None:
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, touched: Touched) -> None:
        self.reached.set()
        assert self.goes_on.wait(20.0)


@pytest.fixture
def disks() -> FailingDisks:
    return FailingDisks()


@pytest.fixture
def slow() -> Slow:
    return Slow()


class Silent(NoPeers):
    """Peers that do not answer, and record when they were asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def founded(self, peer: str) -> bool | None:
        self.asked.set()
        return None


def test_closing_breaks_an_opening_off(tmp_path: Path, setup: ReplicaSetup) -> None:
    silent = Silent()
    waiting = replace(setup, data_dir=tmp_path / "new", founders=3, source=silent)
    ended: list[BaseException] = []

    def attempt(host: ReplicaProcess) -> None:
        try:
            host.open(patience_s=60.0)
        except Closed as error:
            ended.append(error)

    with nothing_left():
        host = ReplicaProcess(waiting)
        thread = threading.Thread(target=attempt, args=(host,))
        thread.start()
        assert silent.asked.wait(10.0)
        assert "starting" in str(host.unavailable()) and not host.founded()
        host.close()
        thread.join(10.0)
        assert len(ended) == 1
        assert "stopping" in str(host.unavailable())
        with pytest.raises(Closed):
            host.open()
        host.close()
    ReplicaProcess(waiting).close()


@pytest.mark.parametrize("fails", [False, True])
def test_an_opening_that_cannot_be_broken_off_is_undone_at_its_end(
    setup: ReplicaSetup, disks: FailingDisks, slow: Slow, fails: bool
) -> None:
    disks.before("open", slow, "*.snap")
    if fails:
        disks.before("open", failing(DiskFailed("as it happens")), "*.snap")
    ended: list[type] = []

    def attempt(host: ReplicaProcess) -> None:
        try:
            host.open()
        except EscrowMQError as error:
            ended.append(type(error))

    with nothing_left(after_a_run=not fails):
        host = ReplicaProcess(replace(setup, disk=disks))
        thread = threading.Thread(target=attempt, args=(host,))
        thread.start()
        assert slow.reached.wait(10.0)
        host.close(0.1)  # does not wait for ever
        with pytest.raises(DataDirLocked):  # the opening still works in there
            ReplicaProcess(setup)
        slow.goes_on.set()
        thread.join(10.0)
        assert ended == [DiskFailed if fails else Closed]
    opens_and_has_everything(setup)


def test_closing_twice_and_at_once_is_closing(setup: ReplicaSetup) -> None:
    with nothing_left(after_a_run=True):
        host = ReplicaProcess(setup)
        replica = host.open()
        assert wait_until(host.founded)
        threads = [threading.Thread(target=end) for end in (host.close, host.close, replica.close)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        host.close()
        replica.close()
        del host, replica, threads, thread
    opens_and_has_everything(setup)


def test_a_closed_replica_answers_as_a_follower_or_says_come_back(setup: ReplicaSetup) -> None:
    with running(setup) as replica:
        parts = Parts(replica)
        parked: list[Any] = []
        thread = threading.Thread(target=lambda: parked.extend(parts.reads.fetch([("t", 0, 20)], 1000, 60.0)))
        thread.start()
        wait_until(lambda: replica.news.parked, what="a parked fetch")
    thread.join(10.0)
    assert parked and not parked[0][5], "closing woke it"
    assert replica.whoami() == (False, None, 0)
    for answer in (
        parts.requests.submit(ops.create_topic("u", {})),
        parts.due_checks.due_pairs(0, 0, 0, 1, 0.0),
        parts.due_checks.lock_pairs([("app", "t", 1)], 1.0, "me"),
        parts.inspection.transactions(),
        parts.inspection.tx_states("app", ["x"]),
        parts.reads.committed("g"),
        parts.reads.topics(leader=True),
        parts.offers.checkpoint_manifest(),
        parts.groups.join("g", "m", ["t"], 10.0),
        parts.groups.names(),
    ):
        assert answer == NOT_RUNNING
    for call in (
        lambda: parts.reads.fetch([("t", 0, 0)], 1000, 0.0),
        lambda: parts.reads.topics(),
        lambda: parts.reads.partition_bounds("t"),
        lambda: parts.watching.spans([("t", 0, 0, 1, 1)]),
    ):
        with pytest.raises(Unavailable, match="stopping"):
            call()
    assert parts.inspection.status().role == "starting"


def write_until(reached: threading.Event, replica: RunningReplica) -> None:
    submit, number = Parts(replica).requests.submit, 0
    while not reached.is_set():
        submit(message("t", 0, [b"x" * 10_000], seq=number))
        number += 1


def test_a_checkpoint_under_way_ends_before_the_directory_is_free(
    setup: ReplicaSetup, disks: FailingDisks, slow: Slow
) -> None:
    """Otherwise it would write into a directory that another process has opened by then."""
    disks.before("write_atomic", slow, "*.snap")
    with running(replace(setup, disk=disks)) as replica:
        write_until(slow.reached, replica)
        closing = threading.Thread(target=replica.close)
        closing.start()
        closing.join(0.5)
        assert closing.is_alive()
        with pytest.raises(DataDirLocked):
            ReplicaProcess(setup)
        slow.goes_on.set()
        closing.join(10.0)
    open_replica(setup).close()


def test_a_replica_that_does_not_stop_keeps_its_directory(
    setup: ReplicaSetup, disks: FailingDisks, slow: Slow
) -> None:
    told: list[str] = []
    disks.before("write_atomic", slow, "*.snap")
    host = ReplicaProcess(replace(setup, disk=disks, report=told.append))
    write_until(slow.reached, host.open())
    for attempt in (1, 2):  # a broker may be told to stop twice
        host.close(0.1)
        assert len(told) == attempt and "stays locked" in told[-1]
        with pytest.raises(DataDirLocked):
            ReplicaProcess(setup)
    slow.goes_on.set()
    host.close()  # now it can
    open_replica(setup).close()
