"""A check answers from the table that the local transaction wrote into, and from nothing that a fail-over can
take back; else it looks nothing up."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from escrowmq.feedback.database import statements
from escrowmq.feedback.states import TransactionState
from escrowmq.integrations import AsyncFence, Fence, Inbox, WrongDatabase
from tests.support.database_servers import Server
from tests.support.inboxes import record as inbox_record
from tests.support.shops import Tx
from tests.support.waiting import wait_until

COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK
Servers = Callable[[str], Server | None]


@contextmanager
def one_connection(server: Server, schemas: list[str], making: str) -> Iterator[sa.Engine]:
    """An engine with one connection, and schemas on the server, gone afterwards. ``making``: DATABASE, which
    is the same in MariaDB, or SCHEMA."""
    engine = sa.create_engine(server.url(), pool_size=1, max_overflow=0)
    quote = engine.dialect.identifier_preparer.quote_identifier
    try:
        with engine.begin() as db:
            for schema in schemas:
                db.exec_driver_sql(f"create {making} {quote(schema)}")
        yield engine
    finally:
        with engine.begin() as db:
            for schema in schemas:
                cascade = " cascade" if making == "schema" else ""
                db.exec_driver_sql(f"drop {making} {quote(schema)}{cascade}")
        engine.dispose()


def outcomes(engine: sa.Engine, table: str) -> list[int]:
    """Of all rows but the table's name."""
    with engine.begin() as db:
        found = db.execute(sa.text(f"select outcome from {table} where outcome <> 3 order by outcome"))
        return [row[0] for row in found]


@pytest.mark.parametrize(
    ("kind", "making", "names", "go"),
    [
        ("mariadb", "database", ["tenant_a", "tenant_b"], "use {}"),
        ("postgresql", "schema", ["Tenant-A", "Tenant-B"], "set search_path to {}"),
        ("postgresql", "schema", ["1:a", "te:nant"], "set search_path to {}"),
    ],
)
def test_a_pooled_connection_that_leads_elsewhere_does_not_mislead_a_check(
    server_of: Servers, kind: str, making: str, names: list[str], go: str
) -> None:
    server = server_of(kind)
    assert server is not None
    with one_connection(server, names, making) as engine:
        quote = engine.dialect.identifier_preparer.quote_identifier

        def lead_to(name: str) -> None:
            with engine.connect() as db:
                db.exec_driver_sql(go.format(quote(name)))
                db.commit()

        fence = Fence(engine, app="shop")
        for name in reversed(names):
            lead_to(name)
            with engine.begin() as db:
                db.execute(sa.text(fence.schema()))
        fence.learn_identity()  # of the first
        lead_to(names[1])
        refused: Exception | None = None
        try:
            with fence.local(Tx("x")):
                pass
        except Exception as error:
            refused = error
        lead_to(names[1])
        if refused is None:
            assert fence.query_status("x", "x") is COMMITTED
            lead_to(names[0])
            assert fence.query_status("x", "x") is COMMITTED
        else:  # the schema cannot be named: nothing is written where it does not belong
            assert "another database" in str(refused)
            with pytest.raises(WrongDatabase):
                fence.query_status("x", "x")
            lead_to(names[1])
            assert outcomes(engine, "escrowmq_fence") == []


def test_a_check_on_another_database_writes_nothing_and_says_what_differs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "one.db"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(file)

    fence = Fence(connect, app="shop")
    fence.create_table()
    with fence.local(Tx("x")):
        pass
    file = tmp_path / "two.db"  # a service that was moved, a wrong setting
    other = Fence(connect, app="shop")
    other.create_table()
    names = [identity.decode() for identity in (fence.learn_identity(), other.learn_identity())]
    for asked in ([("x", "x"), ("y", "y")], [("x", "x")]):
        with pytest.raises(WrongDatabase) as refused:
            fence.query_statuses(asked)
        assert all(name in str(refused.value) for name in names)
    with connect() as db:
        assert db.execute("select count(*) from escrowmq_fence").fetchone() == (1,), "its name alone"
    file = tmp_path / "one.db"
    assert fence.query_statuses([("x", "x"), ("y", "y")]) == [COMMITTED, ROLLBACK]


def test_an_asynchronous_check_connects_as_the_application_does(server_of: Servers) -> None:
    server = server_of("postgresql")
    assert server is not None
    with one_connection(server, ["billing"], "schema") as plain:
        decoy = Fence(plain, app="other")
        decoy.create_table()

        async def run() -> TransactionState:
            path = {"options": "-csearch_path=billing"}
            engine = create_async_engine(server.url(), connect_args=path)
            fence = AsyncFence(engine, app="shop")
            await fence.create_table()
            async with fence.local(Tx("x")):
                pass
            await engine.dispose()
            answered: TransactionState = await asyncio.to_thread(fence.query_status, "x", "x")
            return answered

        assert asyncio.run(run()) is COMMITTED
        with plain.begin() as db:
            db.execute(sa.text("drop table escrowmq_fence"))


class Waiting(threading.Thread):
    """A call that may wait for a standby for ever."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call, self.said = call, list[Any]()
        self.start()

    def run(self) -> None:
        try:
            self.said.append(self._call())
        except Exception as error:
            self.said.append(error)


def test_what_no_standby_has_is_neither_answered_nor_acknowledged(tmp_path: Path) -> None:
    """A primary is killed while a commit waits for its standby: it comes back with the rows, and only reading
    them would say that they are committed. Then the standby takes over, which has none of them."""
    primary, standby = Server("postgresql"), Server("postgresql")
    record = inbox_record(7)
    try:
        primary.start()
        engine = sa.create_engine(primary.url(), poolclass=sa.NullPool)
        fence, inbox = Fence(engine, app="shop"), Inbox(engine, group="billing")
        fence.create_table()
        inbox.create_table()
        standby.copy(primary)
        with primary.connect(autocommit=True) as db:
            db.execute("alter system set synchronous_standby_names = '*'")
            db.execute("select pg_reload_conf()")
            wait_until(
                lambda: db.execute("show synchronous_standby_names").fetchone() == ("*",), 10.0, "the setting"
            )

        def work() -> None:
            with fence.local(Tx("x")) as db, inbox.once(db, record) as first:
                assert first

        local = Waiting(work)
        wait_until(primary.commits_waiting, 10.0, "the commit waits")
        primary.kill()
        local.join(10.0)
        assert len(local.said) == 1 and isinstance(local.said[0], Exception)
        primary.start()
        with primary.connect() as db:
            assert db.execute("select count(*) from escrowmq_inbox").fetchone() == (1,), "it came back"
        check = Waiting(lambda: fence.query_status("x", "x"))
        checks = Waiting(lambda: fence.query_statuses([("x", "x"), ("z", "z")]))
        again = Waiting(lambda: inbox.handler(lambda record, db: None)(record))
        entered = Waiting(lambda: fence._lost_to(statements.key_of("shop", "x"), "x", ValueError()))
        wait_until(lambda: primary.commits_waiting() == 4, 10.0, "all four wait")
        assert not (check.said or checks.said or again.said), "nobody may act on it"
        primary.kill()
        for waiting in (check, checks, again, entered):
            waiting.join(10.0)
        assert COMMITTED not in check.said and again.said[0] is not None
        standby.start()
        with standby.connect(autocommit=True) as db:
            assert db.execute("select pg_promote()").fetchone() == (True,)
        successor = Fence(sa.create_engine(standby.url(), poolclass=sa.NullPool), app="shop")
        assert successor.query_status("x", "x") is ROLLBACK
    finally:
        primary.close()
        standby.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_many_who_learn_the_tables_name_at_once_all_learn_it(server_of: Servers, kind: str) -> None:
    """As the first requests of a service do, whose table a migration has made."""
    server = server_of(kind)
    assert server is not None
    with one_connection(server, [], "") as engine:
        Fence(engine, app="shop").create_table()
    many = sa.create_engine(server.url(), pool_size=4)
    try:
        for _ in range(5):
            fence, begin = Fence(many, app="shop"), threading.Barrier(4)
            learned: list[bytes | Exception] = []

            def learn(fence: Fence = fence, begin: threading.Barrier = begin) -> None:
                begin.wait()
                try:
                    learned.append(fence.learn_identity())  # noqa: B023
                except Exception as error:
                    learned.append(error)  # noqa: B023

            threads = [threading.Thread(target=learn) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(learned) == 4 and len(set(map(repr, learned))) == 1, learned
            assert isinstance(learned[0], bytes)
    finally:
        many.dispose()
