"""Checks in the cluster in memory: when they come, and whom they ask."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from escrowmq import Message, OutcomeUnknown, TransactionState
from escrowmq.integrations import Fence
from escrowmq.testing import InMemoryCluster
from tests.support.in_memory import COMMITTED, ROLLBACK, UNKNOWN, Calls, leave_open, readable


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
    """The querier of an AsyncFence does so; a real cluster's clients call it in separate threads."""
    assert asyncio.run(_settled(cluster)) == ["asked"]
    assert not cluster.admin.list_transactions()


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
