"""The database rolls the whole transaction back at a statement (MariaDB: a deadlock; SQLite: INSERT OR
ROLLBACK, a full disk), and the block catches the error and goes on, in another transaction, without the
fence's row or the inbox's and without its first half. Neither the second half nor messages may be committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from django.db import connections
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from escrowmq import TransactionState
from escrowmq.integrations import AsyncFence, AsyncInbox, DjangoDatabase, Fence, Inbox, NoDatabaseTransaction
from tests.support.database_servers import Server
from tests.support.django_shop import django_database
from tests.support.inboxes import record
from tests.support.shops import DRIVERS, Shop, Tx, closing_shops

KINDS = ["sqlite", "mariadb"]
refused = pytest.raises(NoDatabaseTransaction, match=r"not in this transaction any more.*run the business")


def execute(db: Any, sql: str) -> None:
    if hasattr(db, "execute"):
        db.execute(sa.text(sql) if isinstance(db, sa.Connection) else sql)
        return
    with db.cursor() as cursor:
        cursor.execute(sql)


def business(kind: str, orders: str, db: Any) -> None:
    """Two orders, and between them a rollback of the database's own. In MariaDB one that is asked for: for
    the driver it is the same as that of a deadlock."""
    execute(db, f"insert into {orders} values ('1')")
    with contextlib.suppress(Exception):
        execute(db, "rollback" if kind == "mariadb" else f"insert or rollback into {orders} values ('1')")
    execute(db, f"insert into {orders} values ('2')")


@pytest.fixture(params=["plain", "sqlalchemy"])
def shop(
    request: pytest.FixtureRequest, kind: str, server_of: Callable[[str], Server | None], tmp_path: Path
) -> Iterator[Shop]:
    with closing_shops(server_of(kind), tmp_path, request.param == "plain") as make:
        yield make()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_fence_commits_nothing(shop: Shop) -> None:
    with refused, shop.fence.local(Tx("1")) as db:
        business(shop.kind, shop.orders, db)
    local = shop.begin().enter("2")
    business(shop.kind, shop.orders, local.connection)
    with refused:
        shop.fence.commit(local.connection, Tx("2"))
    assert shop.fence.query_status("1", "") is shop.fence.query_status("2", "") is TransactionState.ROLLBACK
    assert shop.stored() == set()


def test_a_row_of_another_attempt_is_not_its_own(shop: Shop) -> None:
    """The row is there again: it says that the other attempt has committed, and not this one."""
    seconds = iter(range(100))
    fence = shop.make_fence(clock=lambda: float(next(seconds)))
    with refused, fence.local(Tx("1")) as db:
        execute(db, "rollback")
        with fence.local(Tx("1")) as other:
            execute(other, f"insert into {shop.orders} values ('other')")
        business(shop.kind, shop.orders, db)
    assert shop.stored() == {"other"}


def test_the_inbox_settles_nothing(shop: Shop) -> None:
    inbox = Inbox(shop.connect if shop.plain else shop.engine, group="g", table=f"i_{shop.table}")
    inbox.create_table()
    with refused:
        inbox.handler(lambda _, db: business(shop.kind, shop.orders, db))(record(1))
    local = shop.begin()
    with refused, inbox.once(local.connection, record(1)):
        business(shop.kind, shop.orders, local.connection)
    local.connection.rollback()
    with refused, inbox.once(local.connection, record(1)):
        execute(local.connection, "rollback")  # and nothing after it: a driver knows of no transaction then
    local.rollback()
    inbox.handler(lambda _, db: execute(db, f"insert into {shop.orders} values ('1')"))(record(1))
    assert shop.stored() == {"1"}


def again(execute: Callable[[str], None], rollback: Callable[[], None], orders: str, goes_on: bool) -> None:
    """A loop of the application's own around a deadlock."""
    execute(f"insert into {orders} values ('1')")
    rollback()
    if goes_on:
        execute(f"insert into {orders} values ('2')")


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_handler_that_calls_rollback(tmp_path: Path, goes_on: bool) -> None:
    """SQLAlchemy has another transaction then, or none, and a session another connection."""

    def work(_: Any, db: Any) -> None:
        again(lambda sql: db.execute(sa.text(sql)), db.rollback, shop.orders, goes_on)

    async def work_async(_: Any, db: Any) -> None:
        await db.run_sync(lambda core: work(None, core))

    with closing_shops(None, tmp_path, False) as make:
        shop = make()
        names: dict[str, Any] = {"group": "g", "table": f"i_{shop.table}"}
        sessions = sessionmaker(shop.engine)
        Inbox(shop.engine, **names).create_table()
        for given in (shop.engine, sessions):
            inbox = Inbox(given, **names)
            with refused:
                inbox.handler(work)(record(1))
            opening: Any = shop.engine.connect if given is shop.engine else sessions
            with opening() as db, refused, inbox.once(db, record(1)):
                work(None, db)
            with opening() as db, refused, db.begin(), inbox.once(db, record(1)):
                db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
                db.rollback()

        async def main() -> None:
            engine = create_async_engine(shop.url(DRIVERS["sqlite"]))
            for made in (engine, async_sessionmaker(engine)):
                inbox = AsyncInbox(made, **names)
                with refused:
                    await inbox.handler(work_async)(record(1))
                async with made.connect() if made is engine else made() as db:
                    with refused:
                        async with inbox.once(db, record(1)):
                            await work_async(None, db)
            await engine.dispose()

        asyncio.run(main())
        assert shop.stored() == set()
        with sessions() as db, inbox.once(db, record(1)) as first:
            db.execute(sa.text(f"insert into {shop.orders} values ('3')"))
            db.commit()  # its own affair: the row is committed, too
        assert first
        assert shop.stored() == {"3"}


@pytest.mark.parametrize("plain", [True, False])
def test_a_handler_that_fails_after_a_statement_that_commits(
    server_of: Callable[[str], Server | None], tmp_path: Path, plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """MariaDB's. Its inbox's row would stay, and the next delivery would be settled without the handler."""
    calls: list[int] = []

    def work(_: Any, db: Any) -> None:
        calls.append(1)
        execute(db, f"create table if not exists c_{shop.orders} (id int)")
        execute(db, f"insert into {shop.orders} values ('{len(calls)}')")
        if len(calls) % 2:
            raise ValueError("a later step")

    with closing_shops(server_of("mariadb"), tmp_path, plain) as make:
        shop = make()
        inbox = Inbox(shop.connect if plain else shop.engine, group="g", table=f"i_{shop.table}")
        inbox.create_table()
        with pytest.raises(ValueError, match="later"):
            inbox.handler(work)(record(1))
        inbox.handler(work)(record(1))
        for fails in (True, False):
            local = shop.begin()
            with contextlib.suppress(ValueError), inbox.once(local.connection, record(2)) as first:
                work(None, local.connection)
            assert first
            local.rollback() if fails else local.commit()
        assert len(calls) == 4
        assert shop.stored() == {"2", "4"}
        assert caplog.text.count("after a statement that commits") == 2
        with shop.engine.begin() as db:
            db.execute(sa.text(f"drop table c_{shop.orders}"))


def test_asynchronous_ones(kind: str, server_of: Callable[[str], Server | None], tmp_path: Path) -> None:
    async def main(shop: Shop) -> None:
        engine = create_async_engine(shop.url(DRIVERS[kind]))
        fence = AsyncFence(engine, app="shop", table=shop.table)
        inbox = AsyncInbox(engine, group="g", table=f"i_{shop.table}")
        await inbox.create_table()

        async def work(_: Any, db: Any) -> None:
            await db.run_sync(lambda core: business(kind, shop.orders, core))

        with refused:
            async with fence.local(Tx("1")) as db:
                await work(None, db)
        with refused:
            await inbox.handler(work)(record(1))
        await engine.dispose()

    with closing_shops(server_of(kind), tmp_path, False) as make:
        asyncio.run(main(shop := make()))
        assert shop.stored() == set()


def test_django(kind: str, server_of: Callable[[str], Server | None], tmp_path: Path) -> None:
    with django_database(server_of(kind), tmp_path, "undone", "undone_in") as alias:
        fence = Fence(DjangoDatabase(alias), app="shop", table="undone")
        inbox = Inbox(DjangoDatabase(alias), group="g", table="undone_in")
        fence.create_table()
        inbox.create_table()

        def stored() -> list[str]:
            with connections[alias].cursor() as cursor:
                cursor.execute("select id from django_orders")
                found = [id for (id,) in cursor.fetchall()]
                cursor.execute("delete from django_orders")
            return found

        # Django's SQLite is in autocommit after such a rollback: nobody can take back what follows.
        stays = ["2"] if kind == "sqlite" else []
        with refused, fence.local(Tx("1")) as db:
            business(kind, "django_orders", db)
        assert stored() == stays
        assert fence.query_status("1", "") is TransactionState.ROLLBACK
        with refused:
            inbox.handler(lambda _, db: business(kind, "django_orders", db))(record(1))
        assert stored() == stays


def test_a_deadlock_of_mariadb(server_of: Callable[[str], Server | None], tmp_path: Path) -> None:
    with closing_shops(server_of("mariadb"), tmp_path, False) as make:
        shop = make()

        def lock(db: Any, id: str) -> None:
            execute(db, f"select * from {shop.orders} where id = '{id}' for update")

        with shop.engine.begin() as db:
            execute(db, f"insert into {shop.orders} values ('a'), ('b')")
        with shop.engine.connect() as other, refused, shop.fence.local(Tx("1")) as db:
            execute(db, f"insert into {shop.orders} values ('first')")
            lock(db, "a")
            for number in range(50):  # it has more to undo, so the server chooses the fence's transaction
                execute(other, f"insert into {shop.orders} values ('x{number}')")
            lock(other, "b")
            waits = threading.Thread(target=lock, args=(other, "a"), daemon=True)
            waits.start()
            time.sleep(0.5)
            with pytest.raises(sa.exc.OperationalError, match="1213"):
                lock(db, "b")
            waits.join(30)
            other.rollback()
            execute(db, f"insert into {shop.orders} values ('second')")
        assert shop.stored() == {"a", "b"}
