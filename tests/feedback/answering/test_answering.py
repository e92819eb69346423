"""The producer's side against the real core in one loop: real time, real threads, short waits."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from escrowmq.feedback.answering.answering import Answering
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.topic_link import FeedbackLost, Respondent
from escrowmq.feedback.asking.topic_feedback import TopicFeedback
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.format import ops
from tests.support.clock import end
from tests.support.memory_groups import BrokersDouble
from tests.support.querier import Calls

COMMITTED, UNKNOWN = TransactionState.COMMITTED, TransactionState.UNKNOWN
QUICK = AnswererConfig(
    poll_wait_s=0.5, working_wait_s=0.1, query_timeout_s=0.3, discover_every_s=0.2, topic_linger_s=0.5
)


class LocalPort:
    """The feedback actor behind an edge that can be cut, as when the actor is killed."""

    def __init__(self, feedback: TopicFeedback) -> None:
        self.feedback, self.cut = feedback, False

    async def _unless_cut(self, answer: Awaitable[Any]) -> Any:
        result = await answer
        if self.cut:
            raise FeedbackLost("killed")
        return result

    async def poll(
        self, instance: str, room: int, working: Sequence[tuple[int, str, int]], wait_s: float
    ) -> Any:
        return await self._unless_cut(self.feedback.poll(instance, room, working, wait_s))

    async def answer(self, instance: str, answers: Sequence[tuple[int, str, str, str, int]]) -> Any:
        if self.cut:
            raise FeedbackLost("killed")
        return self.feedback.answer(instance, answers)

    async def leave(self, instance: str, idle: bool = False) -> None:
        self.feedback.leave(instance, idle)


class Place:
    """Broker groups, and feedback actors by topic, started on demand."""

    def __init__(self) -> None:
        self.config = FeedbackConfig()
        self.brokers = BrokersDouble()
        self.ports: dict[str, LocalPort] = {}
        self.connects = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def connect(self, topic: str) -> LocalPort:
        self.connects += 1
        port = self.ports.get(topic)
        if port is None or port.cut:
            feedback = TopicFeedback("shop", topic, 1, 3, self.brokers, self.config, random.Random(1))
            feedback.start()
            port = self.ports[topic] = LocalPort(feedback)
        return port

    def producer(
        self,
        name: str,
        function: Callable[[str, str], Any],
        still_running: Callable[[str], bool] = lambda tx_id: False,
        idle: Callable[[], bool] = lambda: False,
    ) -> Answering:
        pool = QueryPool(Calls(function), QUICK)
        respondent = Respondent(name, self.connect, pool, still_running, QUICK, random.Random(2), idle)
        answering = Answering("shop", 1, 3, self.brokers, respondent)
        self.tasks.append(asyncio.create_task(answering.run()))
        return answering


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    it = Place()
    it.brokers.groups[0].topic("orders")
    try:
        yield it
    finally:
        await end(it.tasks)
        for port in it.ports.values():
            await port.feedback.close()


async def soon(condition: Callable[[], Any], within_s: float = 5.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - start


def test_a_restarted_producer_is_asked_about_what_its_predecessor_left_open() -> None:
    async def main() -> None:
        async with place() as p:
            group = p.brokers.groups[0]
            group.topic("invoices")
            group.prepare("t1")
            group.prepare("t2", topic="invoices")
            answering = p.producer("new", lambda tx, q: COMMITTED)
            await soon(lambda: group.outcome("t1") == group.outcome("t2") == "COMMITTED")
            assert answering.topics() == ["invoices", "orders"]
            await soon(lambda: answering.topics() == [], 3.0)

    asyncio.run(main())


def test_topics_the_producer_uses_stay_linked() -> None:
    async def main() -> None:
        async with place() as p:
            answering = p.producer("p1", lambda tx, q: COMMITTED)
            answering.add_topic("orders")
            answering.add_topic("orders")
            await asyncio.sleep(1.2)
            assert answering.topics() == ["orders"] and p.connects == 1
            p.brokers.groups[0].prepare("t1", timeout_ms=1)
            assert await soon(lambda: p.brokers.groups[0].outcome("t1") == "COMMITTED") < 1.5

    asyncio.run(main())


def test_hundreds_of_checks_flow_without_waiting_for_polls_to_end() -> None:
    async def main() -> None:
        async with place() as p:
            group = p.brokers.groups[0]
            for i in range(600):
                group.prepare(f"t{i}", timeout_ms=1)
            await asyncio.sleep(0.5)
            p.producer("p1", lambda tx, q: COMMITTED)
            took = await soon(lambda: not group.state.transactions.app("shop").open, 20)
            assert took < 6

    asyncio.run(main())


def test_a_killed_feedback_actor_is_found_again_and_answers_under_way_arrive() -> None:
    gate = threading.Event()

    def gated(tx_id: str, query_id: str) -> TransactionState:
        gate.wait(0.25)
        return COMMITTED

    async def main() -> None:
        async with place() as p:
            group = p.brokers.groups[0]
            p.producer("p1", gated).add_topic("orders")
            group.prepare("t1", timeout_ms=1)
            await soon(lambda: "orders" in p.ports and p.ports["orders"].feedback.counts["handed"] == 1)
            first = p.ports["orders"]
            first.cut = True
            await first.feedback.close()
            gate.set()
            await soon(lambda: group.outcome("t1") == "COMMITTED", 3)
            assert p.ports["orders"] is not first
            group.prepare("t2", timeout_ms=1)
            await soon(lambda: group.outcome("t2") == "COMMITTED", 3)

    asyncio.run(main())


def test_a_hanging_querier_is_answered_for_and_other_checks_go_on() -> None:
    release = threading.Event()

    def hang_on_h(tx_id: str, query_id: str) -> TransactionState:
        if tx_id == "h":
            release.wait(5)
        return COMMITTED

    async def main() -> None:
        async with place() as p:
            group = p.brokers.groups[0]
            answering = p.producer("p1", hang_on_h)
            group.prepare("h", timeout_ms=1)
            await soon(lambda: answering.counts_by_topic().get("orders", {}).get("taken") == 1)
            group.prepare("t", timeout_ms=1)
            await soon(lambda: group.outcome("t") == "COMMITTED")
            await soon(lambda: group.open("h").checks == 1)
            release.set()  # its late word is heard, without another check
            await soon(lambda: group.outcome("h") == "COMMITTED")

    asyncio.run(main())


def test_a_transaction_that_still_runs_here_is_put_off_without_asking() -> None:
    async def main() -> None:
        async with place() as p:
            group = p.brokers.groups[0]
            asked: list[str] = []

            def says(tx_id: str, query_id: str) -> TransactionState:
                asked.append(tx_id)
                return TransactionState.ROLLBACK

            answering = p.producer("p1", says, still_running=lambda tx_id: tx_id == "t1")
            group.prepare("t1", timeout_ms=1)
            await soon(lambda: answering.counts_by_topic().get("orders", {}).get("running") == 1)
            await asyncio.sleep(0.3)
            assert asked == [] and group.open("t1").checks == 0

    asyncio.run(main())


def test_a_producer_that_closes_leaves_its_seat() -> None:
    async def main() -> None:
        async with place() as p:
            p.producer("p1", lambda tx, q: COMMITTED).add_topic("orders")
            await soon(lambda: "orders" in p.ports and p.ports["orders"].feedback.anyone_online())
            p.tasks[0].cancel()
            await asyncio.gather(*p.tasks, return_exceptions=True)
            assert not p.ports["orders"].feedback.anyone_online()

    asyncio.run(main())


# -------------------------------------------------------------------- two instances and a slow database


class Service:
    """One instance of a service: orders in a SQLite file that both share, and the README's querier."""

    def __init__(self, place: Place, name: str, database: Path) -> None:
        self.name, self.running = name, set[str]()
        self._group, self._database = place.brokers.groups[0], database
        self.answering = place.producer(
            name, self._look_up, self.running.__contains__, idle=lambda: not self.running
        )
        self.answering.add_topic("orders")

    def _look_up(self, tx_id: str, query_id: str) -> TransactionState:
        with closing(sqlite3.connect(self._database, timeout=30)) as db:
            found = db.execute("SELECT 1 FROM orders WHERE id = ?", (query_id,)).fetchone()
        return COMMITTED if found else TransactionState.ROLLBACK

    def _store(self, order: str, hold_s: float) -> None:
        with closing(sqlite3.connect(self._database, timeout=30, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # waits for whoever has the lock
            db.execute("INSERT INTO orders VALUES (?)", (order,))
            time.sleep(hold_s)
            db.execute("COMMIT")

    async def place(self, order: str, hold_s: float, timeout_ms: int) -> str:
        """Prepare, run the local transaction, commit; what became of the messages."""
        self.running.add(order)
        self._group.prepare(order, query_id=order, timeout_ms=timeout_ms, instance=self.name)
        await asyncio.to_thread(self._store, order, hold_s)
        self._group.submit(ops.commit("shop", [order]))
        self.running.discard(order)
        return self._group.outcome(order)


def test_two_instances_with_a_slow_database_tear_nothing(tmp_path: Path) -> None:
    """The lock of a database is waited for, for longer than the time-out: rows and messages stay together."""
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    async def main() -> None:
        async with place() as p:
            services = [Service(p, name, database) for name in ("a", "b")]
            await soon(lambda: "orders" in p.ports and p.ports["orders"].feedback.anyone_online())
            await asyncio.sleep(0.2)
            orders = [services[n % 2].place(f"order-{n}", 0.3, timeout_ms=300) for n in range(10)]
            assert await asyncio.gather(*orders) == ["COMMITTED"] * 10
            counts = [s.answering.counts_by_topic()["orders"] for s in services]
            assert all(count["running"] >= 3 for count in counts), counts
            assert not any(count.get("ROLLBACK") for count in counts), counts

    asyncio.run(main())


def test_a_service_that_closes_leaves_its_undecided_ones_to_the_other_at_once(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    async def main() -> None:
        async with place() as p:
            for name in ("a", "b"):
                Service(p, name, database)
            await soon(lambda: "orders" in p.ports and p.ports["orders"].feedback.anyone_online())
            await asyncio.sleep(0.2)
            group = p.brokers.groups[0]
            group.prepare("left", timeout_ms=200, instance="a")
            p.tasks[0].cancel()
            assert await soon(lambda: group.outcome("left") == "ROLLBACK") < 3

    asyncio.run(main())
