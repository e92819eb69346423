"""Checks on a real cluster: producers that disappear, queriers that misbehave, limits and policies."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray

from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.edges.answerer import CheckAnswerer
from escrowmq.feedback.edges.shard_actor import start_shard
from escrowmq.feedback.states import TransactionState, TxStatusQuerier, feedback_name, shard_name
from escrowmq.replication.calling.answers import part_of
from escrowmq.replication.errors import TransactionConflict
from escrowmq.replication.model import Message
from escrowmq.testing import InMemoryCluster
from tests.support.faces import let_pass, until

if TYPE_CHECKING:
    from escrowmq import Cluster

Unique = Callable[[str], str]
COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK
UNKNOWN = TransactionState.UNKNOWN


class Calls(TxStatusQuerier):
    """A querier that calls a function; counts the queries by query id."""

    def __init__(self, function: Callable[[str], Any]) -> None:
        self.function, self.asked = function, Counter[str]()

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        self.asked[query_id] += 1
        state: TransactionState = self.function(query_id)
        return state


class App:
    """An app with its own topic."""

    def __init__(self, cluster: Cluster, unique: Unique, **options: int | str) -> None:
        self.cluster, self.name, self.topic = cluster, unique("shop"), unique("orders")
        cluster.admin.create_topic(self.topic, partitions=2, **options)

    def leave_open(self, *query_ids: str, timeout_s: float = 0.3) -> dict[str, str]:
        """Prepare transactions with a producer that has no querier and never decides them; query id -> id."""
        opened = {}
        with self.cluster.producer(app=self.name) as producer:
            for query_id in query_ids:
                with producer.transaction(query_id=query_id, transaction_timeout_s=timeout_s) as tx:
                    tx.send(Message(self.topic, query_id.encode()))
                    tx.prepare()
                    tx.unknown()
                opened[query_id] = tx.tx_id
        return opened

    @contextmanager
    def answers(self, querier: Calls, **config: float) -> Iterator[None]:
        """A process of this app that can be asked."""
        if isinstance(self.cluster, InMemoryCluster):
            assert not config, "a querier there takes no time"
            with self.cluster.producer(self.name, tx_status_querier=querier):
                yield
            return
        answerer = CheckAnswerer(
            self.name,
            querier,
            uuid.uuid4().hex,
            self.cluster.admin.info,
            config=AnswererConfig(**config),  # type: ignore[arg-type]
        )
        answerer.start()
        try:
            yield
        finally:
            answerer.close()

    def open_ones(self) -> dict[str, Any]:
        found = self.cluster.admin.list_transactions(app=self.name)
        return {transaction.query_id: transaction for transaction in found}

    def values(self, count: int) -> list[bytes]:
        """Values that a consumer reads: waits for ``count`` messages, then briefly for more."""
        consumer = self.cluster.consumer(group=self.name, topics=[self.topic], auto_offset_reset="earliest")
        with consumer:
            found: list[bytes] = []
            deadline = time.monotonic() + 15
            while len(found) < count and time.monotonic() < deadline:
                found += [record.value for record in consumer.poll(timeout_s=0.5)]
            found += [record.value for record in consumer.poll(timeout_s=0.5)]
        return sorted(found)


def open_ones_end(app: App) -> None:
    until(app.cluster, lambda: not app.open_ones())


@pytest.mark.ray
@pytest.mark.parametrize("when", ["after", "before"])
def test_a_producer_killed_around_its_local_commit_is_answered_for_by_another_of_its_app(
    cluster: Cluster, unique: Unique, ray_local: str, tmp_path: Path, when: str
) -> None:
    app, database = App(cluster, unique), str(tmp_path / "shop.db")
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    def look_up(query_id: str) -> TransactionState:
        with closing(sqlite3.connect(database)) as db:
            row = db.execute("SELECT id FROM orders WHERE id = ?", (query_id,)).fetchone()
        return COMMITTED if row else ROLLBACK

    program = [sys.executable, "-m", "tests.integration.vanishing_producer"]
    died = subprocess.run(
        [*program, ray_local, database, app.name, app.topic, "order-42", when], timeout=60, check=False
    )
    assert died.returncode == -signal.SIGKILL
    assert list(app.open_ones()) == ["order-42"], "the broker holds it"
    querier = Calls(look_up)
    with app.answers(querier):
        open_ones_end(app)
    expected = [b"order-42 placed", b"order-42 to be paid"] if when == "after" else []
    assert app.values(len(expected)) == expected
    assert querier.asked == {"order-42": 1}


@pytest.mark.ray
def test_a_querier_that_raises_hangs_or_does_not_know_yet_delays_only_its_own_transactions(
    cluster: Cluster, unique: Unique
) -> None:
    app, release = App(cluster, unique), threading.Event()

    def answer(query_id: str) -> Any:
        first = querier.asked[query_id] == 1
        if query_id == "raises" and first:
            raise RuntimeError("no connection")
        if query_id == "hangs" and first:
            release.wait(30)
        if query_id == "lies" and first:
            return "COMMITTED"
        return UNKNOWN if query_id == "unknown" and querier.asked[query_id] < 3 else COMMITTED

    querier = Calls(answer)
    orders = [f"order-{n}" for n in range(20)]
    app.leave_open("hangs", "raises", "lies", "unknown", *orders)
    with app.answers(querier, query_timeout_s=0.5):
        until(cluster, lambda: not set(orders) & set(app.open_ones()))
        assert "unknown" in app.open_ones()
        open_ones_end(app)
        release.set()
    assert querier.asked == {"hangs": 2, "raises": 2, "lies": 2, "unknown": 3, **dict.fromkeys(orders, 1)}
    assert len(app.values(24)) == 24


def test_checks_wait_for_a_producer_of_the_app_to_come_online(face: Cluster, unique: Unique) -> None:
    app = App(face, unique, check_max=1)
    app.leave_open("order-1")
    let_pass(face, 2.5)
    assert app.open_ones()["order-1"].checks == 0 and not app.open_ones()["order-1"].parked
    stranger = App(face, unique)
    with stranger.answers(Calls(lambda query_id: ROLLBACK)):  # another app's producer is never asked
        let_pass(face, 1.5)
        assert app.open_ones()["order-1"].checks == 0
    with app.answers(Calls(lambda query_id: COMMITTED)):
        open_ones_end(app)
    assert app.values(1) == [b"order-1"]


def test_what_exceeds_check_max_is_parked_visible_and_decidable_by_hand(
    face: Cluster, unique: Unique
) -> None:
    app = App(face, unique, check_max=2)
    ids = app.leave_open("pay", "forget")
    querier = Calls(lambda query_id: UNKNOWN)
    with app.answers(querier):
        until(face, lambda: all(found.parked for found in app.open_ones().values()))
        assert {q: t.checks for q, t in app.open_ones().items()} == {"pay": 2, "forget": 2}
        let_pass(face, 1.5)
        assert querier.asked == {"pay": 2, "forget": 2}, "parked ones are not asked about"
        parked = face.admin.list_transactions(state="PARKED", app=app.name, topic=app.topic)
        assert {transaction.tx_id for transaction in parked} == set(ids.values())
        face.admin.resolve_transaction(ids["pay"], COMMITTED, by="ann")
        face.admin.resolve_transaction(ids["forget"], ROLLBACK, by="ann")
    assert app.open_ones() == {} and app.values(1) == [b"pay"]
    with pytest.raises(TransactionConflict):
        face.admin.resolve_transaction(ids["pay"], ROLLBACK)


def test_the_policy_rollback_is_carried_out_when_a_topic_asks_for_it(face: Cluster, unique: Unique) -> None:
    app = App(face, unique, check_max=2, on_check_exhausted="rollback")
    ids = app.leave_open("order-1")
    querier = Calls(lambda query_id: UNKNOWN)
    with app.answers(querier):
        open_ones_end(app)
        assert querier.asked == {"order-1": 2}
    shown = face.admin.show_transaction(ids["order-1"], app=app.name)
    assert shown.state is ROLLBACK
    assert app.values(0) == []


@pytest.mark.ray
def test_a_killed_feedback_process_is_started_again_and_answers_for_all_its_topics(
    cluster: Cluster, unique: Unique
) -> None:
    app, info, shards = App(cluster, unique), cluster.admin.info, FeedbackConfig().shards
    topics = [app.topic, *(unique("more") for _ in range(7))]
    for topic in topics[1:]:
        cluster.admin.create_topic(topic, partitions=1)

    def leave_open(what: str) -> None:
        with cluster.producer(app=app.name) as producer:
            for topic in topics:
                with producer.transaction(query_id=f"{what} {topic}", transaction_timeout_s=0.3) as tx:
                    tx.send(Message(topic, what.encode()))
                    tx.prepare()
                    tx.unknown()

    with app.answers(Calls(lambda query_id: COMMITTED)):
        leave_open("before")
        open_ones_end(app)
        number = part_of(app.name, app.topic, shards)
        process = start_shard(number, shards, info)
        killed = ray.get(process.status.remote(app.name))
        assert app.topic in {pair["topic"] for pair in killed["pairs"]}
        os.kill(killed["pid"], signal.SIGKILL)
        leave_open("after")
        open_ones_end(app)
        successor = ray.get(process.status.remote(app.name, app.topic))
        assert successor["pid"] != killed["pid"]
        (pair,) = successor["pairs"]
        assert pair["name"] == feedback_name(app.name, app.topic) and pair["counts"]["handed"] == 1
    names = {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)}
    assert names >= {shard_name(number) for number in range(shards)}
    assert feedback_name(app.name, app.topic) not in names, "no process of its own"


def test_a_producer_with_a_querier_resolves_what_it_left_unknown_itself(
    face: Cluster, unique: Unique
) -> None:
    app = App(face, unique)
    querier = Calls(lambda query_id: COMMITTED if query_id == "yes" else ROLLBACK)
    with face.producer(app=app.name, tx_status_querier=querier) as producer:
        for query_id in ("yes", "no"):
            producer.send_message_in_transaction(
                Message(app.topic, query_id.encode()),
                lambda: UNKNOWN,
                query_id=query_id,
                transaction_timeout_s=0.3,
            )
        open_ones_end(app)
    assert querier.asked == {"yes": 1, "no": 1} and app.values(1) == [b"yes"]
