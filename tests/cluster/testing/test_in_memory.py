"""The cluster in memory beyond the public face that it shares with a real one (tests/integration): its clock,
its failures, what it has not, and that it needs neither Ray nor threads."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import escrowmq
from escrowmq import (
    ConfigError,
    DiskFull,
    Message,
    NotSupported,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    TooManyOpenTransactions,
    TransactionState,
    TxStatusQuerier,
    Unavailable,
    UnknownTopic,
)
from escrowmq.integrations import Fence
from escrowmq.testing import InMemoryCluster

ROOT = Path(__file__).resolve().parents[3]
COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class Calls(TxStatusQuerier):
    """Made of a function; remembers when it was asked about which query id."""

    def __init__(self, cluster: InMemoryCluster, function: Callable[[str], Any]) -> None:
        self.cluster, self.function = cluster, function
        self.asked: list[tuple[str, float]] = []
        self.begin = cluster.clock.time()

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        self.asked.append((query_id, round(self.cluster.clock.time() - self.begin, 1)))
        state: TransactionState = self.function(query_id)
        return state


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


def leave_open(producer: escrowmq.Producer, *query_ids: str) -> None:
    for query_id in query_ids:
        with producer.transaction(query_id=query_id) as tx:
            tx.send(Message("orders", query_id.encode()))
            tx.prepare()
            tx.unknown()


def readable(cluster: InMemoryCluster) -> list[bytes]:
    with cluster.consumer("reader", ["orders"], auto_offset_reset="earliest") as consumer:
        return sorted(record.value for record in consumer.poll())


# ---------------------------------------------------------------- what it needs

WITHOUT = """
import sys, threading, builtins
opened, real = [], builtins.open
from escrowmq import Message
from escrowmq.testing import InMemoryCluster
builtins.open = lambda *args, **more: opened.append(args[0]) or real(*args, **more)
with InMemoryCluster() as cluster:
    cluster.admin.create_topic("t")
    cluster.producer("app").send(Message("t", b"x")).result(0)
    assert [r.value for r in cluster.consumer("g", ["t"], auto_offset_reset="earliest").poll()] == [b"x"]
    print(threading.active_count(), "ray" in sys.modules, opened)
"""


def test_it_needs_no_ray_no_thread_and_no_file() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split("\n")[0] == "1 False []", ran.stdout


def test_nothing_is_left_of_a_cluster_that_was_closed() -> None:
    gone = []
    for _ in range(3):
        with InMemoryCluster() as cluster:
            cluster.admin.create_topic("orders")
            producer = cluster.producer("shop", tx_status_querier=Calls(cluster, lambda query_id: COMMITTED))
            leave_open(producer, "1")
            cluster.clock.advance(10)
            assert readable(cluster) == [b"1"]
            gone.append(weakref.ref(cluster._stage))
        del cluster, producer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


# ---------------------------------------------------------------- time


def test_time_stands_still_until_somebody_moves_it() -> None:
    start = datetime(2031, 5, 4, 12, 0, tzinfo=UTC)
    with InMemoryCluster(start=start) as cluster:
        cluster.admin.create_topic("orders")
        producer, consumer = cluster.producer("shop"), cluster.consumer("g", ["orders"])
        for _ in range(20):
            producer.send(Message("orders", b"x")).result(0)
        assert cluster.clock.now() == start
        assert consumer.poll(timeout_s=0) == [] or cluster.clock.now() == start
        cluster.clock.advance(1.5)
        sent = producer.send(Message("orders", b"y")).result(0)
        assert sent.timestamp == int(start.timestamp() * 1000) + 1_500
        while consumer.poll(timeout_s=0):
            pass
        before = cluster.clock.time()
        assert consumer.poll(timeout_s=2.5) == []
        assert cluster.clock.time() == pytest.approx(before + 2.5)
    for wrong in (-1, float("nan"), "1", True):
        with pytest.raises(ConfigError, match="number of seconds"):
            cluster.clock.advance(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="time zone"):
        InMemoryCluster(start=datetime(2031, 5, 4))


def test_another_thread_waits_in_earnest(cluster: InMemoryCluster) -> None:
    """Else a worker that polls all the time would make hours pass in a second."""
    took: list[float] = []

    def poll() -> None:
        with cluster.consumer("g", ["orders"]) as consumer:
            consumer.poll(timeout_s=0)
            began = time.monotonic()
            consumer.poll(timeout_s=0.2)
            took.append(time.monotonic() - began)

    before = cluster.clock.time()
    thread = threading.Thread(target=poll)
    thread.start()
    thread.join(10)
    assert took and took[0] >= 0.2
    assert cluster.clock.time() - before == pytest.approx(0.2, abs=0.01)


def test_a_thread_that_waits_is_woken_by_the_clock(cluster: InMemoryCluster) -> None:
    began, waiting = time.monotonic(), threading.Event()

    def poll() -> None:
        with cluster.consumer("g", ["orders"]) as consumer:
            consumer.poll(timeout_s=0)
            waiting.set()
            consumer.poll(timeout_s=60)

    thread = threading.Thread(target=poll)
    thread.start()
    assert waiting.wait(10)
    while thread.is_alive() and time.monotonic() - began < 10:
        cluster.clock.advance(61)
        thread.join(0.01)
    assert not thread.is_alive() and time.monotonic() - began < 10


def test_what_a_real_consumer_believes_after_some_seconds(cluster: InMemoryCluster) -> None:
    """That its place, or its topic, is not there; with a real cluster, replicas may lag for so long."""
    cluster.producer("shop").send(Message("orders", b"x")).result(0)
    with cluster.consumer("g", ["orders"], auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetOutOfRange):
            consumer.poll()
        consumer.seek("orders", 0, 0)
        assert len(consumer.poll()) == 1
        consumer.seek("orders", 0, 77)
        with pytest.raises(OffsetOutOfRange, match="77"):
            consumer.poll(timeout_s=20)
        consumer.seek("orders", 0, 1)
        assert consumer.poll(timeout_s=1) == []
        cluster.admin.delete_topic("orders")
        with pytest.raises(UnknownTopic, match="was deleted while it was read"):
            for _ in range(5):
                consumer.poll(timeout_s=5)


def test_retention_follows_the_clock(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("short", retention_ms=60_000)
    producer = cluster.producer("shop")
    producer.send(Message("short", b"old")).result(0)
    cluster.clock.advance(50)
    producer.send(Message("short", b"new")).result(0)
    cluster.clock.advance(25)
    (partition,) = cluster.admin.describe_topic("short").partitions
    assert (partition.start, partition.end) == (1, 2)


# ---------------------------------------------------------------- checks


def test_a_check_comes_when_it_is_due_and_not_before(cluster: InMemoryCluster) -> None:
    querier = Calls(cluster, lambda query_id: COMMITTED)
    leave_open(cluster.producer("shop", tx_status_querier=querier), "42")
    cluster.clock.advance(5.9)
    assert querier.asked == []
    cluster.clock.advance(1)
    assert len(querier.asked) == 1 and 6.0 <= querier.asked[0][1] <= 7.0
    assert readable(cluster) == [b"42"]
    cluster.clock.advance(600)
    assert len(querier.asked) == 1


def test_a_local_transaction_that_runs_is_not_asked_about(cluster: InMemoryCluster) -> None:
    querier = Calls(cluster, lambda query_id: ROLLBACK)
    producer = cluster.producer("shop", tx_status_querier=querier)
    with producer.transaction(query_id="slow") as tx:
        tx.send(Message("orders", b"slow"))
        tx.prepare()
        cluster.clock.advance(120)
        assert querier.asked == []
    assert readable(cluster) == [b"slow"]


def test_a_querier_that_raises_lies_or_does_not_know_is_asked_again(cluster: InMemoryCluster) -> None:
    def answer(query_id: str) -> Any:
        seen = sum(name == query_id for name, _ in querier.asked)
        if query_id == "raises" and seen == 1:
            raise RuntimeError("no connection")
        if query_id == "lies" and seen == 1:
            return "COMMITTED"
        return UNKNOWN if query_id == "unknown" and seen < 3 else COMMITTED

    querier = Calls(cluster, answer)
    leave_open(cluster.producer("shop", tx_status_querier=querier), "raises", "lies", "unknown", "fine")
    cluster.clock.advance(300)
    counts = {name: sum(asked == name for asked, _ in querier.asked) for name, _ in querier.asked}
    assert counts == {"raises": 2, "lies": 2, "unknown": 3, "fine": 1}
    assert readable(cluster) == [b"fine", b"lies", b"raises", b"unknown"]


def test_a_querier_may_use_the_cluster(cluster: InMemoryCluster) -> None:
    """It runs when all parts are at rest, and holds none of them up."""
    cluster.admin.create_topic("seen")

    def answer(query_id: str) -> TransactionState:
        producer.send(Message("seen", query_id.encode())).result(0)
        with producer.transaction() as tx:
            tx.send(Message("seen", b"too"))
            tx.prepare()
        assert cluster.admin.list_transactions(app="shop")
        return COMMITTED

    producer = cluster.producer("shop", tx_status_querier=Calls(cluster, answer))
    leave_open(producer, "1", "2")
    cluster.clock.advance(20)
    assert readable(cluster) == [b"1", b"2"]
    assert cluster.admin.describe_topic("seen").partitions[0].end == 4


def test_another_producer_of_the_app_is_asked_once_the_owner_is_closed(cluster: InMemoryCluster) -> None:
    first, second = (Calls(cluster, lambda query_id: COMMITTED) for _ in range(2))
    owner = cluster.producer("shop", tx_status_querier=first)
    other = cluster.producer("shop", tx_status_querier=second)
    leave_open(owner, "a")
    cluster.clock.advance(10)
    assert len(first.asked) == 1 and not second.asked, "the owner is asked first"
    leave_open(owner, "b")
    owner.close()
    cluster.clock.advance(10)
    assert [name for name, _ in second.asked] == ["b"]
    assert readable(cluster) == [b"a", b"b"]
    assert other.app == "shop"


def test_the_fence_is_the_querier(cluster: InMemoryCluster, tmp_path: Path) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    fence = Fence(engine, app="shop")
    fence.create_table()
    producer = cluster.producer("shop", tx_status_querier=fence)
    with fence.transaction(producer, [Message("orders", b"kept")], query_id="1"):
        pass
    cluster.fail_next("commit", OutcomeUnknown)
    with (
        pytest.raises(OutcomeUnknown),
        fence.transaction(producer, [Message("orders", b"found by the check")], query_id="2"),
    ):
        pass
    cluster.clock.advance(30)
    assert readable(cluster) == [b"found by the check", b"kept"]
    engine.dispose()


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_commit_whose_answer_is_lost(cluster: InMemoryCluster, carried_out: bool) -> None:
    querier = Calls(cluster, lambda query_id: COMMITTED)
    producer = cluster.producer("shop", tx_status_querier=querier)
    cluster.fail_next("commit", OutcomeUnknown, carried_out=carried_out)
    before = cluster.clock.time()
    with pytest.raises(OutcomeUnknown), producer.transaction(query_id="42") as tx:
        tx.send(Message("orders", b"42"))
        tx.prepare()
    assert cluster.clock.time() == pytest.approx(before + producer._config.delivery_timeout_s, abs=0.5)
    assert readable(cluster) == ([b"42"] if carried_out else [])
    cluster.clock.advance(20)
    assert readable(cluster) == [b"42"] and len(querier.asked) == (not carried_out)
    with producer.transaction() as tx:  # it alone failed
        tx.send(Message("orders", b"next"))
    assert readable(cluster) == [b"42", b"next"]


@pytest.mark.parametrize("error", [Unavailable, Overloaded, DiskFull])
@pytest.mark.parametrize("what", ["send", "prepare", "commit_offsets"])
def test_a_refusal_means_that_nothing_was_done(
    cluster: InMemoryCluster, what: str, error: type[Exception]
) -> None:
    producer = cluster.producer("shop")
    producer.send(Message("orders", b"first")).result(0)
    ran: list[int] = []
    with cluster.consumer("g", ["orders"], auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll()) == 1
        cluster.fail_next(what, error)  # type: ignore[arg-type]
        with pytest.raises(error):
            if what == "send":
                producer.send(Message("orders", b"x")).result(0)
            elif what == "prepare":
                producer.send_message_in_transaction(Message("orders", b"x"), lambda: ran.append(1))
            else:
                consumer.commit()
        assert not ran and readable(cluster) == [b"first"] and consumer.committed("orders", 0) is None
        producer.send(Message("orders", b"again")).result(0)
        consumer.poll()
        consumer.commit()
        assert consumer.committed("orders", 0) == 2


def test_a_roll_back_that_is_lost_does_not_hide_the_applications_error(cluster: InMemoryCluster) -> None:
    producer = cluster.producer("shop", tx_status_querier=Calls(cluster, lambda query_id: ROLLBACK))
    cluster.fail_next("rollback", OutcomeUnknown)
    with pytest.raises(ZeroDivisionError) as caught:
        producer.send_message_in_transaction(Message("orders", b"x"), lambda: 1 / 0)
    assert "could not be confirmed" in caught.value.__notes__[0]
    cluster.clock.advance(20)
    assert cluster.admin.list_transactions() == [] and readable(cluster) == []


def test_an_outage(cluster: InMemoryCluster) -> None:
    producer = cluster.producer("shop")
    consumer = cluster.consumer("g", ["orders"], auto_offset_reset="earliest")
    producer.send(Message("orders", b"before")).result(0)
    consumer.poll()
    with cluster.outage():
        lost = producer.send(Message("orders", b"lost"))
        with pytest.raises((Unavailable, OutcomeUnknown)):
            lost.result(0)
        assert consumer.poll(timeout_s=1) == []
        with pytest.raises(Unavailable):
            for _ in range(20):
                consumer.poll(timeout_s=5)
        status = cluster.status()
        assert not status.healthy
    producer.send(Message("orders", b"back")).result(0)
    found = [record.value for _ in range(5) for record in consumer.poll(timeout_s=5)]
    assert found[-1:] == [b"back"]
    assert cluster.status().healthy


def test_an_outage_in_an_outage_does_not_end_it(cluster: InMemoryCluster) -> None:
    with cluster.outage():
        with cluster.outage():
            pass
        with pytest.raises(Unavailable):
            cluster.admin.topics()
    assert cluster.admin.topics() is not None


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1, True, "1"])
def test_time_goes_on_by_a_number(cluster: InMemoryCluster, seconds: Any) -> None:
    with pytest.raises(ConfigError, match="advance needs a number of seconds"):
        cluster.clock.advance(seconds)


async def _settled(cluster: InMemoryCluster) -> list[str]:
    """Checks in the thread of a running event loop; the querier needs a loop of its own."""
    answers: list[str] = []

    async def look_up() -> TransactionState:
        answers.append("asked")
        return COMMITTED

    producer = cluster.producer(
        app="shop", tx_status_querier=Calls(cluster, lambda _: asyncio.run(look_up()))
    )
    cluster.fail_next("commit", OutcomeUnknown)
    with pytest.raises(OutcomeUnknown), producer.transaction() as tx:
        tx.send(Message("orders", b"x"))
    cluster.clock.advance(60)
    return answers


def test_a_querier_may_run_an_event_loop_in_an_asynchronous_test(cluster: InMemoryCluster) -> None:
    """As that of an AsyncFence does; clients of a real cluster ask it in threads of their own."""
    assert asyncio.run(_settled(cluster)) == ["asked"]
    assert not cluster.admin.list_transactions()


def test_a_failure_that_makes_no_sense_is_refused(cluster: InMemoryCluster) -> None:
    for what, error, carried_out in (
        ("comit", OutcomeUnknown, False),
        ("commit", UnknownTopic, False),
        ("commit", Unavailable, True),
    ):
        with pytest.raises(ConfigError):
            cluster.fail_next(what, error, carried_out=carried_out)


# ---------------------------------------------------------------- limits, and what it has not


def test_the_limit_of_open_transactions_is_that_of_its_configuration() -> None:
    config = escrowmq.load_config(overrides={"broker": {"open_transactions_max": 2}})
    with InMemoryCluster(config=config) as cluster:
        cluster.admin.create_topic("orders")
        producer = cluster.producer("shop", open_limit_wait_s=3.0)
        leave_open(producer, "1", "2")
        before = cluster.clock.time()
        with pytest.raises(TooManyOpenTransactions):
            leave_open(producer, "3")
        assert cluster.clock.time() - before == pytest.approx(3.0, abs=0.5), "it has waited as long as asked"


def test_what_it_has_not_says_so(cluster: InMemoryCluster) -> None:
    admin = cluster.admin
    for call in (
        cluster.health,
        cluster.leftovers,
        lambda: cluster.head_waits({}),
        lambda: admin.set_replicas(0, 3),
        lambda: admin.move_replica(0, 0, "node"),
        lambda: admin.drain_node("node"),
        lambda: admin.begin_maintenance("node"),
        admin.nodes,
        admin.rebalance,
        admin.member_changes,
    ):
        with pytest.raises(NotSupported, match="in memory has no"):
            call()
    (members,) = admin.members()
    assert members.voters == (0,)


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs/testing.md").read_text()
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in files] == ["shop.py", "conftest.py", "test_shop.py"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path))),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


def test_a_database_that_is_slow_to_answer_is_waited_for(cluster: InMemoryCluster) -> None:
    """Its slowness is not the clock's, so no check times out over it."""
    database = sqlite3.connect(":memory:")

    def answer(query_id: str) -> TransactionState:
        time.sleep(0.05)
        database.execute("select 1")  # in the thread that made it
        return COMMITTED

    leave_open(cluster.producer("shop", tx_status_querier=Calls(cluster, answer)), "1", "2")
    cluster.clock.advance(10)
    assert readable(cluster) == [b"1", b"2"]
    database.close()
