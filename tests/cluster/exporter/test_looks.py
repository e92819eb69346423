"""Looks at real brokers: what is found becomes series, and one that hangs delays nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from escrowmq.actors.client.replica_calls import ShardReports
from escrowmq.actors.client.router import Router
from escrowmq.cluster.exporter.looking import Looks
from escrowmq.cluster.exporter.series import Key, Series, Value
from escrowmq.cluster.exporter.serving import text
from escrowmq.cluster.exporter.table import BY_NAME
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.model import NO_ID
from tests.support.brokers import Brokers, ClientCalls
from tests.support.requests import prepare
from tests.support.waiting import wait_until


class Shards:
    """Feedback processes that answer so."""

    def __init__(self) -> None:
        counts = {"answered_COMMITTED": 3, "parked": 1, "locked": 9}
        self.reports: ShardReports = [ShardReport(shard=0, shards=2, producers=4, counts=counts), None]

    def ask(self, wait_s: float) -> Future[ShardReports]:
        asked: Future[ShardReports] = Future()
        asked.set_result(self.reports)
        return asked

    def close(self) -> None:
        """Nothing is open."""


def supervisor_away() -> bool:
    raise Unavailable("lost with Ray's head", 1.0)


class Watched:
    """Brokers, and what looks at them."""

    def __init__(self, path: Path) -> None:
        self.brokers = Brokers(path)
        self.router = Router(self.brokers.info, calls=ClientCalls(self.brokers))
        self.looks = Looks(self.router, Shards(), supervisor_away, wait_s=5.0)
        self.series = Series(topics_max=2, apps_max=2)

    def look(self) -> Mapping[Key, Value]:
        return self.series.of(self.looks.look())

    def patience(self, wait_s: float) -> None:
        self.looks._wait_s = wait_s

    def close(self) -> None:
        self.looks.close()
        self.router.close()
        self.brokers.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.close()


def one(series: Mapping[Key, Value], name: str, *labels: str) -> Value:
    return series[name, labels]


def total(series: Mapping[Key, Value], name: str, *ends: str) -> float:
    """Over the replicas; ``ends``: further labels."""
    chosen = [value for (of, labels), value in series.items() if of == name and labels[2:] == ends]
    return sum(value for value in chosen if isinstance(value, float | int))


def test_what_brokers_do_can_be_read_and_every_series_is_in_the_table(watched: Watched) -> None:
    brokers = watched.brokers
    for topic in ("t", "u", "v"):
        brokers.topic(topic)
    brokers.groups[0].submit(prepare(["a", "b", "c"]))
    brokers.groups[0].submit(ops.commit("app", ["a"]))
    for app in ("second", "third"):
        brokers.groups[0].submit(prepare([app], app=app))
    brokers.produce("v", 0, [b"x", b"y"])
    series = watched.look()
    assert one(series, "escrowmq_group_has_leader", "0") == 1
    assert one(series, "escrowmq_group_voters", "0") == 3
    assert one(series, "escrowmq_group_spare_replicas", "0") == 1
    assert one(series, "escrowmq_group_leader_changes_total", "0") == 1
    assert total(series, "escrowmq_replica_up") == 3
    assert total(series, "escrowmq_transactions_prepared_total") == 5
    assert total(series, "escrowmq_transactions_decided_total", "committed", "producer") == 1
    assert one(series, "escrowmq_transactions_open", "0", "app") == 2
    assert one(series, "escrowmq_transactions_open", "0", "other") == 1
    assert one(series, "escrowmq_topic_messages_total", "t") == 1
    assert one(series, "escrowmq_topic_messages_total", "other") == 0, (
        "it had its messages before the first look"
    )
    assert one(series, "escrowmq_exporter_names_limited", "topic") == 1
    assert one(series, "escrowmq_exporter_names_limited", "app") == 1
    assert one(series, "escrowmq_exporter_names_limited", "consumer_group") == 0
    assert one(series, "escrowmq_checks_total", "0", "committed") == 3
    assert one(series, "escrowmq_producers_online", "0") == 4
    assert one(series, "escrowmq_feedback_process_up", "1") == 0
    assert one(series, "escrowmq_supervisor_up") == 0
    brokers.produce("v", 0, [b"z"])
    again = watched.look()
    assert one(again, "escrowmq_topic_messages_total", "other") == 1
    assert one(again, "escrowmq_topic_bytes_total", "other") == pytest.approx(20, abs=20)
    assert one(again, "escrowmq_topic_bytes_total", "t") == 0

    for accept in ("", "application/openmetrics-text"):
        _, kind = text(again, accept)
        assert kind.startswith("application/openmetrics-text" if accept else "text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text(again)[0].decode())}
    told = {name if name in BY_NAME else f"{name}_total" for name in families}
    assert told == {name for name, _ in again}
    fsync = families["escrowmq_replica_fsync_seconds"]
    leader = str(brokers.leader())
    counts = [s.value for s in fsync.samples if s.name.endswith("_bucket") and s.labels["replica"] == leader]
    assert counts == sorted(counts) and counts[-1] > 0
    assert [
        s.value for s in fsync.samples if s.name.endswith("_count") and s.labels["replica"] == leader
    ] == counts[-1:]


def test_a_broker_that_hangs_delays_nobody_and_meets_no_queue_of_questions(watched: Watched) -> None:
    brokers = watched.brokers
    watched.look()
    silent = (brokers.leader() + 1) % 3
    brokers.silent.add((0, silent))
    watched.patience(1.0)
    brokers.asked.clear()
    for _ in range(2):
        began = time.monotonic()
        series = watched.look()
        assert time.monotonic() - began < 10.0
        assert one(series, "escrowmq_replica_up", "0", str(silent)) == 0
        assert ("escrowmq_replica_applied_index", ("0", str(silent))) not in series
        assert one(series, "escrowmq_group_has_leader", "0") == 1
        assert one(series, "escrowmq_group_spare_replicas", "0") == 0
    questions = [what for _, rid, what in brokers.asked if rid == silent]
    assert (questions.count("status"), questions.count("metrics")) == (1, 1)


def test_a_change_of_leader_is_counted_and_no_total_falls(watched: Watched) -> None:
    brokers = watched.brokers
    brokers.topic("t")
    brokers.produce("t", 0, [b"one"])
    before = watched.look()
    gone = brokers.leader()
    brokers.lose(0, gone)
    brokers.produce("t", 0, [b"two"])
    watched.patience(2.0)
    after: Mapping[Key, Value] = {}

    def led_again() -> bool:
        nonlocal after
        after = watched.look()
        return one(after, "escrowmq_group_has_leader", "0") == 1

    wait_until(led_again, 20.0, "a leader that the exporter sees")
    changes = "escrowmq_group_leader_changes_total"
    assert one(after, changes, "0") > one(before, changes, "0")
    assert one(after, "escrowmq_topic_messages_total", "t") == 2
    for key, value in before.items():
        if BY_NAME[key[0]].kind == "counter" and key in after:
            assert after[key] >= value, key  # type: ignore[operator]


def test_the_lag_of_consumer_groups_comes_with_a_later_look(watched: Watched) -> None:
    brokers = watched.brokers
    brokers.topic("t", partitions=2)
    for partition in range(2):
        brokers.produce("t", partition, [b"x"] * 5)
    brokers.groups[0].submit(ops.group_offsets("billing", "t", {0: 1, 1: 3}))
    wait_until(lambda: "lag" in {n.rpartition("_")[2] for n, _ in watched.look()}, 20.0, "the lag")
    assert one(watched.look(), "escrowmq_consumer_lag", "billing", "t") == 6


def test_dead_letters_and_retries_of_a_group_come_with_a_later_look(watched: Watched) -> None:
    brokers = watched.brokers
    brokers.topic("t")
    brokers.produce("t", 0, [b"x"] * 5)
    submit = brokers.groups[0].submit
    for name in ("__retry.mail", "__dead.mail"):
        submit(ops.create_topic(name, {"partitions": 1}, 0, 0))
    submit(share_ops.group_settings("mail", {"kind": "share"}))
    submit(share_ops.share_create("mail", "t", 0, "earliest", NO_ID))
    reasons, delays = ["no"] * 3, [share_ops.REJECT, share_ops.REJECT, 60_000]
    submit(share_ops.nack("mail", "t", 0, [0, 1, 2], delays, reasons, "", "kim", NO_ID))
    wait_until(lambda: ("escrowmq_dead_letters", ("mail",)) in watched.look(), 20.0, "the dead letters")
    found = watched.look()
    assert one(found, "escrowmq_dead_letters", "mail") == 2
    assert one(found, "escrowmq_share_retrying", "mail") == 1
    assert one(found, "escrowmq_share_leased", "mail") == 0
    assert one(found, "escrowmq_consumer_lag", "mail", "t") == 2


def test_replicas_that_only_the_router_has_heard_of_are_asked(watched: Watched) -> None:
    """When every founder of a group is gone, nobody else says who its members are."""
    watched.look()
    watched.router.channels[0].follower.follow(5, (7,))
    watched.patience(0.5)
    watched.look()
    assert (0, 7, "status") in watched.brokers.asked
