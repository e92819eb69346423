"""The cluster's status: replicas, transactions over several groups, feedback processes. It never waits for
long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer, ShardReports
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.format import codec, ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.support.brokers import Brokers, ClientCalls
from tests.support.waiting import wait_until


def test_status_never_waits_for_the_dead(tmp_path: Path, admin_of: Callable[[Brokers], Admin]) -> None:
    brokers = Brokers(tmp_path)
    try:
        admin = admin_of(brokers)
        status = admin.status()
        assert status.healthy
        (group,) = status.groups
        assert group.leader == brokers.leader()
        assert {replica.role for replica in group.replicas} == {"leader", "follower"}
        dead = (brokers.leader() + 1) % 3
        brokers.lose(0, dead)
        started = time.monotonic()
        status = admin.status(wait_s=0.3)
        assert time.monotonic() - started < 5.0, "long before the admin's own time-out of 10 s"
        assert not status.healthy
        assert status.problems == (f"group 0: replica {dead}: gives no answer",)
        assert [r.replica for r in status.groups[0].replicas if not r.reachable] == [dead]
        assert status.groups[0].replicas[dead].role == "unreachable"
        assert status.groups[0].across is not None, "told by those that answer"
    finally:
        brokers.close()


def test_a_full_disk_is_no_health(tmp_path: Path, admin_of: Callable[[Brokers], Admin]) -> None:
    brokers = Brokers(tmp_path, replicas=1, disk_reserve_bytes=1 << 60)
    try:
        status = admin_of(brokers).status()
        ((replica,),) = (group.replicas for group in status.groups)
        assert not status.healthy and "its disk is full, new work is refused" in status.problems[0]
        assert replica.details["disk_full"] and 0 < replica.details["free_bytes"] < 1 << 60
    finally:
        brokers.close()


def test_a_killed_replica_is_missed_though_its_broker_answers(
    tmp_path: Path, admin_of: Callable[[Brokers], Admin]
) -> None:
    brokers = Brokers(tmp_path)
    try:
        admin, dead = admin_of(brokers), (brokers.leader() + 1) % 3
        brokers.groups[0].stop(dead)
        wait_until(lambda: not admin.status().healthy, 10.0, "that somebody misses it")
        wait_until(
            lambda: (
                f"replica {dead}: the leader has no connection to it" in admin.status().problems[0]
                or f"replica {dead}: gives no answer" in admin.status().problems[0]
            ),
            10.0,
            "the leader to miss it",
        )
    finally:
        brokers.close()


def test_a_replica_that_came_later_is_shown_and_one_that_was_removed_is_not(
    tmp_path: Path, admin_of: Callable[[Brokers], Admin]
) -> None:
    brokers = Brokers(tmp_path)
    try:
        (group,) = brokers.groups
        gone = group.a_follower()
        group.seated = (0, 1, 2, 3)
        group.start(3)
        group.change_members(add=[3], remove=[gone])
        group.stop(gone)
        wanted = sorted({0, 1, 2, 3} - {gone})
        (status,) = admin_of(brokers).status().groups
        assert [replica.replica for replica in status.replicas] == wanted
        assert status.healthy and status.replicas[-1].role == "follower"
        (members,) = admin_of(brokers).members()
        assert (list(members.voters), members.next_replica, members.version) == (wanted, 4, 4)
    finally:
        brokers.close()


class WithSupervisor(ClientCalls):
    """Calls of a client in a cluster whose supervisor knows the members of the group."""

    def __init__(self, brokers: Brokers, members: MembersReport) -> None:
        super().__init__(brokers)
        self._members = members

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        if rid == SUPERVISOR_RID:
            assert method == "members_of"
            done(self._members, None)
        else:
            super().call(gid, rid, method, args, done)


@pytest.mark.parametrize("supervised", [True, False])
def test_a_group_whose_founders_are_all_gone_is_shown(tmp_path: Path, supervised: bool) -> None:
    """A client that connected before knows none that is left; the supervisor does."""
    brokers = Brokers(tmp_path, replicas=1)
    try:
        (group,) = brokers.groups
        group.seated = (0, 1)
        group.start(1)
        group.change_members(add=[1], remove=[0])
        group.stop(0)
        group.leader()
        calls = WithSupervisor(brokers, MembersReport(version=9, voters=[1])) if supervised else None
        admin = Admin(brokers.info, timeout_s=10.0, calls=calls or ClientCalls(brokers))
        try:
            ((shown,),) = (one.replicas for one in admin.status(wait_s=0.5).groups)
            assert (shown.replica, shown.reachable) == ((1, True) if supervised else (0, False))
        finally:
            admin.close()
    finally:
        brokers.close()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Two broker groups of one replica each."""
    running = Brokers(tmp_path_factory.mktemp("wide"), groups=2, replicas=1)
    yield running
    running.close()


class Processes:
    """Feedback processes that answer what the test says, or not at all."""

    def __init__(self) -> None:
        self.answer: Future[ShardReports] = Future()
        self.closed = False

    def ask(self, wait_s: float) -> Future[ShardReports]:
        return self.answer

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def admin(wide: Brokers, processes: Processes) -> Iterator[Admin]:
    made = Admin(wide.info, timeout_s=10.0, calls=ClientCalls(wide), feedback=processes)
    yield made
    made.close()
    assert processes.closed


def test_what_a_group_owes_to_others_and_waits_for_is_shown(wide: Brokers, admin: Admin) -> None:
    topic, app = "orders", "shop"
    admin.create_topic(topic, partitions=2)
    wait_until(lambda: all(g.level == LEVEL_MAX for g in admin.status().groups), 10.0, "the highest level")
    home_partition, branch_partition = sorted(range(2), key=lambda p: wide.group_number(topic, p))
    row = codec.encode_row(None, b"value", None, "x")

    def part(partition: int) -> bytes:
        return ops.pre_message(topic, partition, [0], [len(row)], [row])

    at_home = PrepareExtra(participants=[1], parts=1, heard_ms=1 << 50)
    (opened,) = wide.groups[0].submit(
        ops.prepare(app, topic, ["x"], None, 60_000, 0, [7], -1, 1, at_home), part(home_partition)
    )
    assert opened[0] == 0
    index = opened[1]
    branch = PrepareExtra(home_index=[index], parts=1, heard_ms=1 << 50)
    assert wide.groups[1].submit(
        ops.prepare(app, topic, ["x"], None, 60_000, 0, [7], 0, 1, branch), part(branch_partition)
    ) == [[0]]
    home, other = admin.status().groups
    assert home.across is not None and other.across is not None
    assert (home.across.undone, home.across.branches) == (0, 0)
    assert (other.across.undone, other.across.branches) == (0, 1)

    wide.silent.add((1, 0))  # the branch cannot be told
    assert wide.groups[0].submit(ops.commit(app, ["x"])) == [[0]]
    home, other = admin.status(wait_s=0.3).groups
    assert home.across is not None and home.across.undone == 1
    assert 0 <= time.time() * 1000 - home.across.oldest_ms < 60_000
    assert other.across is None, "it does not answer"

    wide.silent.clear()

    def nothing_left() -> bool:
        across = [group.across for group in admin.status().groups]
        return all(a is not None and (a.undone, a.branches, a.oldest_ms) == (0, 0, 0) for a in across)

    wait_until(nothing_left, 20.0, "the branch to follow")


def test_the_memory_of_given_ids_is_shown(wide: Brokers, admin: Admin) -> None:
    ids = admin.status().groups[0].given_ids
    assert ids is not None and ids.most == 2_000_000 and ids.short_ms is None


def test_feedback_processes_are_shown_with_what_they_host(admin: Admin, processes: Processes) -> None:
    processes.answer.set_result([ShardReport(shard=0, shards=2, pairs_here=7, polls_parked=3), None])
    first, second = admin.status().feedback or ()
    assert first.report is not None and (first.report.pairs_here, first.report.polls_parked) == (7, 3)
    assert (second.shard, second.report) == (1, None)


def test_nobody_waits_for_feedback_processes_that_cannot_be_asked(admin: Admin, processes: Processes) -> None:
    started = time.monotonic()
    status = admin.status(wait_s=0.3)
    assert time.monotonic() - started < 5.0, "long before the admin's own time-out of 10 s"
    assert status.feedback is None and status.healthy
    processes.answer.set_exception(RuntimeError("Ray was shut down"))
    assert admin.status().feedback is None
