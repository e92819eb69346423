"""One app over several databases: only who has the transaction's table answers its checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from escrowmq import Message, OutcomeUnknown, TransactionState, Unavailable
from escrowmq.cluster.cli import transactions
from escrowmq.cluster.cli.output import Format
from escrowmq.feedback.answering.answering import Answering
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import Respondent, ShardLink
from escrowmq.feedback.asking.checks import CheckTable
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.database.statements import short_name
from escrowmq.feedback.policy import Trouble
from escrowmq.feedback.states import TxStatusQuerier
from escrowmq.integrations import AsyncFence, Fence, WrongDatabase
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.errors import TransactionSettled
from escrowmq.testing import InMemoryCluster

A, B = b"a" * 16, b"b" * 16
LONG_S = 1200.0  # many more checks than check_max


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as found:
        found.admin.create_topic("orders")
        yield found


def fence_of(path: Path) -> Fence:
    fence = Fence(lambda: sqlite3.connect(path), app="shop")
    fence.create_table()
    with sqlite3.connect(path) as db:
        db.execute("create table if not exists orders (id text)")
    return fence


def readable(cluster: InMemoryCluster) -> list[bytes]:
    reader = cluster.consumer("look", ["orders"], auto_offset_reset="earliest")
    found = [record.value for _ in range(3) for record in reader.poll(timeout_s=1.0)]
    reader.close()
    return found


def open_order(cluster: InMemoryCluster, path: Path) -> str:
    """A row is committed, the COMMIT to the broker is lost, and its producer is gone."""
    fence = fence_of(path)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    cluster.fail_next("commit", OutcomeUnknown)
    with (
        pytest.raises(OutcomeUnknown),
        fence.transaction(producer, Message("orders", b"42")) as (tx, db),
    ):
        db.execute("insert into orders values ('42')")
    producer.close()
    return str(tx.tx_id)


def test_the_others_never_answer_and_who_has_the_table_does(
    cluster: InMemoryCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tx_id = open_order(cluster, tmp_path / "a.db")
    with caplog.at_level(logging.WARNING):
        cluster.producer(app="shop", tx_status_querier=fence_of(tmp_path / "b.db"))
        cluster.clock.advance(LONG_S)
    [waiting] = cluster.admin.show_transaction(tx_id, "shop").open.values()
    again = fence_of(tmp_path / "a.db")
    assert again.fence == b""
    assert waiting.fence == short_name(again.learn_identity()).hex() != ""
    assert (waiting.checks, waiting.parked) == (0, False)
    assert "wait for a producer whose fence has the table" in caplog.text
    assert readable(cluster) == []
    cluster.producer(app="shop", tx_status_querier=again)
    cluster.clock.advance(120.0)
    assert readable(cluster) == [b"42"]


def test_a_fence_of_another_database_than_the_producers_is_refused_before_a_row_is_written(
    cluster: InMemoryCluster, tmp_path: Path
) -> None:
    mine, other = fence_of(tmp_path / "a.db"), fence_of(tmp_path / "b.db")
    producer = cluster.producer(app="shop", tx_status_querier=mine)
    with (
        pytest.raises(WrongDatabase, match="producer of its own"),
        other.transaction(producer, Message("orders", b"1")) as (_, db),
    ):
        db.execute("insert into orders values ('1')")
    with mine.transaction(producer, Message("orders", b"2")) as (_, db):
        db.execute("insert into orders values ('2')")
    assert readable(cluster) == [b"2"]
    with sqlite3.connect(tmp_path / "b.db") as db:
        assert db.execute("select count(*) from orders").fetchone() == (0,)


def by_hand(producer: Any, other: Fence, path: Path) -> None:
    with producer.transaction(tx_id="42") as tx, sqlite3.connect(path) as db:
        tx.send(Message("orders", b"42"))
        tx.prepare()
        other.enter(db, tx)


def by_local(producer: Any, other: Fence, path: Path) -> None:
    def store(tx: Any) -> None:
        with other.local(tx):
            pass

    producer.send_message_in_transaction(Message("orders", b"42"), store, tx_id="42")


def in_a_block(producer: Any, other: Fence, path: Path) -> None:
    with other.transaction(producer, Message("orders", b"42"), tx_id="42"):
        pass


def in_tasks(producer: Any, other: Fence, path: Path) -> None:
    async def run() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        try:
            async with AsyncFence(engine, app="shop").transaction(
                producer.aio, Message("orders", b"42"), tx_id="42"
            ):
                pass
        finally:
            await engine.dispose()

    asyncio.run(run())


@pytest.mark.parametrize("again", [by_hand, by_local, in_a_block, in_tasks])
@pytest.mark.parametrize("learned", [True, False])
def test_a_repetition_in_another_database_leaves_the_first_run_s_messages(
    cluster: InMemoryCluster, tmp_path: Path, again: Callable[[Any, Fence, Path], None], learned: bool
) -> None:
    """The other table has no such row, which is no word about the first run."""
    mine, path = fence_of(tmp_path / "a.db"), tmp_path / "b.db"
    other = fence_of(path)
    if not learned:
        other = Fence(lambda: sqlite3.connect(path), app="shop")
    first = cluster.producer(app="shop", tx_status_querier=mine)
    with first.transaction(tx_id="42") as tx:
        tx.send(Message("orders", b"42"))
        tx.prepare()
        with mine.local(tx) as db:
            db.execute("insert into orders values ('42')")
        tx.unknown()
    first.close()
    second = cluster.producer(app="shop", tx_status_querier=mine)
    with pytest.raises((OutcomeUnknown, WrongDatabase)) as refused:
        again(second, other, path)
    assert isinstance(refused.value if again is by_hand else refused.value.__cause__, WrongDatabase)
    with sqlite3.connect(path) as db:
        assert db.execute("select count(*) from escrowmq_fence where outcome < 3").fetchone() == (0,)
    cluster.clock.advance(60.0)
    assert readable(cluster) == [b"42"]


def test_transactions_sent_in_bulk_name_their_table(cluster: InMemoryCluster, tmp_path: Path) -> None:
    fence = fence_of(tmp_path / "a.db")
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    seen = list[str]()

    def local(transactions: Any) -> None:
        with sqlite3.connect(tmp_path / "a.db") as db:
            db.execute("begin")
            fence.enter(db, *transactions)
        for tx in transactions:
            [entry] = cluster.admin.show_transaction(tx.tx_id, "shop").open.values()
            seen.append(entry.fence)

    producer.send_transactions([Message("orders", b"1"), Message("orders", b"2")], local)
    assert seen == [short_name(fence.learn_identity()).hex()] * 2


def test_an_asynchronous_fence_names_its_table_too(cluster: InMemoryCluster, tmp_path: Path) -> None:
    fence_of(tmp_path / "a.db")

    async def run() -> tuple[str, str]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
        fence = AsyncFence(engine, app="shop")
        producer = cluster.producer(app="shop", tx_status_querier=fence).aio
        try:
            async with fence.transaction(producer, Message("orders", b"1")) as (tx, _):
                [entry] = cluster.admin.show_transaction(tx.tx_id, "shop").open.values()
            return entry.fence, fence.fence.hex()
        finally:
            await engine.dispose()

    told, known = asyncio.run(run())
    assert told == known != ""


def query_of(file: list[Path], kind: str) -> Fence | AsyncFence:
    """A fence whose checks connect to whatever ``file`` names at the time."""
    if kind == "blocking":
        return Fence(lambda: sqlite3.connect(file[0]), app="shop")

    def engine() -> AsyncEngine:
        return create_async_engine(f"sqlite+aiosqlite:///{file[0]}")

    return AsyncFence(engine(), app="shop", checks=engine)


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
@pytest.mark.parametrize("there", ["another table", "none"])
def test_a_check_that_comes_upon_another_table_is_not_counted_and_its_table_is_told(
    cluster: InMemoryCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, there: str
) -> None:
    """A changed search path, a database that was moved: the process has learned the right name, and its
    connections lead elsewhere by now."""
    tx_id = open_order(cluster, tmp_path / "a.db")
    file = [tmp_path / "a.db"]
    wrong = query_of(file, kind)
    wrong.learn_fence()
    file[0] = tmp_path / "b.db"
    if there == "another table":
        fence_of(file[0])
    with caplog.at_level(logging.WARNING):
        cluster.producer(app="shop", tx_status_querier=wrong)
        cluster.clock.advance(LONG_S)
    [waiting] = cluster.admin.show_transaction(tx_id, "shop").open.values()
    assert (waiting.checks, waiting.parked) == (0, False)
    assert tables_missing(cluster) == [f"shop {wrong.fence.hex()}"]
    assert "wait for a producer whose fence has the table" in caplog.text
    assert ("is of another database" if there == "another table" else "there is no table") in caplog.text
    assert "Traceback" not in caplog.text and len(caplog.records) < 100, "said once a minute"
    with sqlite3.connect(file[0]) as db:
        tables = db.execute("select count(*) from sqlite_master where name = 'escrowmq_fence'").fetchone()
        assert tables == (int(there == "another table"),)
        if there == "another table":
            assert db.execute("select count(*) from escrowmq_fence").fetchone() == (1,), "its name alone"
    cluster.producer(app="shop", tx_status_querier=fence_of(tmp_path / "a.db"))
    cluster.clock.advance(60.0)
    assert readable(cluster) == [b"42"]
    assert tables_missing(cluster) == []


def test_a_connection_that_leads_back_answers_again(cluster: InMemoryCluster, tmp_path: Path) -> None:
    open_order(cluster, tmp_path / "a.db")
    file = [tmp_path / "a.db"]
    fence = query_of(file, "blocking")
    fence.learn_fence()
    file[0] = tmp_path / "b.db"
    cluster.producer(app="shop", tx_status_querier=fence)
    cluster.clock.advance(LONG_S)
    file[0] = tmp_path / "a.db"
    cluster.clock.advance(60.0)
    assert (readable(cluster), tables_missing(cluster)) == ([b"42"], [])


class Table(TxStatusQuerier):
    """A querier over a table whose database is away until ``back`` is set."""

    def __init__(self, *, hangs: bool = False, state: TransactionState = TransactionState.UNKNOWN) -> None:
        self.back, self.asked, self._hangs, self._state = threading.Event(), 0, hangs, state

    def learn_fence(self) -> bytes:
        self.asked += 1
        if self._hangs:
            self.back.wait(30.0)
        elif not self.back.is_set():
            raise sqlite3.OperationalError("no connection")
        self.fence = A
        return A

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        return self._state


def open_fences(cluster: InMemoryCluster) -> list[str]:
    return [entry.fence for entry in cluster.admin.list_transactions(app="shop")]


def test_while_the_database_does_not_tell_the_name_nothing_is_prepared(cluster: InMemoryCluster) -> None:
    table = Table()
    producer = cluster.producer(app="shop", tx_status_querier=table)
    refused = pytest.raises(sqlite3.OperationalError, match="no connection")
    with refused, producer.transaction() as tx:
        tx.send(Message("orders", b"1"))
        tx.prepare()
    with refused:
        producer.send_message_in_transaction(Message("orders", b"2"), lambda tx: TransactionState.COMMITTED)
    with refused:
        producer.send_transactions([Message("orders", b"3")], lambda every: TransactionState.COMMITTED)
    with pytest.raises(OutcomeUnknown, match="of-mine"), producer.transaction(tx_id="of-mine") as tx:
        tx.send(Message("orders", b"4"))
        tx.prepare()

    async def run() -> None:
        with refused:
            async with producer.aio.transaction() as tx:
                await tx.send(Message("orders", b"5"))
                await tx.prepare()
        with pytest.raises(OutcomeUnknown, match="of-mine"):
            async with producer.aio.transaction(tx_id="of-mine") as tx:
                await tx.send(Message("orders", b"4"))
                await tx.prepare()

    asyncio.run(run())
    assert open_fences(cluster) == []
    # What no check is asked about needs no name: plain messages, and transactions without a local one.
    producer.send(Message("orders", b"plain")).result(10.0)
    producer.send_transactions([Message("orders", b"alone")])
    table.back.set()
    with producer.transaction(tx_id="of-mine") as tx:
        tx.send(Message("orders", b"4"))
        tx.prepare()
        assert open_fences(cluster) == [A.hex()]
    assert sorted(readable(cluster)) == [b"4", b"alone", b"plain"]


def test_a_database_that_hangs_makes_a_transaction_wait_for_a_bounded_time(cluster: InMemoryCluster) -> None:
    # The answering side of a cluster in memory asks in the caller's thread, so it gets another querier.
    producer = cluster.producer(app="shop", tx_status_querier=(known := Table()))
    table = Table(hangs=True)
    producer.core.fenced_by(table.learn_fence)
    naming = producer.core.fence_name
    assert naming is not None
    naming.wait_s = 0.05
    with pytest.raises(Unavailable, match="Nothing was prepared"), producer.transaction() as tx:
        tx.send(Message("orders", b"1"))
        tx.prepare()

    async def run() -> None:
        with pytest.raises(Unavailable, match="Nothing was prepared"):
            async with producer.aio.transaction() as tx:
                await tx.send(Message("orders", b"1"))
                await tx.prepare()

    asyncio.run(run())
    assert (open_fences(cluster), table.asked) == ([], 1), "all who wait share one attempt"
    table.back.set()
    known.back.set()
    naming.wait_s = 10.0
    with producer.transaction() as tx:
        tx.send(Message("orders", b"1"))
        tx.prepare()
        assert open_fences(cluster) == [A.hex()]
    assert readable(cluster) == [b"1"]


def test_who_learns_its_name_late_is_asked_about_what_its_predecessor_left(cluster: InMemoryCluster) -> None:
    gone = Table()
    gone.back.set()
    producer = cluster.producer(app="shop", tx_status_querier=gone)
    tx = producer.transaction()
    tx.send(Message("orders", b"42"))
    tx.prepare()
    producer.close()
    late = Table(state=TransactionState.COMMITTED)
    cluster.producer(app="shop", tx_status_querier=late)
    cluster.clock.advance(120.0)
    assert readable(cluster) == []
    late.back.set()
    cluster.clock.advance(75.0)  # the pauses of learning and of the check are 30 s each
    assert readable(cluster) == [b"42"]


def test_operators_are_told_which_table_is_missing(
    cluster: InMemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tx_id = open_order(cluster, tmp_path / "a.db")
    cluster.producer(app="shop", tx_status_querier=fence_of(tmp_path / "b.db"))
    cluster.clock.advance(LONG_S)
    again = fence_of(tmp_path / "a.db")
    missing = f"shop {short_name(again.learn_identity()).hex()}"
    assert tables_missing(cluster) == [missing]
    transactions._show(Format.table, cluster.admin.show_transaction(tx_id, "shop"))
    assert "only producers whose fence has the table" in " ".join(capsys.readouterr().out.split())
    cluster.producer(app="shop", tx_status_querier=again)
    assert tables_missing(cluster) == []


def tables_missing(cluster: InMemoryCluster) -> list[str]:
    reports = [process.report for process in cluster.admin.status().feedback or ()]
    return [name for report in reports if report is not None for name in report.tables_missing]


# ---------------------------------------------------------------- feedback's choice


def handed(table: CheckTable, now: float) -> dict[str, list[str]]:
    return {name: [check.row.tx_id for check in checks] for name, checks in table.assign(now).items()}


def arrive(table: CheckTable, instance: str, fence: bytes, now: float = 0.0) -> None:
    seat = table.arrive(instance, 10, (), now, fence)
    assert seat is not None
    seat.parked = True


def row(tx_id: str, fence: bytes = b"") -> LockedRow:
    return LockedRow(tx_id, "q", 0, 0, fence=fence)


def test_a_check_goes_to_a_producer_that_has_its_table_and_one_without_to_anyone() -> None:
    table = CheckTable(FeedbackConfig())
    arrive(table, "has-a", A)
    arrive(table, "has-b", B)
    table.locked(0, [row("of-a", A), row("of-b", B), row("of-a-2", A)], 0.0)
    assert handed(table, 0.0) == {"has-a": ["of-a", "of-a-2"], "has-b": ["of-b"]}
    lone = CheckTable(FeedbackConfig())
    arrive(lone, "has-b", B)
    lone.locked(0, [row("of-none")], 0.0)
    assert handed(lone, 0.0) == {"has-b": ["of-none"]}


def test_a_check_whose_table_nobody_has_is_put_off_and_not_counted() -> None:
    table = CheckTable(FeedbackConfig())
    arrive(table, "has-b", B)
    arrive(table, "has-none", b"")
    table.locked(0, [row("of-a", A)], 0.0)
    assert handed(table, 0.0) == {}
    assert table.strange == ("of-a", A)
    assert [key for key, _ in table.take_put_off()] == [(0, "of-a")]


def test_trouble_at_the_only_one_that_has_the_table_leads_to_no_other() -> None:
    table = CheckTable(FeedbackConfig())
    arrive(table, "has-a", A)
    arrive(table, "has-b", B)
    table.locked(0, [row("of-a", A)], 0.0)
    assert handed(table, 0.0) == {"has-a": ["of-a"]}
    table.answer("has-a", (0, "of-a"), TransactionState.UNKNOWN, Trouble.RAISED, 0, 1.0)
    assert handed(table, 1.0) == {}


def test_a_name_that_is_learned_while_a_poll_is_parked_is_announced_at_once() -> None:
    polls: asyncio.Queue[bytes] = asyncio.Queue()

    class Port:
        async def poll(
            self, instance: str, room: int, working: Any, wait_s: float, fence: bytes
        ) -> tuple[str, Any]:
            polls.put_nowait(fence)
            await asyncio.sleep(wait_s)
            return "ok", []

        async def answer(self, instance: str, answers: Any) -> tuple[str, Any]:
            return "ok", []

        async def leave(self, instance: str, idle: bool = False) -> None: ...

    async def run() -> None:
        table, config, learned = Table(), AnswererConfig(), asyncio.Event()
        pool = QueryPool(table, config)

        async def connect(number: int) -> Port:
            return Port()

        async def learn() -> None:
            await learned.wait()
            table.back.set()
            table.learn_fence()

        async def count() -> int:
            return 1

        respondent = Respondent("one", connect, pool, lambda _: False, config, random.Random(1), learn=learn)
        answering = asyncio.create_task(Answering("shop", count, respondent).run())
        assert await polls.get() == b""
        learned.set()
        async with asyncio.timeout(5.0):  # a poll is parked for ten seconds
            assert await polls.get() == A
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        pool.close()

    asyncio.run(run())


def test_a_check_that_was_refused_is_asked_elsewhere_or_put_off_and_never_counted() -> None:
    table = CheckTable(FeedbackConfig())
    arrive(table, "one", A)
    arrive(table, "two", A)
    arrive(table, "other", B)
    table.locked(0, [row("of-a", A)._replace(age_ms=20_000)], 0.0)
    for _ in range(2):
        [(name, _)] = handed(table, 0.0).items()
        assert name != "other"
        refused = TransactionState.UNKNOWN, Trouble.ELSEWHERE, 0
        assert table.answer(name, (0, "of-a"), *refused, 0.0) is None
    assert table.take_put_off() == [((0, "of-a"), 10.0)], "half of its age, and not at once"
    assert len(table) == 0


def test_a_producer_that_is_asked_about_another_table_says_unknown_and_logs_both_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Querier(TxStatusQuerier):
        fence = B

        def query_status(self, tx_id: str, query_id: str) -> TransactionState:
            return TransactionState.ROLLBACK

    async def nowhere(number: int) -> Any:
        raise AssertionError(number)

    config, checks = AnswererConfig(), [((0, "orders"), f"of-a-{n}", 5) for n in range(3)]
    pool = QueryPool(Querier(), config)

    async def asked() -> ShardLink:
        link = ShardLink(0, Respondent("one", nowhere, pool, lambda _: False, config, random.Random(1)))
        for check in checks:
            link._take(check, "q", 30.0, A)
        return link

    with caplog.at_level(logging.WARNING):
        link = asyncio.run(asked())
    assert link._answers == dict.fromkeys(checks, (TransactionState.UNKNOWN, Trouble.ELSEWHERE))
    assert A.hex() in caplog.text and B.hex() in caplog.text
    assert len(caplog.records) == 1
    pool.close()


@pytest.mark.parametrize("seed", range(6))
def test_drawn_tenants(cluster: InMemoryCluster, tmp_path: Path, seed: int) -> None:
    """One app, a database and a producer for each tenant: lost commits, deaths, repetitions in the right
    database and in the wrong one. Rows and messages agree in each."""
    rng = random.Random(seed)
    names = ("a", "b")
    paths = {name: tmp_path / f"{name}.db" for name in names}
    fences = {name: fence_of(path) for name, path in paths.items()}
    producers = {name: cluster.producer(app="shop", tx_status_querier=fences[name]) for name in names}
    for _ in range(24):
        tenant = rng.choice(names)
        other = names[1 - names.index(tenant)]
        tx_id = f"{tenant}-{rng.randrange(8)}"
        fence = fences[other if rng.random() < 0.25 else tenant]
        if rng.random() < 0.3:
            cluster.fail_next("commit", OutcomeUnknown)
        with contextlib.suppress(OutcomeUnknown, WrongDatabase, TransactionSettled, ZeroDivisionError):
            message = Message("orders", tx_id.encode())
            with fence.transaction(producers[tenant], message, tx_id=tx_id) as (_, db):
                db.execute("insert into orders values (?)", (tx_id,))
                if rng.random() < 0.2:
                    raise ZeroDivisionError
        if rng.random() < 0.2:
            producers[tenant].close()
            cluster.clock.advance(rng.choice((1.0, 30.0)))
            producers[tenant] = cluster.producer(app="shop", tx_status_querier=fences[tenant])
    cluster.clock.advance(300.0)
    rows = list[str]()
    for name, path in paths.items():
        with sqlite3.connect(path) as db:
            found = [str(row[0]) for row in db.execute("select id from orders")]
        assert all(each.startswith(name) for each in found)
        rows += found
    assert sorted(rows) == sorted(value.decode() for value in readable(cluster))
    assert rows
