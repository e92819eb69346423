"""A block catches the error of one of its statements. PostgreSQL then answers COMMIT with ROLLBACK, and no
driver raises: the messages must not be committed, and the record must not count as handled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from django.db import connections
from sqlalchemy.ext.asyncio import create_async_engine

from escrowmq import TransactionState
from escrowmq.feedback.database import links, sqlalchemy_links
from escrowmq.integrations import AsyncFence, AsyncInbox, DjangoDatabase, Fence, Inbox, NoDatabaseTransaction
from tests.support.database_servers import Server
from tests.support.django_shop import django_database
from tests.support.inboxes import record
from tests.support.shops import Shop, Tx, closing_shops


def execute(db: Any, sql: str) -> None:
    db.execute(sa.text(sql) if isinstance(db, sa.Connection) else sql)


def business(shop: Shop, db: Any) -> None:
    """An order, and a statement that fails and whose error is caught."""
    execute(db, f"insert into {shop.orders} values ('1')")
    with contextlib.suppress(Exception):
        execute(db, "select * from no_such_table")


@pytest.fixture(params=["plain", "sqlalchemy", "a driver that does not tell"])
def shop(
    request: pytest.FixtureRequest,
    server_of: Callable[[str], Server | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shop]:
    if request.param.startswith("a driver"):
        assert links.has_failed(object()) is None
        monkeypatch.setattr(sqlalchemy_links, "has_failed", lambda _: None)
    with closing_shops(server_of("postgresql"), tmp_path, request.param == "plain") as make:
        yield make()


def test_the_fence_commits_nothing(shop: Shop) -> None:
    with pytest.raises(NoDatabaseTransaction, match="savepoint"), shop.fence.local(Tx("1")) as db:
        business(shop, db)
    local = shop.begin().enter("2")
    business(shop, local.connection)
    with pytest.raises(NoDatabaseTransaction, match="savepoint"):
        shop.fence.commit(local.connection, Tx("2"))
    assert shop.fence.query_status("1", "") is shop.fence.query_status("2", "") is TransactionState.ROLLBACK
    assert shop.stored() == set()


def test_the_inbox_settles_nothing(shop: Shop) -> None:
    inbox = Inbox(shop.connect if shop.plain else shop.engine, group="g", table=f"i_{shop.table}")
    inbox.create_table()
    with pytest.raises(NoDatabaseTransaction, match="savepoint"):
        inbox.handler(lambda _, db: business(shop, db))(record(1))
    local = shop.begin()
    with pytest.raises(NoDatabaseTransaction, match="savepoint"), inbox.once(local.connection, record(1)):
        business(shop, local.connection)
    local.rollback()
    inbox.handler(lambda _, db: execute(db, f"insert into {shop.orders} values ('1')"))(record(1))
    assert shop.stored() == {"1"}


def test_asynchronous_ones(server_of: Callable[[str], Server | None], tmp_path: Path) -> None:
    async def main(shop: Shop) -> None:
        engine = create_async_engine(shop.url("psycopg"))
        fence = AsyncFence(engine, app="shop", table=shop.table)
        inbox = AsyncInbox(engine, group="g", table=f"i_{shop.table}")
        await inbox.create_table()

        async def work(_: Any, db: Any) -> None:
            await db.run_sync(lambda core: business(shop, core))

        with pytest.raises(NoDatabaseTransaction, match="savepoint"):
            async with fence.local(Tx("1")) as db:
                await work(None, db)
        with pytest.raises(NoDatabaseTransaction, match="savepoint"):
            await inbox.handler(work)(record(1))
        await engine.dispose()

    with closing_shops(server_of("postgresql"), tmp_path, False) as make:
        asyncio.run(main(shop := make()))
        assert shop.stored() == set()


def test_django(server_of: Callable[[str], Server | None], tmp_path: Path) -> None:
    """Django notices such an error only in some calls of the ORM's."""
    with django_database(server_of("postgresql"), tmp_path, "swallowing", "swallowing_in") as alias:
        fence = Fence(DjangoDatabase(alias), app="shop", table="swallowing")
        inbox = Inbox(DjangoDatabase(alias), group="g", table="swallowing_in")
        fence.create_table()
        inbox.create_table()

        def fail() -> None:
            with contextlib.suppress(Exception), connections[alias].cursor() as cursor:
                cursor.execute("select * from no_such_table")

        with pytest.raises(NoDatabaseTransaction, match="savepoint"), fence.local(Tx("1")):
            fail()
        with pytest.raises(NoDatabaseTransaction, match="savepoint"):
            inbox.handler(lambda *_: fail())(record(1))
        assert fence.query_status("1", "") is TransactionState.ROLLBACK
