"""The fence on asynchronous engines: aiosqlite, psycopg and asyncmy, checks from threads without an event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import registry

from escrowmq import Message, OutcomeUnknown, TransactionState
from escrowmq.integrations import (
    AlreadyDone,
    AsyncFence,
    DatabaseMisused,
    Fence,
    FenceLost,
    Outbox,
    WrongDatabase,
)
from tests.support.outboxes import drop
from tests.support.shops import DRIVERS, Shop, Tx

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def on(shop: Shop, story: Callable[[AsyncFence, AsyncEngine], Awaitable[None]]) -> None:
    """Runs a story on an asynchronous engine over the shop's database."""

    async def run() -> None:
        engine = create_async_engine(shop.url(DRIVERS[shop.kind]))
        try:
            fence = AsyncFence(engine, app="shop", table=shop.table, lock_timeout_s=0.3)
            await fence.create_table()
            await story(fence, engine)
        finally:
            await engine.dispose()

    asyncio.run(run())


def test_both_orders_and_a_check_while_it_runs(shop: Shop) -> None:
    async def story(fence: AsyncFence, engine: AsyncEngine) -> None:
        async def check(tx_id: str) -> TransactionState:
            return await asyncio.to_thread(fence.query_status, tx_id, "")

        async with fence.local(Tx("1")) as db:
            await db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
            assert await check("1") is UNKNOWN
        assert await check("1") is COMMITTED
        with pytest.raises(AlreadyDone):
            async with fence.local(Tx("1")):
                raise AssertionError("not reached")
        assert await check("2") is ROLLBACK
        async with engine.connect() as connection:
            with pytest.raises(FenceLost):
                await fence.enter(connection, Tx("2"))
        with pytest.raises(ZeroDivisionError):
            async with fence.local(Tx("3")):
                _ = 1 / 0
        said = await asyncio.to_thread(fence.query_statuses, [("1", ""), ("3", "")])
        assert list(said) == [COMMITTED, ROLLBACK]

    on(shop, story)
    assert shop.stored() == {"1"}
    assert shop.fence.query_status("1", "") is COMMITTED, "the same rows as those of the blocking fence"


def test_sessions_cancelled_tasks_and_blocks_that_end_themselves(shop: Shop) -> None:
    async def story(_: AsyncFence, engine: AsyncEngine) -> None:
        fence = AsyncFence(async_sessionmaker(engine), app="shop", table=shop.table, lock_timeout_s=0.3)

        async def slow() -> None:
            async with fence.local(Tx("cancelled")) as db:
                assert isinstance(db, AsyncSession)
                await asyncio.sleep(60)

        task = asyncio.create_task(slow())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OutcomeUnknown):
            async with fence.local(Tx("inside")) as db:
                await db.commit()
        async with AsyncSession(engine) as session:
            await fence.enter(session, Tx("by hand"))
            await fence.commit(session, Tx("by hand"))
        asked = [(name, "") for name in ("cancelled", "inside", "by hand")]
        said = await asyncio.to_thread(fence.query_statuses, asked)
        assert list(said) == [ROLLBACK, COMMITTED, COMMITTED]

    on(shop, story)


def test_checks_know_the_table_from_the_first_one_on(shop: Shop) -> None:
    """A process that only answers checks has learned the name over a connection of its own."""

    async def story(_: AsyncFence, engine: AsyncEngine) -> None:
        fence = AsyncFence(engine, app="shop", table=shop.table)
        assert await asyncio.to_thread(fence.query_status, "1", "") is ROLLBACK
        async with engine.begin() as db:
            named = sa.text(f"update {shop.table} set tx_id = :name where outcome = 3")
            await db.execute(named, {"name": b"f" * 32})
        with pytest.raises(WrongDatabase):
            await asyncio.to_thread(fence.query_status, "2", "")

    on(shop, story)


def test_the_failure_of_a_repetition_rolls_back_only_if_the_row_says_so(shop: Shop) -> None:
    """An id of the application's own: an earlier attempt may have committed, or may still run."""

    def refused(*_: object) -> None:
        raise ConnectionRefusedError

    async def story(fence: AsyncFence, engine: AsyncEngine) -> None:
        async def repeated(tx_id: str, reason: type[Exception]) -> None:
            with pytest.raises(reason):
                async with again.local(Tx(tx_id, given_id=True)):
                    raise AssertionError("not reached")

        url = engine.url
        broken = create_async_engine(url)
        sa.event.listen(broken.sync_engine, "do_connect", refused)
        again = AsyncFence(
            broken, app="shop", table=shop.table, lock_timeout_s=0.3, checks=lambda: create_async_engine(url)
        )
        async with fence.local(Tx("1")):
            pass
        await repeated("1", AlreadyDone)
        async with fence.local(Tx("2")):
            await repeated("2", OutcomeUnknown)
        await repeated("3", ConnectionRefusedError)
        with pytest.raises(FenceLost):
            async with fence.local(Tx("3")):
                raise AssertionError("not reached")

    on(shop, story)


def test_a_flush_that_fails_comes_out_as_it_is(shop: Shop) -> None:
    class Order:
        def __init__(self, name: str) -> None:
            self.id = name

    table = sa.Table(shop.orders, sa.MetaData(), sa.Column("id", sa.String(100), primary_key=True))
    registry().map_imperatively(Order, table)

    async def story(_: AsyncFence, engine: AsyncEngine) -> None:
        fence = AsyncFence(async_sessionmaker(engine), app="shop", table=shop.table, lock_timeout_s=0.3)
        async with fence.local(Tx("1")) as db:
            db.add(Order("the same"))
        with pytest.raises(sa.exc.IntegrityError):
            async with fence.local(Tx("2")) as db:
                db.add(Order("the same"))
                await db.flush()  # the session has rolled back by itself when this raises
        said = await asyncio.to_thread(fence.query_statuses, [("1", ""), ("2", "")])
        assert list(said) == [COMMITTED, ROLLBACK]

    on(shop, story)
    assert shop.stored() == {"the same"}


def test_an_outbox_takes_rows_in_asynchronous_transactions(shop: Shop) -> None:
    """Its relay has a blocking engine; the rows come through ``run_sync``, and a commit wakes the relay."""
    outbox = Outbox(shop.engine, table=f"outbox_{shop.table}")
    outbox.create_table()
    woken: list[int] = []
    outbox.tell(lambda: woken.append(1))

    async def story(_: AsyncFence, engine: AsyncEngine) -> None:
        async with async_sessionmaker(engine)() as session:
            await session.execute(sa.text(f"insert into {shop.orders} values ('1')"))
            await session.run_sync(outbox.send, Message("t", b"1"), Message("t", b"2"))
            await session.commit()
            await session.run_sync(outbox.send, Message("t", b"never"))
            await session.rollback()
        async with engine.begin() as connection:
            await connection.run_sync(outbox.send, Message("t", b"3"))
        with pytest.raises(DatabaseMisused, match=r"run_sync\(outbox\.send"):
            outbox.send(session, Message("t", b"never"))
        with pytest.raises(DatabaseMisused, match=r"blocking engine.*run_sync\(outbox\.send"):
            Outbox(engine)

    on(shop, story)
    assert [row.message.value for row in outbox.rows()] == [b"1", b"2", b"3"]
    assert woken == [1, 1] and shop.stored() == {"1"}
    drop(shop)


def test_what_is_blocking_is_refused(shop: Shop) -> None:
    with pytest.raises(DatabaseMisused, match="Fence"):
        AsyncFence(shop.engine, app="shop")  # type: ignore[arg-type]

    async def story(fence: AsyncFence, engine: AsyncEngine) -> None:
        for wrong in (shop.engine, engine, None):
            with pytest.raises(DatabaseMisused, match="AsyncConnection"):
                await fence.enter(wrong, Tx("1"))
        async with engine.connect() as connection:
            blocking = Fence(shop.engine, app="shop", table=shop.table)
            with pytest.raises(DatabaseMisused, match="AsyncFence"):
                blocking.enter(connection, Tx("1"))

    on(shop, story)
