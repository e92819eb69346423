"""A fence between real producers and a real database: what becomes of the messages, whichever side comes
first."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine

from escrowmq.integrations import AlreadyDone, AsyncFence, DatabaseMisused, Fence, FenceLost
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ROLLBACK, ProducerOf, open_transactions, values
from tests.support.shops import Tx


class AnswerLost(sqlite3.Connection):
    """Its commit takes place, but the answer does not arrive."""

    def commit(self) -> None:
        super().commit()
        raise sqlite3.OperationalError("the connection was lost")


@pytest.fixture
def connect(tmp_path: Path) -> Callable[..., sqlite3.Connection]:
    def opened(kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db", timeout=10, factory=kind)

    connection = opened()
    connection.execute("create table orders (id text primary key)")
    connection.close()
    return opened


@pytest.fixture
def ways(connect: Callable[..., sqlite3.Connection]) -> list[Callable[[], sqlite3.Connection]]:
    """The fence opens its connections by the last one."""
    return [connect]


@pytest.fixture
def fence(ways: list[Callable[[], sqlite3.Connection]]) -> Fence:
    made = Fence(lambda: ways[-1](), app="shop")
    made.create_table()
    return made


def stored(connect: Callable[..., sqlite3.Connection]) -> list[str]:
    connection = connect()
    found = [order for (order,) in connection.execute("select id from orders order by id")]
    connection.close()
    return found


def test_both_or_neither(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any
) -> None:
    producer = producer_of(brokers)
    with fence.transaction(producer, Message(topic, b"a"), query_id="42") as (tx, db):
        db.execute("insert into orders values ('a')")
        assert values(brokers, topic) == [] and tx.query_id == "42"
    with pytest.raises(ZeroDivisionError), fence.transaction(producer, [Message(topic, b"b")]) as (_, db):
        db.execute("insert into orders values ('b')")
        _ = 1 / 0
    assert values(brokers, topic) == [b"a"] and stored(connect) == ["a"]
    assert open_transactions(brokers, topic) == []


def test_a_check_that_was_first_keeps_both_out(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any
) -> None:
    assert fence.query_status("lost", "") is ROLLBACK
    with (
        pytest.raises(FenceLost),
        fence.transaction(producer_of(brokers), Message(topic, b"a"), tx_id="lost"),
    ):
        raise AssertionError("the block must not run")
    assert values(brokers, topic) == [] and stored(connect) == [] and open_transactions(brokers, topic) == []


def test_a_local_transaction_that_committed_before_brings_its_messages(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any
) -> None:
    with fence.local(Tx("done")) as db:  # the first attempt, whose process died before it could say COMMIT
        db.execute("insert into orders values ('a')")
    with (
        pytest.raises(AlreadyDone),
        fence.transaction(producer_of(brokers), Message(topic, b"a"), tx_id="done"),
    ):
        raise AssertionError("the block must not run twice")
    assert (
        values(brokers, topic) == [b"a"]
        and stored(connect) == ["a"]
        and open_transactions(brokers, topic) == []
    )


def test_a_commit_whose_answer_is_lost_is_left_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any, ways: Any
) -> None:
    ways.append(lambda: connect(AnswerLost))
    with (
        pytest.raises(OutcomeUnknown),
        fence.transaction(producer_of(brokers), Message(topic, b"a"), tx_id="unknown") as (_, db),
    ):
        db.execute("insert into orders values ('a')")
    ways.pop()
    assert len(open_transactions(brokers, topic)) == 1 and values(brokers, topic) == []
    assert fence.query_status("unknown", "") is COMMITTED and stored(connect) == ["a"]


def test_one_that_the_broker_has_as_committed_is_already_done(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any, tmp_path: Path
) -> None:
    producer = producer_of(brokers)
    with fence.transaction(producer, Message(topic, b"a"), tx_id="again") as (_, db):
        db.execute("insert into orders values ('a')")
    with pytest.raises(AlreadyDone), fence.transaction(producer, Message(topic, b"a"), tx_id="again"):
        raise AssertionError("the block must not run twice")

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        ours = AsyncFence(engine, app="shop")
        with pytest.raises(AlreadyDone):
            async with ours.transaction(producer.aio, Message(topic, b"a"), tx_id="again"):
                raise AssertionError("the block must not run twice")
        await engine.dispose()

    asyncio.run(asyncio.wait_for(main(), 60.0))
    assert values(brokers, topic) == [b"a"] and stored(connect) == ["a"]


def test_a_failed_second_try_leaves_the_messages_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, ways: Any
) -> None:
    """The first one's process died after the database's commit; the second one cannot reach the database."""
    with fence.local(Tx("twice")) as db:
        db.execute("insert into orders values ('a')")

    def away() -> None:
        raise sqlite3.OperationalError("the connection was lost")

    ways.append(away)
    with (
        pytest.raises(OutcomeUnknown),
        fence.transaction(producer_of(brokers), Message(topic, b"a"), tx_id="twice"),
    ):
        raise AssertionError("not reached")
    ways.pop()
    assert len(open_transactions(brokers, topic)) == 1 and fence.query_status("twice", "") is COMMITTED


def test_a_second_try_on_a_standby_leaves_the_messages_to_the_check(
    brokers: Brokers,
    topic: str,
    producer_of: ProducerOf,
    fence: Fence,
    connect: Any,
    ways: Any,
    tmp_path: Path,
) -> None:
    """A mistake in the set-up says nothing about the first try: a restarted process may meet it alone."""
    for tx_id in ("standby", "async-standby"):
        with fence.local(Tx(tx_id)) as db:
            db.execute(f"insert into orders values ('{tx_id}')")
    producer = producer_of(brokers)

    def standby() -> sqlite3.Connection:
        connection: sqlite3.Connection = connect()
        connection.execute("pragma query_only = 1")
        return connection

    ways.append(standby)
    with pytest.raises(OutcomeUnknown), fence.transaction(producer, Message(topic, b"a"), tx_id="standby"):
        raise AssertionError("not reached")
    ways.pop()
    assert len(open_transactions(brokers, topic)) == 1 and fence.query_status("standby", "") is COMMITTED

    async def main() -> None:
        url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
        engine = create_async_engine(url)

        @event.listens_for(engine.sync_engine, "connect")
        def _standby(dbapi: Any, _: object) -> None:
            dbapi.execute("pragma query_only = 1")

        # Its checks have an engine of their own, which leads to the primary. (Without one they would connect
        # as the application does: to the standby.)
        ours = AsyncFence(engine, app="shop", checks=lambda: create_async_engine(url))
        with pytest.raises(AlreadyDone):
            async with ours.transaction(producer.aio, Message(topic, b"b"), tx_id="async-standby"):
                raise AssertionError("not reached")
        await engine.dispose()

    asyncio.run(asyncio.wait_for(main(), 60.0))
    assert values(brokers, topic) == [b"b"]


def test_a_transaction_that_is_not_prepared_keeps_its_id(fence: Fence, tmp_path: Path) -> None:
    """Nothing has happened under it, so nothing has to be asked."""
    with pytest.raises(DatabaseMisused, match="not prepared"), fence.local(Tx("early", False, True)):
        raise AssertionError("not reached")

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        with pytest.raises(DatabaseMisused, match="not prepared"):
            async with AsyncFence(engine, app="shop").local(Tx("early", False, True)):
                raise AssertionError("not reached")
        await engine.dispose()

    asyncio.run(asyncio.wait_for(main(), 60.0))
    with fence.local(Tx("early")):
        pass


def test_a_failed_try_with_an_id_of_ones_own_keeps_later_ones_out(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        fence.transaction(producer_of(brokers), Message(topic, b"a"), tx_id="failed"),
    ):
        _ = 1 / 0
    db = connect()
    with pytest.raises(FenceLost):  # another process that runs it at the same time
        fence.enter(db, Tx("failed"))
    db.close()
    assert values(brokers, topic) == [] and open_transactions(brokers, topic) == []


def test_many_transactions_in_one_of_the_database(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any
) -> None:
    def store(prepared: list[Any]) -> None:
        db = connect()
        fence.enter(db, *prepared)
        db.executemany("insert into orders values (?)", [(f"{tx.index}",) for tx in prepared])
        fence.commit(db, prepared[0])
        db.close()

    results = producer_of(brokers).send_transactions([Message(topic, b"%d" % n) for n in range(5)], store)
    asked = [(result.tx_id, "") for result in results]
    assert set(fence.query_statuses(asked)) == {COMMITTED}
    assert len(values(brokers, topic)) == len(stored(connect)) == 5


def test_another_app_and_the_wrong_face(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence
) -> None:
    with (
        pytest.raises(DatabaseMisused, match="app 'shop', the producer for 'other'"),
        fence.transaction(producer_of(brokers, app="other"), Message(topic, b"a")),
    ):
        raise AssertionError("not reached")


def test_asyncio(
    brokers: Brokers, topic: str, producer_of: ProducerOf, fence: Fence, connect: Any, tmp_path: Path
) -> None:
    producer = producer_of(brokers)

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        ours = AsyncFence(engine, app="shop")
        async with ours.transaction(producer.aio, Message(topic, b"a")) as (_, db):
            await db.execute(text("insert into orders values ('a')"))
        with pytest.raises(ZeroDivisionError):
            async with ours.transaction(producer.aio, Message(topic, b"b")):
                _ = 1 / 0
        await asyncio.to_thread(ours.query_status, "async-lost", "")
        with pytest.raises(FenceLost):
            async with ours.transaction(producer.aio, Message(topic, b"c"), tx_id="async-lost"):
                raise AssertionError("the block must not run")
        async with ours.local(Tx("async-done")):
            pass
        with pytest.raises(AlreadyDone):
            async with ours.transaction(producer.aio, Message(topic, b"d"), tx_id="async-done"):
                raise AssertionError("the block must not run")
        with pytest.raises(DatabaseMisused, match=r"producer\.aio"):
            async with ours.transaction(producer, Message(topic, b"e")):
                raise AssertionError("not reached")
        await engine.dispose()

    asyncio.run(asyncio.wait_for(main(), 60.0))
    assert values(brokers, topic) == [b"a", b"d"] and stored(connect) == ["a"]
