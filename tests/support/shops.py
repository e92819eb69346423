"""An application's database with an orders table and a fence, on any database and by either way to it."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from escrowmq.integrations import Fence
from tests.support.database_servers import Server

#: Isolation levels that a local transaction may have; SQLite has one.
LEVELS = {
    "sqlite": ("SERIALIZABLE",),
    "postgresql": ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
    "mariadb": ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
}
#: Drivers for asynchronous engines.
DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mariadb": "asyncmy"}


@dataclass(frozen=True, slots=True)
class Tx:
    """As much of a producer's transaction as a fence sees."""

    tx_id: str
    prepared: bool = True
    given_id: bool = False


class Local:
    """A local transaction that has begun and that the test controls."""

    def __init__(self, shop: Shop, connection: Any) -> None:
        self.shop, self.connection = shop, connection
        shop.begun.append(self)

    def enter(self, tx_id: str) -> Local:
        self.shop.fence.enter(self.connection, Tx(tx_id))
        return self

    def order(self, tx_id: str) -> Local:
        self.execute(f"insert into {self.shop.orders} values ('{tx_id}')")
        return self

    def execute(self, sql: str) -> Any:
        if isinstance(self.connection, sa.Connection):
            return self.connection.execute(sa.text(sql))
        cursor = self.connection.cursor()
        cursor.execute(sql)
        return cursor

    def commit(self) -> None:
        self.connection.commit()
        self.connection.close()

    def rollback(self) -> None:
        self.connection.rollback()
        self.connection.close()


class Shop:
    """One fence table and one of orders. ``server`` None: SQLite in ``folder``. ``plain``: without
    SQLAlchemy."""

    def __init__(
        self, server: Server | None, folder: Path, *, plain: bool, lock_timeout_s: float = 0.3
    ) -> None:
        self.kind = "sqlite" if server is None else server.kind
        self.plain, self.server, self.path = plain, server, folder / "shop.db"
        self.begun: list[Local] = []
        mark = uuid.uuid4().hex[:10]
        self.orders, self.table = f"orders_{mark}", f"fence_{mark}"
        self.engine = sa.create_engine(self.url(), pool_size=20)
        self.fence = self.make_fence(lock_timeout_s=lock_timeout_s)
        self.fence.create_table()
        with self.engine.begin() as db:
            suffix = " engine=innodb" if self.kind == "mariadb" else ""
            db.execute(sa.text(f"create table {self.orders} (id varchar(100) primary key){suffix}"))

    def url(self, driver: str = "") -> str:
        if self.server is None:
            return f"sqlite{'+' * bool(driver)}{driver}:///{self.path}"
        return self.server.url(driver)

    def connect(self) -> Any:
        """A plain connection, as the driver gives it."""
        if self.server is None:
            return sqlite3.connect(self.path, timeout=10, check_same_thread=False)
        return self.server.connect()

    def make_fence(self, **options: Any) -> Fence:
        options = {"app": "shop", "table": self.table} | options
        return Fence(self.connect if self.plain else self.engine, **options)

    def begin(self, level: str | None = None) -> Local:
        """A local transaction, by default with the isolation that the driver has."""
        if not self.plain:
            connection = self.engine.connect()
            return Local(self, connection.execution_options(isolation_level=level) if level else connection)
        local = Local(self, self.connect())
        if level is not None and self.kind == "postgresql":
            local.execute(f"set transaction isolation level {level}")
        elif level is not None and self.kind == "mariadb":
            local.execute(f"set session transaction isolation level {level}")
        return local

    def stored(self) -> set[str]:
        """Orders that are committed."""
        with self.engine.connect() as db:
            return {name for (name,) in db.execute(sa.text(f"select id from {self.orders}"))}

    def count(self) -> int:
        """Rows of the fence, except the one that names the database."""
        with self.engine.connect() as db:
            return int(
                db.execute(sa.text(f"select count(*) from {self.table} where outcome < 3")).scalar_one()
            )

    def close(self) -> None:
        for local in self.begun:  # a failed test leaves them open, and their locks would hold up the drop
            with contextlib.suppress(Exception):
                local.connection.close()
        with contextlib.suppress(sa.exc.DBAPIError), self.engine.begin() as db:
            db.execute(sa.text(f"drop table {self.orders}"))
            db.execute(sa.text(f"drop table {self.table}"))
        self.engine.dispose()


ShopMaker = Callable[..., Shop]


@contextlib.contextmanager
def closing_shops(server: Server | None, folder: Path, plain: bool) -> Iterator[ShopMaker]:
    """Makes shops, and closes them."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Shop:
            shop = Shop(server, folder, plain=plain, **options)
            stack.callback(shop.close)
            return shop

        yield make
