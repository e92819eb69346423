"""The producer's side against the real core in one event loop: real time, real threads, short waits."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from escrowmq.feedback.answering.answering import Answering
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import AskedCheck, FeedbackLost, GroupTopic, Respondent
from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.calling.answers import part_of
from escrowmq.replication.format import ops
from tests.support.clock import end
from tests.support.memory_groups import BrokersDouble
from tests.support.querier import Calls

COMMITTED, UNKNOWN = TransactionState.COMMITTED, TransactionState.UNKNOWN
QUICK = AnswererConfig(poll_wait_s=0.5, working_wait_s=0.1, query_timeout_s=0.3)


class LocalPort:
    """A feedback process behind a link that can be cut, as when it is killed. Counts parked polls."""

    def __init__(self, app: str, feedback: FeedbackShard) -> None:
        self.app, self.feedback, self.cut = app, feedback, False
        self.polls = self.most_polls = 0

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes
    ) -> Any:
        self.polls += 1
        self.most_polls = max(self.polls, self.most_polls)
        try:
            result = await self.feedback.poll(self.app, instance, room, working, wait_s, fence)
        finally:
            self.polls -= 1
        if self.cut:
            raise FeedbackLost("killed")
        return result

    async def answer(self, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]) -> Any:
        if self.cut:
            raise FeedbackLost("killed")
        return self.feedback.answer(self.app, instance, answers)

    async def leave(self, instance: str, idle: bool = False) -> None:
        self.feedback.leave(self.app, instance, idle)


class Scene:
    """Broker groups, and feedback processes, started on demand."""

    def __init__(self, shards: int) -> None:
        self.config = FeedbackConfig()
        self.brokers = BrokersDouble()
        self.shards = shards
        self.ports: dict[int, LocalPort] = {}
        self.connects = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def count(self) -> int:
        return self.shards

    async def connect(self, number: int) -> LocalPort:
        self.connects += 1
        port = self.ports.get(number)
        if port is None or port.cut:
            rng = random.Random(1)
            feedback = FeedbackShard(number, self.shards, 1, 3, self.brokers, self.config, rng)
            feedback.start()
            port = self.ports[number] = LocalPort("shop", feedback)
        return port

    def port_of(self, topic: str) -> LocalPort:
        return self.ports[part_of("shop", topic, self.shards)]

    def producer(
        self,
        name: str,
        function: Callable[[str, str], Any],
        still_running: Callable[[str], bool] = lambda tx_id: False,
        idle: Callable[[], bool] = lambda: False,
    ) -> Answering:
        pool = QueryPool(Calls(function), QUICK)
        respondent = Respondent(name, self.connect, pool, still_running, QUICK, random.Random(2), idle)
        answering = Answering("shop", self.count, respondent)
        self.tasks.append(asyncio.create_task(answering.run()))
        return answering


@asynccontextmanager
async def scene(shards: int = 1) -> AsyncIterator[Scene]:
    it = Scene(shards)
    it.brokers.groups[0].topic("orders")
    try:
        yield it
    finally:
        await end(it.tasks)
        for port in it.ports.values():
            await port.feedback.close()


async def soon(condition: Callable[[], Any], within_s: float = 20.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - start


def test_a_restarted_producer_is_asked_about_what_its_predecessor_left_open() -> None:
    async def main() -> None:
        async with scene() as p:
            group = p.brokers.groups[0]
            group.topic("invoices")
            group.prepare("t1")
            group.prepare("t2", topic="invoices")
            answering = p.producer("new", lambda tx, q: COMMITTED)
            await soon(lambda: group.outcome("t1") == group.outcome("t2") == "COMMITTED")
            assert answering.happened()["taken"] == 2

    asyncio.run(main())


def test_a_producer_with_a_thousand_topics_parks_one_poll_at_each_process() -> None:
    """It parked one per topic, and none beyond 256 topics: transactions open in those were never checked."""

    async def main() -> None:
        async with scene(shards=2) as p:
            group, names = p.brokers.groups[0], [f"topic-{n}" for n in range(1_000)]
            answering = p.producer("p1", lambda tx, q: COMMITTED)
            for name in names:
                group.topic(name)
                group.prepare(f"tx of {name}", topic=name, timeout_ms=1)
            await soon(lambda: not group.state.transactions.app("shop").open, 25)
            assert answering.happened()["COMMITTED"] == 1_000
            assert p.connects == 2
            assert all(port.most_polls <= 2 for port in p.ports.values()), "one, and one that ends it"
            assert group.parked_calls == 2, "one at the leader for each process"

    asyncio.run(main())


def test_hundreds_of_checks_flow_without_waiting_for_polls_to_end() -> None:
    async def main() -> None:
        async with scene() as p:
            group = p.brokers.groups[0]
            for i in range(600):
                group.prepare(f"t{i}", timeout_ms=1)
            await asyncio.sleep(0.5)
            p.producer("p1", lambda tx, q: COMMITTED)
            took = await soon(lambda: not group.state.transactions.app("shop").open, 40)
            assert took < 20, "a poll ends after 5 s, and brings few"

    asyncio.run(main())


def test_a_killed_feedback_actor_is_found_again_and_answers_under_way_arrive() -> None:
    gate = threading.Event()

    def gated(tx_id: str, query_id: str) -> TransactionState:
        gate.wait(0.25)
        return COMMITTED

    async def main() -> None:
        async with scene() as p:
            group = p.brokers.groups[0]
            p.producer("p1", gated)
            group.prepare("t1", timeout_ms=1)
            await soon(lambda: p.ports and p.ports[0].feedback.counts["handed"] == 1)
            first = p.ports[0]
            first.cut = True
            await first.feedback.close()
            gate.set()
            await soon(lambda: group.outcome("t1") == "COMMITTED", 3)
            assert p.ports[0] is not first
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
        async with scene() as p:
            group = p.brokers.groups[0]
            answering = p.producer("p1", hang_on_h)
            group.prepare("h", timeout_ms=1)
            await soon(lambda: answering.happened()["taken"] == 1)
            group.prepare("t", timeout_ms=1)
            await soon(lambda: group.outcome("t") == "COMMITTED")
            await soon(lambda: group.open("h").checks == 1)
            release.set()  # its late answer is accepted, without another check
            await soon(lambda: group.outcome("h") == "COMMITTED")

    asyncio.run(main())


def test_a_transaction_that_still_runs_here_is_put_off_without_asking() -> None:
    async def main() -> None:
        async with scene() as p:
            group = p.brokers.groups[0]
            asked: list[str] = []

            def says(tx_id: str, query_id: str) -> TransactionState:
                asked.append(tx_id)
                return TransactionState.ROLLBACK

            answering = p.producer("p1", says, still_running=lambda tx_id: tx_id == "t1")
            group.prepare("t1", timeout_ms=1)
            await soon(lambda: answering.happened()["running"] == 1)
            await asyncio.sleep(0.3)
            assert asked == [] and group.open("t1").checks == 0

    asyncio.run(main())


def test_a_producer_that_closes_leaves_its_seat() -> None:
    async def main() -> None:
        async with scene() as p:
            p.producer("p1", lambda tx, q: COMMITTED)
            await soon(lambda: p.ports and p.ports[0].polls == 1)
            p.tasks[0].cancel()
            await asyncio.gather(*p.tasks, return_exceptions=True)
            assert p.ports[0].polls == 0
            assert p.ports[0].feedback.apps["shop"].get("p1") is None

    asyncio.run(main())


# -------------------------------------------------------------------- two instances and a slow database


class Service:
    """One instance of a service: orders in a SQLite file that both share, and a querier without a fence."""

    def __init__(self, scene: Scene, name: str, database: Path) -> None:
        self.name, self.running = name, set[str]()
        self._group, self._database = scene.brokers.groups[0], database
        self.answering = scene.producer(
            name, self._look_up, self.running.__contains__, idle=lambda: not self.running
        )

    def _look_up(self, tx_id: str, query_id: str) -> TransactionState:
        with closing(sqlite3.connect(self._database, timeout=30)) as db:
            found = db.execute("SELECT 1 FROM orders WHERE id = ?", (query_id,)).fetchone()
        return COMMITTED if found else TransactionState.ROLLBACK

    def _store(self, order: str, hold_s: float) -> None:
        with closing(sqlite3.connect(self._database, timeout=30, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # waits for the holder of the lock
            db.execute("INSERT INTO orders VALUES (?)", (order,))
            time.sleep(hold_s)
            db.execute("COMMIT")

    async def place(self, order: str, hold_s: float, timeout_ms: int) -> str:
        """Prepares, runs the local transaction, commits; returns what became of the messages."""
        self.running.add(order)
        self._group.prepare(order, query_id=order, timeout_ms=timeout_ms, instance=self.name)
        await asyncio.to_thread(self._store, order, hold_s)
        self._group.submit(ops.commit("shop", [order]))
        self.running.discard(order)
        return self._group.outcome(order)


def test_two_instances_with_a_slow_database_tear_nothing(tmp_path: Path) -> None:
    """The wait for a database lock exceeds the time-out: rows and messages still stay consistent."""
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    async def main() -> None:
        async with scene() as p:
            services = [Service(p, name, database) for name in ("a", "b")]
            await soon(lambda: p.ports and p.ports[0].polls == 2)
            await asyncio.sleep(0.2)
            orders = [services[n % 2].place(f"order-{n}", 0.3, timeout_ms=300) for n in range(10)]
            assert await asyncio.gather(*orders) == ["COMMITTED"] * 10
            counts = [service.answering.happened() for service in services]
            assert all(count["running"] >= 3 for count in counts), counts
            assert not any(count.get("ROLLBACK") for count in counts), counts

    asyncio.run(main())


def test_a_service_that_closes_leaves_its_undecided_ones_to_the_other_at_once(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    async def main() -> None:
        async with scene() as p:
            for name in ("a", "b"):
                Service(p, name, database)
            await soon(lambda: p.ports and p.ports[0].polls == 2)
            await asyncio.sleep(0.2)
            group = p.brokers.groups[0]
            group.prepare("left", timeout_ms=200, instance="a")
            p.tasks[0].cancel()
            assert await soon(lambda: group.outcome("left") == "ROLLBACK", 15) < 10, (
                "long before it counts as gone: 20 s"
            )

    asyncio.run(main())
