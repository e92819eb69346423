"""What replicas report from their counters: each transaction counts once, and names are bounded."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from typing import Any

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.client.linked_calls import LinkedCalls
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.replication.calling.answers import OverdueReport
from escrowmq.replication.calling.metrics_report import MetricsReport
from escrowmq.replication.format import ops
from escrowmq.replication.format.find_table import TX_ID
from escrowmq.replication.host.inspection import Instruments
from escrowmq.replication.host.requests import RequestCounts
from escrowmq.replication.model import NO_ID
from escrowmq.replication.state.due_queue import OVERDUE_MS
from tests.support.broker_group import BrokerGroup, Member
from tests.support.requests import prepare
from tests.support.waiting import wait_until


def told(member: Member) -> MetricsReport:
    return member.parts.instruments.metrics()


def summed(group: BrokerGroup, what: str) -> Counter[str]:
    total = Counter[str]()
    for member in group.alive.values():
        total.update(getattr(told(member), what))
    return total


def everybody_has_applied_all(group: BrokerGroup) -> None:
    def applied() -> set[int]:
        return {m.parts.running.replica.state.applied_index for m in group.alive.values()}

    wait_until(lambda: len(applied()) == 1, what="the same state everywhere")


def test_each_transaction_counts_at_one_replica_and_no_restart_counts_it_again(trio: BrokerGroup) -> None:
    trio.topic()
    trio.submit(prepare(["a", "b", "c"]))
    trio.submit(ops.commit("app", ["a"]))
    trio.submit(ops.rollback("app", ["b"], "operator:ann"))
    everybody_has_applied_all(trio)
    assert sum(told(member).prepared for member in trio.alive.values()) == 3
    assert summed(trio, "decided") == {"COMMITTED/producer": 1, "ROLLBACK/operator": 1}
    led = told(trio.leader()).led
    assert led is not None
    assert (led.apps.names, led.apps.columns, led.apps.rest, led.apps.all) == (["app"], [[1], [0]], [0, 0], 1)
    assert led.topics.names == ["t"]
    assert led.topics.columns[0] == [1]
    assert led.topics.columns[1][0] > 20
    assert 0 < led.oldest_age_s < 60
    assert told(trio.follower()[0]).led is None
    latencies = told(trio.leader()).histograms
    assert sum(latencies["prepare"].counts) == 1
    assert sum(latencies["commit"].counts) == 2
    assert sum(latencies["fsync"].counts) > 0 < sum(latencies["driver_stall"].counts)

    trio.close()
    trio.start()
    trio.leader()
    everybody_has_applied_all(trio)
    assert summed(trio, "decided") == {}, "what is redone from the log is not done again"
    assert sum(told(member).terms_led for member in trio.alive.values()) == 1
    assert all(told(member).link_connects >= 2 for member in trio.alive.values())
    assert all(told(member).disk_bytes > 1 << 20 for member in trio.alive.values())
    carried = pickle.loads(pickle.dumps(told(trio.leader())))  # noqa: S301
    assert isinstance(carried, MetricsReport)
    assert carried.led is not None
    assert carried.led.topics.columns[0] == [1], "messages that ever became readable, as the state has them"


def test_searches_are_counted_where_they_are_answered(trio: BrokerGroup) -> None:
    trio.topic()
    trio.publish("a")
    member = trio.follower()[0]
    everybody_has_applied_all(trio)
    for _ in range(2):
        member.parts.messages.find(("t", 0, NO_ID), (TX_ID, b"nobody", ""), 0, 10, 10, 1.0)
    found = told(member).find
    assert found is not None and (found.misses, found.hits, found.files) == (1, 1, 0)
    assert found.memory_bytes > 0 and sum(told(member).histograms["find_build"].counts) == 1
    led = told(trio.leader())
    assert led.find is not None and (led.find.misses, led.find.hits) == (0, 0)
    assert led.carried is not None and led.carried.entries == 0
    assert led.led is not None and (led.led.delayed_bytes, led.led.pinned_bytes) == (0, 0)


def test_what_is_refused_is_counted_by_its_reason(trio: BrokerGroup) -> None:
    trio.config = BrokerConfig(open_transactions_max=2)
    trio.close()
    trio.start()
    trio.topic()
    leader = trio.leader()
    trio.submit(prepare(["a", "b"]))
    trio.submit(prepare(["c"]))
    leader.parts.requests.submit(b"garbage")
    trio.follower()[0].parts.requests.submit(ops.commit("app", ["a"]))
    assert summed(trio, "refused") == {"too_many_open": 1, "malformed": 1, "not_leader": 1}


def test_names_are_bounded_and_what_is_not_named_is_summed(trio: BrokerGroup) -> None:
    for name in ("first", "second", "third"):
        trio.topic(name)
    for number, app in enumerate(("one", "two", "three", "four")):
        trio.submit(prepare([f"{app}-{i}" for i in range(number + 1)], topic="second", app=app))
    trio.submit(ops.commit("two", ["two-0"]))
    parts = trio.leader().parts
    two, one = (
        Instruments(parts.running, parts.requests.counts, parts.messages.finder, names_max).metrics().led
        for names_max in (2, 1)
    )
    assert two is not None and one is not None
    assert two.apps.names == ["four", "three"], "those with most open ones"
    assert (two.apps.columns, two.apps.rest, two.apps.all) == ([[4, 3], [0, 0]], [2, 0], 4)
    assert one.topics.names == ["first"], "those that were there first"
    assert (one.topics.columns[0], one.topics.rest[0], one.topics.all) == ([0], 1, 3)


def test_no_count_is_lost_where_many_threads_count() -> None:
    counts, threads, each = RequestCounts(), 8, 5_000

    def count() -> None:
        for _ in range(each):
            counts.answered("overloaded", (), 0.0)

    running = [threading.Thread(target=count) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert counts.refused() == {"overloaded": threads * each}


def test_a_leader_reports_checks_that_nobody_makes(trio: BrokerGroup) -> None:
    trio.topic(transaction_timeout_ms=100)
    trio.submit(prepare(["a"]))
    leader = trio.leader()
    led, status = told(leader).led, leader.parts.inspection.status()
    assert led is not None and led.overdue == OverdueReport() == status.overdue
    trio.clock_ahead_s = OVERDUE_MS / 1000 + 1.0

    def late() -> OverdueReport | None:
        led = told(leader).led
        return led and led.overdue

    wait_until(lambda: (one := late()) and one.count, what="it is overdue")
    shown = leader.parts.inspection.status().overdue
    assert shown is not None and (shown.count, shown.app, shown.topic, shown.tx_id) == (1, "app", "t", "a")
    assert trio.follower()[0].parts.inspection.status().overdue is None


def test_clients_with_connections_of_their_own_are_counted(trio: BrokerGroup) -> None:
    member = trio.leader()
    wait_until(lambda: member.parts.client_link() is not None, what="the door")
    offered = member.parts.client_link()
    assert offered is not None
    calls = LinkedCalls(Offering(offered))
    answers: list[object] = []
    try:
        while not answers or calls.linked == 0:
            calls.call(0, member.rid, "submit", (b"no request",), lambda *answer: answers.append(answer[0]))
            calls.pump(0.0)
            calls.wakeup.wait(0.1)
        wait_until(lambda: member.parts.instruments.metrics().client_requests == 1, what="the request")
        assert member.parts.instruments.metrics().clients == 1
    finally:
        calls.stopped("the test ends")
    wait_until(lambda: member.parts.instruments.metrics().clients == 0, what="the end of the connection")


class Offering:
    """Ray's calls to a broker that offers this connection."""

    def __init__(self, offer: tuple[str, int, bytes]) -> None:
        self.offer = offer

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        done(self.offer if method == "client_link" else ("unknown",), None)

    def close(self) -> None: ...
