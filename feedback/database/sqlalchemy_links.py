"""Connections and sessions of SQLAlchemy 2, as links. Imported only if an object of SQLAlchemy was given.

An asynchronous engine has a synchronous core, and these links belong to that: ``async_fence`` runs them in
the greenlet that SQLAlchemy provides for it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Dialect, Engine, event, text
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import Pool, PoolProxiedConnection, SingletonThreadPool, StaticPool

from escrowmq.feedback.database.errors import DatabaseMisused, NoDatabaseTransaction
from escrowmq.feedback.database.failures import StatementFailure, failure_of, rolled_back_already
from escrowmq.feedback.database.links import Link, failed_before, has_failed
from escrowmq.feedback.database.statements import dialect_of

log = logging.getLogger(__name__)

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

    def target(self) -> str | None:
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
                if failure_of(error) is not StatementFailure.FAILED_BEFORE:
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
        unseen = self._commit()
        if self.connection.in_transaction():
            raise RuntimeError(
                "the session's commit has committed nothing: it has joined a transaction that was begun on "
                "its connection before, which decides. Pass that connection, or a session of an engine"
            )
        if unseen:
            raise RuntimeError(
                "the driver has not been seen to commit: the session's commit has rolled back, or this "
                "version of SQLAlchemy commits in a way that is not known"
            )

    def _commit(self) -> bool:
        """A session calls hooks, may commit other connections too, and may have a ``commit`` of the
        application's own, which rolls back or begins anew. So neither the error nor what is left of the
        transaction says what became of ours: what the driver answered does. True: nothing was raised, and yet
        a session has committed nothing that we know of."""
        connection = self.connection
        ending = _Ending(connection)
        _note_answers(connection.dialect)
        _ENDING.update(dict.fromkeys(ending.keys, ending))
        try:
            self._given.commit()
        except BaseException:
            self._committed = ending.committed()
            raise
        finally:
            for key in ending.keys:
                del _ENDING[key]
        return isinstance(self._given, Session) and ending.began and not ending.committed()

    def has_committed(self) -> bool | None:
        return self._committed

    def rollback(self) -> None:
        self._given.rollback()


class _Ending:
    """A commit that is under way: what the driver has answered to what ends the transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self._mine = connection, connection.get_transaction()
        self.began = self._mine is not None
        self._driver: Any = connection.connection  # kept, so that nothing else gets its identity
        self.keys = {id(connection), id(self._driver)}
        self._answers: dict[str, bool] = {}  # what was called -> whether it has returned
        self._still_open = False

    def is_about(self, called: str) -> bool:
        """The first call of each kind, for the transaction itself and not for one that follows it."""
        return self.connection.get_transaction() is self._mine and called not in self._answers

    def note(self, called: str, returned: bool) -> None:
        self._answers[called] = returned
        if not returned and self.connection.dialect.name == "sqlite":  # it keeps what it could not commit
            driver = getattr(self._driver, "driver_connection", None)
            self._still_open = getattr(driver, "in_transaction", False) is True

    def committed(self) -> bool | None:
        """See ``Link.has_committed``."""
        answers = self._answers
        if answers.get("do_commit") or answers.get("do_commit_twophase"):
            return True
        undone = answers == {"do_prepare_twophase": True, "do_rollback_twophase": True}
        return False if not answers or undone or self._still_open else None


#: Calls of a dialect's that end a transaction.
_ENDINGS = ("do_commit", "do_prepare_twophase", "do_commit_twophase", "do_rollback_twophase")
#: Commits under way, by the identity of the connection, and of the driver's that it has from the pool.
_ENDING: dict[int, _Ending] = {}
_NOTING: WeakSet[Dialect] = WeakSet()


def _note_answers(dialect: Dialect) -> None:
    """Once for each engine's dialect. SQLAlchemy has events before these calls and none after them."""
    if dialect not in _NOTING:
        for name in _ENDINGS:
            vars(dialect)[name] = _noting(name, getattr(dialect, name))
        _NOTING.add(dialect)  # now: another thread must not take it for done


def _noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def called(connection: Any, *rest: Any, **named: Any) -> Any:
        ending = _ENDING.get(id(connection))
        if ending is None or not ending.is_about(name):
            return call(connection, *rest, **named)
        try:
            result = call(connection, *rest, **named)
        except BaseException:
            ending.note(name, False)
            raise
        ending.note(name, True)
        return result

    return called


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
        connection = self.engine.connect()
        pooled = connection.connection
        try:
            level = _CHECKING.get(self.dialect, "READ COMMITTED")
            yield SqlAlchemyLink(connection.execution_options(isolation_level=level), connection)
        finally:
            _give_back(connection, pooled)

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


def _give_back(connection: Connection, pooled: PoolProxiedConnection) -> None:
    """Closes it. SQLAlchemy sets the isolation level back while it does. If the database has just gone, it
    lets out the driver's error, and the connection keeps its slot in the application's pool for good. Here
    what was read counts, and the slot is free again."""
    try:
        connection.close()
    except Exception as error:
        log.info("a connection was lost while it was given back to the pool: %s", error)
        pooled.detach()
        if pooled.dbapi_connection is not None:
            with suppress(Exception):
                pooled.dbapi_connection.close()


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
