"""Which errors of drivers say that the database is away, so that ``run`` waits and counts no attempt."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from escrowmq.integrations import NotPrimary, TableMissing, database_is_away
from tests.support.database_servers import free_port


def of_sqlalchemy(error: Exception, *, invalidated: bool = False) -> Exception:
    return sa.exc.OperationalError("select 1", {}, error, connection_invalidated=invalidated)


AWAY = [
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
    of_sqlalchemy(psycopg.errors.DeadlockDetected()),
    TableMissing("no table"),
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
