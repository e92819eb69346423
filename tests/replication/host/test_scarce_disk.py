"""A little disk space is kept for decisions: they continue below the reserve, new work does not."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.format import ops
from escrowmq.replication.host import maintenance
from tests.support.broker_group import BrokerGroup
from tests.support.failing_disk import Touched
from tests.support.requests import prepare
from tests.support.waiting import wait_until


def test_open_transactions_are_decided_below_the_reserve_and_new_work_is_refused(tmp_path: Path) -> None:
    roomy = BrokerConfig(disk_reserve_bytes=0)
    with BrokerGroup(tmp_path, roomy) as trio:
        trio.topic()
        trio.submit(prepare(["kept", "dropped"]))
    with BrokerGroup(tmp_path, replace(roomy, disk_reserve_bytes=1 << 60)) as trio:
        assert trio.leader().parts.requests.submit(prepare(["more"]))[0] == "disk_full"
        assert trio.leader().parts.requests.submit(ops.create_topic("u", {"partitions": 1}))[0] == "disk_full"
        trio.submit(ops.commit("app", ["kept"]))
        trio.submit(ops.rollback("app", ["dropped"]))
        # In one request with new work they cannot be separated: all of it waits.
        requests = trio.leader().parts.requests
        assert requests.submit(ops.commit("app", ["kept"]) + prepare(["more"]))[0] == "disk_full"
        assert trio.leader().parts.reads.partition_bounds("t")[0] == (0, 1)


def test_another_replica_takes_over_from_a_leader_without_room(tmp_path: Path) -> None:
    """Otherwise its group would accept nothing, although a majority has room."""
    with BrokerGroup(tmp_path, BrokerConfig(disk_reserve_bytes=1 << 20)) as trio:
        trio.topic()
        first = trio.leader()
        running = first.parts.running
        trio.disks.room[tmp_path / f"r{first.rid}" / "log"] = 0
        wait_until(lambda: not running.node.is_leader, 10.0, "it has handed over")
        trio.submit(prepare(["more"]))
        assert trio.leader() is not first
        answer = first.parts.requests.submit(prepare(["late"]))
        assert answer[0] == "not_leader", "or clients would wait for the room that it lacks"


def test_a_file_system_that_hangs_or_fails_stops_no_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``statvfs`` hangs with the file system, and may fail: the driver's thread does neither."""
    goes_on = threading.Event()

    def hangs(touched: Touched) -> None:
        goes_on.wait(60.0)
        raise OSError(errno.EIO, "it failed")

    monkeypatch.setattr(maintenance, "HANGS_S", 0.2)
    with BrokerGroup(tmp_path, BrokerConfig(disk_reserve_bytes=1 << 20)) as trio:
        trio.topic()
        leader = trio.leader()
        free = leader.parts.running.room.free_bytes
        try:
            trio.disks.before("free_bytes", hangs)
            status = leader.parts.inspection.status
            wait_until(lambda: "not answered for" in status().room_problem, 5.0, "operators are told")
            # Several election time-outs. A busy machine may miss one; whoever hangs misses all of them.
            assert any(leads_for_a_second(trio) for _ in range(5))
            trio.submit(prepare(["meanwhile"]))
            assert status().free_bytes == free and not status().disk_full, "what was last known counts"
            assert leader.parts.instruments.metrics().disk_bytes > 1 << 20
        finally:
            goes_on.set()
        wait_until(lambda: "it failed" in status().room_problem, 5.0, "the error is told")
        trio.submit(prepare(["later"]))
        trio.disks.heal()
        wait_until(lambda: not status().room_problem, 5.0, "it is known again")


def leads_for_a_second(trio: BrokerGroup) -> bool:
    """Whether the leader stays the leader of its term meanwhile."""
    node = trio.leader().parts.running.node
    term = node.term
    time.sleep(1.0)
    return node.is_leader and node.term == term
