"""One database connection, however it was made: what a fence or an inbox needs of it, and how a plain driver
provides it.

A ``Link`` runs statements in the connection's own transaction. Drivers: sqlite3, psycopg 3, PyMySQL; all
others through SQLAlchemy (``sqlalchemy_links``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

from escrowmq.feedback.database.errors import DatabaseMisused, NoDatabaseTransaction
from escrowmq.feedback.database.statements import in_pyformat

#: Flag of MariaDB's protocol in each answer: a transaction is open.
_IN_TRANSACTION = 0x0001
#: libpq's state of a transaction in which a statement has failed.
_FAILED = 3
#: Module of a driver's connection -> dialect.
DRIVERS = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mysql"}


class Link(Protocol):
    """A connection with its transaction. Not thread-safe, as connections are not."""

    dialect: str

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        """A statement without rows."""

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """All rows of a statement."""

    def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        """How many rows a statement has inserted or deleted."""

    def target(self) -> str | None:
        """A name for where it leads, the same for all connections to the same database with the same
        settings; None: it has none, so ask the database each time."""

    def refuse_autocommit(self, row: str) -> None:
        """Raises NoDatabaseTransaction if what runs now would be committed on its own. ``row``: what is about
        to be written, for the error's text."""

    def refuse_savepoint(self) -> None:
        """Raises DatabaseMisused if what runs now could be undone without the rest of the transaction."""

    def mark(self) -> object:
        """The transaction that is open now: equal for as long as it is the same one. None: there is none."""

    def refuse_failed(self) -> None:
        """Raises NoDatabaseTransaction if a statement of the transaction has failed, so that it can only be
        rolled back: PostgreSQL answers COMMIT with ROLLBACK then, and drivers take that for a commit."""

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call this at about the time of the commit, if it can be known here; it must be quick. Not after a
        rollback."""

    def commit(self, last: Callable[[], None] = lambda: None) -> None:
        """Commit the transaction. Raises as ``refuse_failed`` does, and has not committed then. ``last`` is
        called just before, when there is nothing else left that could be refused."""

    def has_committed(self) -> bool | None:
        """After ``commit`` has raised. True: the database has committed, and what came after that has failed.
        False: certainly not; COMMIT was not sent, or has left the transaction open. None: only the error says
        what came of it."""

    def rollback(self) -> None:
        """Roll the transaction back."""


@runtime_checkable
class Database(Protocol):
    """Where the table is; opens its own connections. An adapter for another kind of database has
    these methods."""

    dialect: str

    def checking(self) -> AbstractContextManager[Link]:
        """A connection for the fence's own use, ready for a check's statements."""

    def opening(self) -> AbstractContextManager[tuple[Any, Link]]:
        """For a local transaction: the application's object, and its link. Rolled back unless committed."""

    def link(self, given: Any) -> Link:
        """The link of an object that the application has; raises DatabaseMisused if it is not of this
        database's kind."""


def driver_of(connection: Any) -> str | None:
    """The module of a DB-API connection, if it is one of ``DRIVERS``."""
    for kind in type(connection).__mro__:
        module = kind.__module__.partition(".")[0]
        if module in DRIVERS and kind.__name__ == "Connection":
            return module
    return None


def file_of(link: Link, schema: str = "main") -> str:
    """The path of SQLite's file, as SQLite itself reports it; empty if there is none."""
    return next((str(row[2] or "") for row in link.rows("PRAGMA database_list") if row[1] == schema), "")


class DriverLink:
    """A plain DB-API connection."""

    def __init__(self, connection: Any) -> None:
        driver = driver_of(connection)
        if driver is None:
            raise DatabaseMisused(
                f"{type(connection).__module__}.{type(connection).__name__} is not a connection of sqlite3, "
                "psycopg or PyMySQL: pass one of those, or an engine, a connection or a session of SQLAlchemy"
            )
        self.connection, self.driver, self.dialect = connection, driver, DRIVERS[driver]

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        self._execute(sql, values).close()

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        cursor = self._execute(sql, values)
        found: Sequence[Any] = cursor.fetchall()
        cursor.close()
        # A connection may be configured to return rows as mappings (sqlite3.Row, dict_row, DictCursor).
        return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in found]

    def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        cursor = self._execute(sql, values)
        count = int(cursor.rowcount)
        cursor.close()
        return count

    def _execute(self, sql: str, values: Mapping[str, Any] | None) -> Any:
        cursor = self.connection.cursor()
        try:
            if values:
                cursor.execute(sql if self.driver == "sqlite3" else in_pyformat(sql), dict(values))
            else:
                cursor.execute(sql)
        except BaseException:
            cursor.close()
            raise
        return cursor

    def target(self) -> str | None:
        connection = self.connection
        if self.driver == "sqlite3":
            return file_of(self) or None  # without a file: each connection may be a database of its own
        if self.driver == "psycopg":
            info = connection.info
            return f"{info.host}:{info.port}/{info.dbname}?{info.user}"
        return f"{connection.host}:{connection.port}/{connection.db}?{connection.user!r}"

    def refuse_savepoint(self) -> None: ...  # a driver does not know of any

    def refuse_autocommit(self, row: str) -> None:
        connection = self.connection
        if self.driver == "sqlite3":
            implicit = getattr(connection, "autocommit", -1) is False or (
                getattr(connection, "autocommit", -1) == -1 and connection.isolation_level is not None
            )
            open_now, hint = connection.in_transaction, "execute BEGIN IMMEDIATE first"
        elif self.driver == "psycopg":
            implicit, open_now = not connection.autocommit, connection.info.transaction_status.value > 0
            hint = "use `with connection.transaction():`"
        else:
            implicit, open_now = not connection.get_autocommit(), _is_open(connection)
            hint = "call connection.begin() first"
        if not implicit and not open_now:
            raise NoDatabaseTransaction(
                f"the connection is in autocommit and in no transaction; {hint}, or {row} would be committed "
                "without the business's rows"
            )

    def refuse_failed(self) -> None:
        if self.driver == "psycopg" and has_failed(self.connection):
            raise failed_before()

    def after_commit(self, call: Callable[[], None]) -> None: ...  # a driver does not tell

    def mark(self) -> object:
        connection = self.connection
        if self.driver == "sqlite3":
            return connection.in_transaction or None
        if self.driver == "psycopg":
            return connection.info.transaction_status.value in (1, 2, 3) or None
        return _is_open(connection) or None

    def commit(self, last: Callable[[], None] = lambda: None) -> None:
        self.refuse_failed()
        last()
        self.connection.commit()

    def has_committed(self) -> bool | None:
        # A driver does nothing after it, and SQLite keeps what it could not commit (a reader was in the way).
        return False if self.driver == "sqlite3" and self.connection.in_transaction else None

    def rollback(self) -> None:
        self.connection.rollback()


def has_failed(connection: Any) -> bool | None:
    """Whether the transaction of a driver's connection to PostgreSQL can only be rolled back; None: such a
    driver does not tell. psycopg 3 and psycopg2 do."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return None if status is None else int(status) == _FAILED


def failed_before() -> NoDatabaseTransaction:
    """For a transaction that ``has_failed``."""
    return NoDatabaseTransaction(
        "a statement of this transaction failed, so PostgreSQL can only roll it back, and would do so "
        "at COMMIT without an error: do not catch such an error, or put statements that may fail into a "
        "savepoint"
    )


def _is_open(connection: Any) -> bool:
    return bool(connection.server_status & _IN_TRANSACTION)


class DriverDatabase:
    """A function that opens a DB-API connection: ``lambda: sqlite3.connect("shop.db")``."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        with self._open() as link:
            self.dialect = link.dialect
            if link.target() is None:
                raise DatabaseMisused(
                    "an in-memory database, or one without a file: each connection may find another one, and "
                    "checks have their own connection; use a file"
                )

    @contextmanager
    def _open(self) -> Iterator[DriverLink]:
        connection = self._connect()
        try:
            yield DriverLink(connection)
        finally:
            with contextlib.suppress(Exception):  # it is no longer needed, whatever close() says
                connection.close()

    @contextmanager
    def checking(self) -> Iterator[Link]:
        with self._open() as link:
            _end_autocommit(link)
            yield link

    @contextmanager
    def opening(self) -> Iterator[tuple[Any, Link]]:
        with self._open() as link:
            _end_autocommit(link)
            yield link.connection, link

    def link(self, given: Any) -> Link:
        link = DriverLink(given)
        if link.dialect != self.dialect:
            raise DatabaseMisused(f"a connection of {link.dialect}, but the table is on {self.dialect}")
        return link


def _end_autocommit(link: DriverLink) -> None:
    """For one of the fence's own connections: its first statement shall begin a transaction."""
    if link.driver == "psycopg":
        link.connection.autocommit = False
    elif link.driver == "pymysql":
        link.connection.autocommit(False)
    elif getattr(link.connection, "autocommit", -1) == -1:
        link.connection.isolation_level = "DEFERRED"
    else:
        link.connection.autocommit = False
