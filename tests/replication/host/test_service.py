"""A real group of three without Ray: promises hold through losses of replicas, disks and files."""

from __future__ import annotations

import shutil
import socket

import pytest

from escrowmq.replication.calling.answers import DuePairs, LockedChecks
from escrowmq.replication.errors import DataDirLocked, InvalidMessage, Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.host.due_checks import DueChecks
from escrowmq.replication.host.replica_process import ReplicaProcess
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
        ReplicaProcess(trio.setup(0))


def test_due_transactions_are_leased_to_one_asker(trio: BrokerGroup) -> None:
    trio.topic(transaction_timeout_ms=100)
    trio.submit(prepare(["a"]))
    parts = trio.leader().parts
    checks, wanted = parts.due_checks, [("app", "t", 10)]
    seen = checks.due_pairs(0, 0, 0, 1, 3.0)[1]
    assert seen.pairs == [("app", "t")]
    status, (locked,) = checks.lock_pairs(wanted, 5.0, "one")
    assert status == "ok" and [row.tx_id for row in locked.rows()] == ["a"]
    assert checks.lock_pairs(wanted, 5.0, "two") == ("ok", [LockedChecks()])
    checks.release_locks("app", "t", ["a"], "one")
    assert checks.due_pairs(seen.term, seen.seen, 0, 1, 3.0)[1].pairs == [("app", "t")]
    assert checks.lock_pairs(wanted, 5.0, "two")[1][0].tx_ids == ("a",)
    assert parts.inspection.tx_states("app", ["a", "b"]) == ("ok", ["PREPARE", "UNKNOWN"])


def test_pairs_with_due_transactions_are_named_once_and_locked_many_at_a_time(trio: BrokerGroup) -> None:
    trio.topic(transaction_timeout_ms=100)
    trio.submit(prepare(["a", "b"]), prepare(["c"], app="other"))
    checks = trio.leader().parts.due_checks
    found, seen = set[tuple[str, str]](), DuePairs(0, 0)
    while len(found) < 2:
        status, seen = checks.due_pairs(seen.term, seen.seen, 0, 1, 3.0)
        assert status == "ok" and seen.pairs
        found.update(seen.pairs)
    assert found == {("app", "t"), ("other", "t")}
    assert checks.due_pairs(seen.term, seen.seen, 0, 1, 0.0)[1].pairs == [], "each is named once"
    both = [checks.due_pairs(0, 0, part, 2, 0.0)[1].pairs for part in (0, 1)]
    assert sorted(both[0] + both[1]) == sorted(found), "each in one of two parts"
    opened = checks.open_pairs(["app", "nobody", "other"], 0, 1)[1]
    assert (opened.apps, set(opened.pairs)) == (3, found)
    wanted = [("app", "t", 1), ("nobody", "t", 5), ("other", "t", 5)]
    status, locked = checks.lock_pairs(wanted, 5.0, "one")
    assert status == "ok" and [len(each.tx_ids) for each in locked] == [1, 0, 1]
    assert [len(each.tx_ids) for each in checks.lock_pairs(wanted, 5.0, "two")[1]] == [1, 0, 0]


def test_a_pair_that_was_named_and_not_locked_is_found_although_nothing_is_open(trio: BrokerGroup) -> None:
    trio.topic(transaction_timeout_ms=100)
    trio.submit(prepare(["a"]))
    checks = trio.leader().parts.due_checks
    wait_until(lambda: checks.due_pairs(0, 0, 0, 1, 1.0)[1].pairs, what="it is due")
    trio.submit(ops.commit("app", ["a"]))
    assert list(checks.open_pairs(["app"], 0, 1)[1].pairs) == [("app", "t")], "what is due later is no news"
    checks.lock_pairs([("app", "t", 5)], 5.0, "one")
    assert list(checks.open_pairs(["app"], 0, 1)[1].pairs) == []


def test_one_call_about_pairs_is_bounded(trio: BrokerGroup) -> None:
    trio.topic(transaction_timeout_ms=100)
    trio.submit(*(prepare([f"{app}{n}" for n in range(4)], app=app) for app in "xyz"))
    checks = trio.leader().parts.due_checks
    for named in ([("app", "t", 1)] * 257, [("app", "t", 1)] * 10_000):
        with pytest.raises(InvalidMessage, match="at most 256 pairs"):
            checks.lock_pairs(named, 5.0, "one")
    with pytest.raises(InvalidMessage, match="at most 256 apps"):
        checks.open_pairs(["app"] * 257, 0, 1)
    for part, parts in ((-1, 1), (1, 1), (0, 0), (0, 5_000)):
        with pytest.raises(InvalidMessage):
            checks.due_pairs(0, 0, part, parts, 0.0)
    wait_until(lambda: len(checks.due_pairs(0, 0, 0, 1, 1.0)[1].pairs) == 3, what="all of them are due")
    checks = DueChecks(trio.leader().parts.running, locked_enough=5, open_pairs_enough=1)
    first = checks.lock_pairs([(app, "t", 10) for app in "xyz"], 5.0, "one")[1]
    assert [len(each.tx_ids) for each in first] == [4, 4], "the third pair is left to the next call"
    opened = checks.open_pairs(["x", "y", "z"], 0, 1)[1]
    assert (opened.apps, list(opened.pairs)) == (1, [("x", "t")])


def test_damage_found_while_reading_is_mended_and_nobody_leaves(trio: BrokerGroup) -> None:
    written, victim = trio.stop_a_full_follower()
    oldest = trio.segments(victim)[0]  # sealed: not read at start
    data = bytearray(oldest.read_bytes())
    data[data.index(b"x9.....")] ^= 8  # in the body of a message
    oldest.write_bytes(data)
    trio.start(victim)
    with pytest.raises(Unavailable, match="checksum"):
        for offset in range(100):
            trio.alive[victim].parts.reads.fetch([("t", 0, offset)], 1, 0.0)
    holes = trio.alive[victim].parts.running.journal.holes
    wait_until(lambda: holes.mended == 1, 10.0, "it is mended")
    assert texts(trio.alive[victim], 100) == written
    assert not trio.ended


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
