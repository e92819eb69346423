"""Connections and sessions of SQLAlchemy 2, as links. Imported only if an object of SQLAlchemy was given.

An asynchronous engine has a synchronous core, and these links belong to that: ``async_fence`` runs them in
the greenlet that SQLAlchemy provides for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from escrowmq.feedback.database.errors import DatabaseMisused, NoDatabaseTransaction
from escrowmq.feedback.database.failures import Failure, failure_of, rolled_back_already
from escrowmq.feedback.database.links import Link, failed_before, has_failed
from escrowmq.feedback.database.statements import dialect_of

#: Isolation level of a check's connection. In SQLite, which has only one, each statement is a transaction.
_CHECKING = {"sqlite": "AUTOCOMMIT"}
#: Of ``Connection.info``: what wants to be called when its transaction is committed.
_WAITING = "escrowmq-after-commit"
#: Of engines' pools: an engine's options of another kind than the URL are in there.
_NUMBERS: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()
_COUNT = itertools.count()


class SqlAlchemyLink:
    """A Connection, possibly that of a session."""

    def __init__(self, connection: Connection, given: Connection | Session) -> None:
        self.connection, self._given = connection, given
        self._committed: bool | None = None
        self.dialect = dialect_of(connection.dialect.name).name

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        self.connection.execute(text(sql), dict(values or {})).close()

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        return [tuple(row) for row in self.connection.execute(text(sql), dict(values or {}))]

    def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        return self.connection.execute(text(sql), dict(values)).rowcount

    def place(self) -> str | None:
        options = self.connection.get_execution_options().get("schema_translate_map")
        engine = self.connection.engine  # its URL alone may be that of others: creator=, connect_args=
        url = engine.url.render_as_string(hide_password=True)
        return f"{url}{options or ''}#{_NUMBERS.setdefault(engine.pool, next(_COUNT))}"

    def refuse_savepoint(self) -> None:
        if self.connection.in_nested_transaction():
            raise DatabaseMisused(
                "enter the fence before the first savepoint: rolling back a savepoint would also remove the "
                "fence's row, but keep the rest of the transaction"
            )

    def refuse_autocommit(self, row: str) -> None:
        connection = self.connection
        proxied: Any = connection.connection
        try:
            autocommit = connection.dialect.detect_autocommit_setting(proxied.dbapi_connection)
        except (AttributeError, NotImplementedError):
            autocommit = _asked_for_autocommit(connection)
        if autocommit and not self._begun_by_an_event(proxied.driver_connection):
            raise NoDatabaseTransaction(
                f"the connection is in AUTOCOMMIT, so {row} would be committed without the business's rows; "
                "use a connection without isolation_level='AUTOCOMMIT'"
            )

    def _begun_by_an_event(self, driver: Any) -> bool:
        """The documented way to SQLite's own BEGIN: autocommit in the driver, and a listener that begins."""
        if self.dialect != "sqlite":
            return False
        self.rows("PRAGMA user_version")  # the first statement begins the transaction, if there is a listener
        return bool(getattr(driver, "in_transaction", False))

    def refuse_failed(self) -> None:
        if self.dialect != "postgresql":
            return
        failed = has_failed(self.connection.connection.driver_connection)
        if failed is None:  # the driver does not tell
            try:
                self.run("SELECT 1")
            except Exception as error:
                if failure_of(error) is not Failure.FAILED_BEFORE:
                    raise
                failed = True
        if failed:
            raise failed_before()

    def after_commit(self, call: Callable[[], None]) -> None:
        engine = self.connection.engine
        if not event.contains(engine, "commit", _call_waiting):
            event.listen(engine, "commit", _call_waiting)
            event.listen(engine, "rollback", _forget_waiting)
        self.connection.info.setdefault(_WAITING, set()).add(call)

    def mark(self) -> object:
        return self._given.get_transaction()

    def commit(self, last: Callable[[], None] = lambda: None) -> None:
        self._committed = None
        if isinstance(self._given, Session):
            self._given.flush()  # a failure here is certain, and is raised unchanged
        self.refuse_failed()
        last()
        self._commit()
        if self.connection.in_transaction():
            raise RuntimeError(
                "the session's commit has committed nothing: it has joined a transaction that was begun on "
                "its connection before, which decides. Pass that connection, or a session of an engine"
            )

    def _commit(self) -> None:
        """A session calls hooks, and may commit other connections too, so an error says nothing about
        ours. What our connection did does: it forgets its transaction when the driver's COMMIT returns."""
        connection, seen = self.connection, set[str]()
        mine = connection.get_transaction()
        _listen(connection.engine)
        _ENDING[id(connection)] = seen
        try:
            self._given.commit()
        except BaseException:
            over = connection.get_transaction() is not mine and not seen.intersection(_UNDONE)
            if over or not seen:
                self._committed = bool(seen)
            raise
        finally:
            del _ENDING[id(connection)]

    def has_committed(self) -> bool | None:
        return self._committed

    def rollback(self) -> None:
        self._given.rollback()


#: Events before a connection sends something that ends its transaction, and those of them that undo it.
_UNDONE = ("rollback", "rollback_twophase")
_ENDINGS = ("commit", "prepare_twophase", "commit_twophase", *_UNDONE)


#: Connections whose commit is under way, by identity: which of these events they had.
_ENDING: dict[int, set[str]] = {}
_LISTENING: WeakSet[Engine] = WeakSet()


def _listen(engine: Engine) -> None:
    """Once for each engine, since it takes longer than a commit."""
    if engine not in _LISTENING:
        for name in _ENDINGS:
            event.listen(engine, name, _noting(name))
        _LISTENING.add(engine)  # now: another thread must not take it for done


def _noting(name: str) -> Callable[..., None]:
    def note(connection: Connection, *_: Any) -> None:
        if (seen := _ENDING.get(id(connection))) is not None:
            seen.add(name)

    return note


def _call_waiting(connection: Connection) -> None:
    """Just before the commit: SQLAlchemy tells of it after only in sessions."""
    for call in connection.info.pop(_WAITING, ()):
        call()


def _forget_waiting(connection: Connection) -> None:
    connection.info.pop(_WAITING, None)


def _asked_for_autocommit(connection: Connection) -> bool:
    """If the driver's setting cannot be read, as before SQLAlchemy 2.0.43 and in third-party dialects: what
    the application has requested, for the connection or for the whole engine."""
    asked = connection.get_execution_options().get("isolation_level")
    level = asked or getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT"


class SqlAlchemyDatabase:
    """An Engine, or a sessionmaker whose sessions are used for local transactions."""

    def __init__(self, given: Engine | sessionmaker[Session]) -> None:
        self._sessions: sessionmaker[Session] | None = None
        if isinstance(given, sessionmaker):
            self._sessions = given
            with given() as session:
                bind = session.get_bind()
            given = bind.engine
        self.engine: Engine = given
        self.dialect = dialect_of(given.dialect.name).name
        url = given.url
        memory = url.database in (None, "", ":memory:") or "mode=memory" in str(url.database)
        if self.dialect == "sqlite" and memory:
            raise DatabaseMisused(
                "an in-memory database: a check runs in another thread and would find another database; "
                "use a file"
            )
        if isinstance(given.pool, StaticPool | SingletonThreadPool):
            raise DatabaseMisused(
                f"{type(given.pool).__name__} gives a check the connection of a local transaction that "
                "is still running; use the pool that SQLAlchemy chooses"
            )

    @contextmanager
    def checking(self) -> Iterator[Link]:
        with self.engine.connect() as connection:
            level = _CHECKING.get(self.dialect, "READ COMMITTED")
            yield SqlAlchemyLink(connection.execution_options(isolation_level=level), connection)

    @contextmanager
    def opening(self) -> Iterator[tuple[Any, Link]]:
        if self._sessions is None:
            with self.engine.connect() as connection:
                yield connection, SqlAlchemyLink(connection, connection)
        else:
            with self._sessions() as session:
                yield session, SqlAlchemyLink(session.connection(), session)

    def link(self, given: Any) -> Link:
        return link_of(given)


def _connection_of(session: Session) -> Connection:
    """After a failed flush, or a rollback inside ``with begin()``, a session gives none."""
    try:
        return session.connection()
    except UnboundExecutionError:
        raise
    except InvalidRequestError as error:
        raise NoDatabaseTransaction(rolled_back_already("session", error)) from error


def link_of(given: Any) -> SqlAlchemyLink:
    """The link of a Connection or a Session; raises DatabaseMisused for anything else."""
    if isinstance(given, scoped_session):
        given = given()
    if isinstance(given, Session):
        return SqlAlchemyLink(_connection_of(given), given)
    if isinstance(given, Connection):
        if given.closed:
            raise NoDatabaseTransaction(
                "the connection is closed: pass the one of the business's transaction"
            )
        return SqlAlchemyLink(given, given)
    kind = type(given).__name__
    if kind.startswith(("Async", "async_")):
        raise DatabaseMisused(
            f"{kind} is asynchronous: use escrowmq.integrations.AsyncFence or AsyncInbox; for an outbox "
            "`await db.run_sync(outbox.send, message)`"
        )
    raise DatabaseMisused(f"pass a Connection or a Session, not {kind}: the row is part of its transaction")


def database_of(given: Any) -> SqlAlchemyDatabase:
    """For an engine or a sessionmaker; raises DatabaseMisused for anything else."""
    if isinstance(given, Engine | sessionmaker):
        return SqlAlchemyDatabase(given)
    kind = type(given).__name__
    if kind.startswith(("Async", "async_")):
        raise DatabaseMisused(
            f"{kind} is asynchronous: use escrowmq.integrations.AsyncFence or AsyncInbox; give an outbox a "
            "blocking engine for its relay, and call `await db.run_sync(outbox.send, message)`"
        )
    raise DatabaseMisused(
        f"pass an Engine, a sessionmaker or a function that opens a connection, not {kind}: a check needs a "
        "connection of its own"
    )
