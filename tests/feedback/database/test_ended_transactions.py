"""A transaction that is rolled back already, or can only be rolled back, takes no row: the fence, the inbox
and the outbox say so in their own words, and nothing of it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, registry

from escrowmq import Message
from escrowmq.integrations import Fence, Inbox, NoDatabaseTransaction, Outbox
from tests.support.database_servers import Server
from tests.support.inboxes import record
from tests.support.shops import ShopMaker, Tx, closing_shops


class Owners:
    """All that writes rows into a transaction of the application's."""

    def __init__(self, database: Any, mark: str) -> None:
        self.fence = Fence(database, app="shop", table=f"f_{mark}")
        self.inbox = Inbox(database, group="g", table=f"i_{mark}")
        self.outbox = Outbox(database, table=f"o_{mark}")
        self.tables = [f"f_{mark}", f"i_{mark}", f"o_{mark}", f"o_{mark}_shards"]
        for owner in (self.fence, self.inbox, self.outbox):
            owner.create_table()

    def refuse(self, db: Any, text: str) -> None:
        """All of them raise, with this in their text."""

        def handle() -> None:
            with self.inbox.once(db, record(1)):
                raise AssertionError("not reached")

        calls: list[Callable[[], None]] = [
            lambda: self.fence.enter(db, Tx("1")),
            handle,
            lambda: self.outbox.send(db, Message("t", b"1")),
        ]
        for call in calls:
            with pytest.raises(NoDatabaseTransaction, match=text):
                call()

    def take(self, db: Any) -> None:
        """None of them raises."""
        self.fence.enter(db, Tx("1"))
        with self.inbox.once(db, record(1)) as first:
            assert first
        self.outbox.send(db, Message("t", b"1"))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def server(request: pytest.FixtureRequest, server_of: Callable[[str], Server | None]) -> Server | None:
    return server_of(request.param)


@pytest.fixture
def make(server: Server | None, tmp_path: Path) -> Iterator[ShopMaker]:
    with closing_shops(server, tmp_path, False) as made:
        yield made


@pytest.fixture
def owners(make: ShopMaker) -> Iterator[tuple[sa.Engine, Owners]]:
    shop = make()
    found = Owners(shop.engine, shop.table[-6:])
    yield shop.engine, found
    with shop.engine.begin() as db:
        for table in found.tables:
            db.execute(sa.text(f"drop table {table}"))


def test_a_session_whose_flush_has_failed(owners: tuple[sa.Engine, Owners]) -> None:
    engine, found = owners
    (orders,) = (name for name in sa.inspect(engine).get_table_names() if name.startswith("orders_"))
    order: Any = type("Order", (), {})
    registry().map_imperatively(order, sa.Table(orders, sa.MetaData(), autoload_with=engine))
    with Session(engine) as session:
        session.execute(sa.text(f"insert into {orders} values ('the same')"))
        session.commit()
        session.add(row := order())
        row.id = "the same"
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        found.refuse(session, r"rolled back already.*rollback\(\)")
        session.rollback()
        found.take(session)
        session.commit()
    assert len(found.outbox.rows()) == 1


def test_a_block_that_has_rolled_back_itself(owners: tuple[sa.Engine, Owners]) -> None:
    engine, found = owners
    with Session(engine) as session, session.begin():
        session.rollback()
        found.refuse(session, "rolled back already")
    with engine.connect() as connection:
        with connection.begin() as begun:
            begun.rollback()
            found.refuse(connection, "rolled back already")
        with connection.begin():
            found.take(connection)
    found.refuse(connection, "closed")
    assert len(found.outbox.rows()) == 1


def test_an_earlier_statement_failed(owners: tuple[sa.Engine, Owners]) -> None:
    """In PostgreSQL nothing of such a transaction can be committed; the others undo the statement alone."""
    engine, found = owners
    with engine.connect() as connection:
        with pytest.raises(sa.exc.DBAPIError):
            connection.execute(sa.text("select * from no_such_table"))
        if engine.dialect.name == "postgresql":
            found.refuse(connection, "earlier statement of this transaction failed")
        else:
            found.take(connection)
            connection.commit()
    assert len(found.outbox.rows()) == (engine.dialect.name != "postgresql")


def test_an_earlier_statement_failed_on_a_plain_connection(
    server_of: Callable[[str], Server | None], tmp_path: Path
) -> None:
    with closing_shops(server_of("postgresql"), tmp_path, True) as make:
        shop = make()
        found = Owners(shop.connect, shop.table[-6:])
        connection = shop.connect()
        with pytest.raises(Exception, match="no_such_table"):
            connection.execute("select * from no_such_table")
        found.refuse(connection, "earlier statement of this transaction failed")
        connection.rollback()
        found.take(connection)
        connection.commit()
        assert len(found.outbox.rows()) == 1
        for table in found.tables:
            connection.execute(f"drop table {table}")
        connection.commit()
        connection.close()
