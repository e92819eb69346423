"""A real group of three without Ray: promises hold through losses of replicas, disks and files."""

from __future__ import annotations

import shutil
import socket

import pytest

from escrowmq.replication.calling.answers import LockedChecks
from escrowmq.replication.errors import CorruptLog, DataDirLocked, Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.host.hosting import ReplicaHost
from tests.support.broker_group import BrokerGroup, texts
from tests.support.requests import prepare
from tests.support.waiting import wait_until


def test_prepared_is_unreadable_and_committed_is_readable_on_every_replica(trio: BrokerGroup) -> None:
    trio.topic()
    assert trio.submit(prepare(["a", "b"])) == [[0]]
    assert all(texts(s, 0) == [] for s in trio.alive.values())
    assert trio.submit(ops.commit("app", ["b"])) == [[0]]
    assert trio.submit(ops.commit("app", ["a"])) == [[0]]
    assert all(texts(s, 2) == ["b", "a"] for s in trio.alive.values())


def test_a_follower_refuses_and_names_the_leader(trio: BrokerGroup) -> None:
    follower, leader = trio.follower()
    assert follower.parts.requests.submit(ops.create_topic("x", {}))[:2] == ("not_leader", leader.rid)


def test_acknowledged_work_survives_the_loss_of_the_leader(trio: BrokerGroup) -> None:
    trio.topic()
    for i in range(20):
        trio.publish(f"x{i}", size=3_000)
        if i == 10:
            trio.stop(trio.leader().rid)
    assert texts(trio.leader(), 20) == [f"x{i}" for i in range(20)]


def test_everything_restarts_from_snapshot_and_log(trio: BrokerGroup) -> None:
    trio.topic()
    for i in range(150):
        trio.submit(prepare([f"x{i}", f"open{i}"], size=3_000))
        trio.submit(ops.commit("app", [f"x{i}"]))
    trio.close()
    trio.start()
    leader = trio.leader()
    assert texts(leader, 150) == [f"x{i}" for i in range(150)]
    report = leader.parts.inspection.status()
    assert report.open_transactions == 150
    assert report.recovered_index > report.last_index / 2, "recovered from a snapshot"
    assert trio.submit(ops.commit("app", ["open3"])) == [[0]]
    assert texts(leader, 151)[-1] == "open3"


def test_a_wiped_replica_copies_the_leaders_log_before_it_takes_part(trio: BrokerGroup) -> None:
    written, victim = trio.stop_a_full_follower()
    shutil.rmtree(trio.path / f"r{victim}")
    trio.start(victim)
    assert texts(trio.alive[victim], 100) == written
    assert trio.alive[victim].parts.running.recovered_index > 0, "it started from a copied snapshot"
    mark = trio.path / f"r{victim}" / "learner"
    wait_until(lambda: not mark.exists(), what="a learner until it had caught up, a voter again now")


def test_a_corrupt_replica_repairs_from_the_leader_instead_of_serving(trio: BrokerGroup) -> None:
    written, victim = trio.stop_a_full_follower()
    newest = trio.segments(victim)[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 3] ^= 8
    newest.write_bytes(data)
    trio.start(victim)
    assert texts(trio.alive[victim], 100) == written


def test_a_locked_directory_is_refused(trio: BrokerGroup) -> None:
    with pytest.raises(DataDirLocked):
        ReplicaHost(trio.setup(0))


def test_due_transactions_are_leased_to_one_asker(trio: BrokerGroup) -> None:
    trio.topic(transaction_timeout_ms=100)
    trio.submit(prepare(["a"]))
    parts = trio.leader().parts
    checks = parts.due_checks
    assert checks.open_topics("app") == ("ok", ["t"])
    status, locked = checks.lock_due("app", "t", 10, 5.0, 3.0, "one")
    assert status == "ok" and [row.tx_id for row in locked.rows()] == ["a"]
    assert checks.lock_due("app", "t", 10, 5.0, 0.0, "two") == ("ok", LockedChecks())
    checks.release_locks("app", "t", ["a"], "one")
    assert checks.lock_due("app", "t", 10, 5.0, 3.0, "two")[1].tx_ids == ("a",)
    assert parts.inspection.tx_states("app", ["a", "b"]) == ("ok", ["PREPARE", "UNKNOWN"])


def test_damage_found_while_reading_takes_the_replica_out_until_it_is_repaired(trio: BrokerGroup) -> None:
    written, victim = trio.stop_a_full_follower()
    oldest = trio.segments(victim)[0]  # sealed: not read at start
    data = bytearray(oldest.read_bytes())
    data[data.index(b"x9.....")] ^= 8  # in the body of a message
    oldest.write_bytes(data)
    trio.start(victim)
    with pytest.raises(Unavailable, match="repair"):
        for offset in range(100):
            trio.alive[victim].parts.reads.fetch([("t", 0, offset)], 1, 0.0)
    assert isinstance(trio.ended[victim], CorruptLog)
    trio.stop(victim)
    trio.start(victim)
    assert texts(trio.alive[victim], 100) == written


def test_a_replica_whose_port_was_taken_meanwhile_listens_elsewhere_and_is_found(trio: BrokerGroup) -> None:
    trio.topic()
    victim = trio.a_follower()
    port = trio.alive[victim].raft_address()[1]
    trio.stop(victim)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        trio.publish("a")
        trio.start(victim)
        assert trio.alive[victim].raft_address()[1] != port
        assert texts(trio.alive[victim], 1) == ["a"]
