"""Which errors of drivers say that the database is away, so that ``run`` waits and counts no attempt."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace

import asyncmy.errors
import django.db.utils
import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from escrowmq.integrations import AsyncInbox, Inbox, NotPrimary, TableMissing, WrongDatabase, database_is_away
from tests.support.database_servers import Server, free_port
from tests.support.waiting import wait_until


def of_sqlalchemy(error: Exception, *, invalidated: bool = False) -> Exception:
    return sa.exc.OperationalError("select 1", {}, error, connection_invalidated=invalidated)


def of_django(error: Exception) -> Exception:
    seen = django.db.utils.OperationalError(*error.args)
    seen.__cause__ = error
    return seen


def of_driver(module: str, name: str, *args: object, **about: object) -> Exception:
    """An error of a driver that is not installed here."""
    kind: type[Exception] = type(name, (Exception,), {"__module__": module, **about})
    return kind(*args)


def through(module: str, error: OSError) -> OSError:
    """What a driver's function lets out."""

    def connect(error: OSError) -> None:
        raise error

    there = FunctionType(connect.__code__, {"__name__": module, "__builtins__": {}})
    with pytest.raises(OSError) as out:
        there(error)
    assert out.value is error
    return error


MYSQLCLIENT = "MySQLdb._exceptions"
AWAY = [
    TableMissing("no table"),  # somebody forgot to set it up: no message is to blame
    WrongDatabase("another one"),
    psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
    psycopg.errors.CrashShutdown(),
    psycopg.errors.CannotConnectNow("the database system is starting up"),
    psycopg.errors.TooManyConnections(),
    psycopg.errors.ReadOnlySqlTransaction(),
    psycopg.errors.ConnectionException(),
    pymysql.err.OperationalError(2006, "MySQL server has gone away"),
    pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
    pymysql.err.OperationalError(1040, "Too many connections"),
    pymysql.err.InterfaceError(0, ""),
    asyncmy.errors.OperationalError(2003, "Can't connect to MySQL server on '127.0.0.1'"),
    asyncmy.errors.InterfaceError(0, "Not connected"),
    of_driver(MYSQLCLIENT, "OperationalError", 2002, "Can't connect to server on '127.0.0.1'"),
    of_driver("mysql.connector.errors", "InterfaceError", 2003, "Can't connect to MySQL server", None),
    of_driver("mariadb", "OperationalError", "Can't connect to server on '127.0.0.1'", errno=2002),
    of_django(of_driver(MYSQLCLIENT, "OperationalError", 2006, "")),
    of_django(psycopg.OperationalError("connection refused")),
    through("asyncpg.connect_utils", ConnectionRefusedError(111, "Connect call failed")),
    through("asyncpg.connection", TimeoutError()),
    through("asyncpg.protocol.protocol", ConnectionResetError()),
    NotPrimary("a standby"),
    of_sqlalchemy(psycopg.errors.CannotConnectNow()),
    of_sqlalchemy(ValueError("of a driver that nobody knows"), invalidated=True),
]
NOT_AWAY = [
    psycopg.errors.UniqueViolation(),
    psycopg.errors.DeadlockDetected(),
    psycopg.errors.LockNotAvailable(),
    psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    psycopg.errors.SerializationFailure(),
    psycopg.errors.OutOfMemory(),
    psycopg.InterfaceError("the cursor is closed"),
    pymysql.err.OperationalError(1054, "Unknown column"),
    pymysql.err.OperationalError(1213, "Deadlock found"),
    pymysql.err.IntegrityError(1062, "Duplicate entry"),
    asyncmy.errors.OperationalError(1054, "Unknown column"),
    of_driver(MYSQLCLIENT, "OperationalError", 1213, "Deadlock found"),
    of_driver("mariadb", "OperationalError", "Unknown column", errno=1054),
    of_django(of_driver(MYSQLCLIENT, "OperationalError", 1205, "Lock wait timeout exceeded")),
    of_driver("shop.errors", "OperationalError", 2003, "of the application"),
    through("asyncpg.protocol.protocol", TimeoutError()),  # of one statement
    through("shop.partner", ConnectionResetError()),
    of_sqlalchemy(psycopg.errors.DeadlockDetected()),
    ConnectionRefusedError("of a partner"),
    ValueError("of the record"),
]


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_it_is_away(error: Exception) -> None:
    assert database_is_away(error)


@pytest.mark.parametrize("error", NOT_AWAY, ids=repr)
def test_it_is_there(error: Exception) -> None:
    """What may be the statement's own doing would hold up its partition for good."""
    assert not database_is_away(error)


RECORD = SimpleNamespace(topic="orders", partition=0, offset=0, timestamp=1000, origin=None)


def raised_by(inbox: Inbox | AsyncInbox) -> Exception:
    """What a handler over this inbox lets out."""

    async def later(record: object, db: object) -> None:
        raise AssertionError("there is no database")

    def work(record: object, db: object) -> None:
        raise AssertionError("there is no database")

    async def handled() -> None:
        assert isinstance(inbox, AsyncInbox)
        await inbox.handler(later)(RECORD)

    with pytest.raises(Exception) as refused:
        if isinstance(inbox, AsyncInbox):
            asyncio.run(handled())
        else:
            inbox.handler(work)(RECORD)
    return refused.value


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+asyncmy"])
def test_nobody_listens_to_a_coroutine(driver: str) -> None:
    engine = create_async_engine(f"{driver}://nobody@127.0.0.1:{free_port()}/shop")
    assert AsyncInbox.is_away(raised_by(AsyncInbox(engine, group="billing")))


SYSTEMS = [ConnectionRefusedError(111), socket.gaierror(-2), TimeoutError()]


@pytest.mark.parametrize("error", SYSTEMS, ids=repr)
@pytest.mark.parametrize("blocking", [True, False])
def test_a_driver_may_let_out_the_systems_error(error: OSError, blocking: bool) -> None:
    """asyncpg does: only the first error of an outage is its own, every refused connection is not."""

    def refused() -> None:
        raise error

    async def refused_later() -> None:
        raise error

    if blocking:
        inbox: Inbox | AsyncInbox = Inbox(
            sa.create_engine("postgresql+psycopg://", creator=refused), group="billing"
        )
    else:
        engine = create_async_engine("postgresql+psycopg://", async_creator=refused_later)
        inbox = AsyncInbox(engine, group="billing")
    raised = raised_by(inbox)
    assert raised is error and inbox.is_away(raised)


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_nobody_listens(driver: str) -> None:
    engine = sa.create_engine(f"{driver}://nobody@127.0.0.1:{free_port()}/shop")
    with pytest.raises(sa.exc.OperationalError) as refused:
        engine.connect()
    assert database_is_away(refused.value) and refused.value.orig is not None
    assert database_is_away(refused.value.orig)


def test_sqlite_tells_by_the_name_of_its_code(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as missing:
        sqlite3.connect(tmp_path / "no folder" / "shop.db")
    assert database_is_away(missing.value)
    with pytest.raises(sqlite3.OperationalError) as wrong:
        sqlite3.connect(tmp_path / "shop.db").execute("select * from nothing")
    assert not database_is_away(wrong.value)


def test_a_connection_that_is_lost_while_it_is_given_back(
    server_of: Callable[[str], Server | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has used it has its answer, and the application's pool has its slot again."""
    server = server_of("mariadb")
    assert server is not None
    engine = sa.create_engine(server.url(), pool_size=1, max_overflow=0, pool_timeout=1)
    others = sa.create_engine(server.url())
    lost: list[int] = []

    def roll_back_and_lose(connection: pymysql.Connection) -> None:
        connection.rollback()
        lost.append(connection.thread_id())
        with others.connect() as db:
            db.exec_driver_sql(f"kill {lost[-1]}")
            there = f"select id from information_schema.processlist where id = {lost[-1]}"
            wait_until(lambda: not db.exec_driver_sql(there).all(), 10.0, "its end", 0.01)

    inbox = Inbox(engine, group="mail", table="inbox_given_back")
    inbox.create_table()
    monkeypatch.setattr(engine.dialect, "do_rollback", roll_back_and_lose)
    assert [inbox.purge(None, keep_s=3600.0).removed for _ in range(3)] == [0, 0, 0]
    monkeypatch.undo()
    assert len(set(lost)) == 3 and engine.pool.checkedout() == 0
    with engine.begin() as db:
        db.exec_driver_sql("drop table inbox_given_back")
    engine.dispose()
    others.dispose()
