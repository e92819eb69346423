"""The fence: a ready-made querier, free of the race between a check and a slow local
transaction.

A row says which came first. The local transaction inserts it as its first statement, so a check that comes
while it runs waits for it (the primary key makes it wait) instead of ending it. A check that comes earlier
inserts the row itself, and the local transaction then fails on it. Neither can be misled by "no row yet",
because no decision is ever based on the absence of a row.

It must never answer from anything but a committed row, and never write a row COMMITTED outside the
application's transaction.
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from escrowmq.feedback.database import statements as rows
from escrowmq.feedback.database.durability import refuse_another_transaction, warn_of_lost_commits
from escrowmq.feedback.database.errors import AlreadyDone, DatabaseMisused, FenceLost, WrongDatabase
from escrowmq.feedback.database.failures import StatementFailure, certainly_rolled_back, explained, failure_of
from escrowmq.feedback.database.links import Link, file_of
from escrowmq.feedback.database.opening import database_of
from escrowmq.feedback.database.producing import (
    Ask,
    ProducedTransaction,
    Producing,
    TransactionBlock,
    guard_all,
    guard_repeated,
    may_repeat,
    named_by,
    note_known,
    refuse_unprepared,
    undecided,
)
from escrowmq.feedback.database.purging import (
    Audited,
    OpenTransactions,
    Purged,
    TransactionStates,
    audit,
    purge,
)
from escrowmq.feedback.database.statements import KEYS_MAX, Statements, dialect_of, quotable
from escrowmq.feedback.states import TransactionState, TxStatusQuerier
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.model import Message

# ------------------------------------------------------------------------------------------------------------
# A check's statements: write "rolled back" where there is no row yet, then read which row exists.
#
# An outcome that a check reports has been committed before, by another transaction or by the check itself.
# What it has only read may be on this server alone: a primary that was killed while a commit waited for its
# standby comes back with that row. So it writes something too, whose commit waits as any other does, and
# answers then.
#
# It looks first whether this is the database that it is asked about, on the connection on which it answers.
# It waits for rows that a local transaction has written and not yet committed, up to a limit; after that the
# answer is UNKNOWN, which is repeated later.

#: In a call for many checks, each piece waits this share of the limit for a locked row, then is halved: one
#: local transaction must not delay the others. All pieces together wait no longer than about the
#: limit.
PIECES = 8


class Checking:
    """The checks of one table and app."""

    def __init__(self, statements: Statements, app: str, limit_s: float, clock: Callable[[], float]) -> None:
        self._statements, self._app, self._limit_s, self._clock = statements, app, limit_s, clock

    def states(self, link: Link, tx_ids: Sequence[str], own: bytes | None = None) -> list[TransactionState]:
        """A state for each, in order. ``own``: the name that the table must have; with another one, or
        without any, nothing is written there, and it raises WrongDatabase."""
        by_key = {rows.key_of(self._app, tx_id): tx_id for tx_id in tx_ids}
        keys = sorted(by_key)
        found: dict[bytes, int] = {}
        with_limit = _LimitOf(link, self._statements)
        try:
            for at in range(0, len(keys), KEYS_MAX):
                self._settle(link, keys[at : at + KEYS_MAX], by_key, found, own)
        except WrongDatabase:
            link.rollback()
            raise
        finally:
            with_limit.restore()
        return [rows.state_of(found.get(rows.key_of(self._app, tx_id))) for tx_id in tx_ids]

    def outcome(self, link: Link, key: bytes) -> int | None:
        """What the row says; None: there is no committed one."""
        outcome = dict(self._read(link, [key])).get(key)
        if outcome is not None:
            self._wait_as_a_commit(link)
        link.commit()
        return outcome

    def name_database(self, link: Link) -> bytes:
        """The random name in the table; written now if there is none."""
        found = identity(link, self._statements)
        if found is None:
            self._write_name(link)
            link.commit()
            found = identity(link, self._statements)
        link.commit()
        assert found is not None
        return found

    def name_within(self, link: Link) -> bytes:
        """The same in the transaction that is open, and stays so: if it rolls back, so does the name."""
        self._write_name(link)  # before any reading: a snapshot could not be written from
        found = identity(link, self._statements)
        assert found is not None
        return found

    def _write_name(self, link: Link) -> None:
        name = {
            "key": rows.IDENTITY_KEY,
            "app": b"",
            "tx_id": uuid.uuid4().hex.encode(),
            "created_ms": int(self._clock() * 1000),
        }
        link.run(self._statements.name, name)

    def _settle(
        self,
        link: Link,
        keys: Sequence[bytes],
        by_key: dict[bytes, str],
        found: dict[bytes, int],
        own: bytes | None,
    ) -> None:
        """Fill ``found`` for these keys, except those that stay locked."""
        if len(keys) > 1:  # usually most rows exist already: nothing needs to wait for those
            self._begin(link, self._limit_s, own)
            read = self._read(link, keys)
            if read:
                self._wait_as_a_commit(link)
            link.commit()
            found.update(read)
        pieces: list[Sequence[bytes]] = [[key for key in keys if key not in found]]
        began, waits = self._clock(), 0
        while pieces:
            piece = pieces.pop(0)
            if not piece:
                continue
            alone = len(piece) == len(keys) == 1
            try:
                found.update(self._block(link, piece, by_key, self._limit_s / (1 if alone else PIECES), own))
            except WrongDatabase:
                raise
            except Exception as error:
                link.rollback()
                if failure_of(error) is not StatementFailure.LOCKED:
                    raise
                waits += 1
                late = self._clock() - began >= self._limit_s
                if late or waits >= PIECES or not self._statements.dialect.locks_rows:
                    return
                if len(piece) > 1:
                    pieces += rows.halves(piece)

    def _block(
        self,
        link: Link,
        keys: Sequence[bytes],
        by_key: dict[bytes, str],
        limit_s: float,
        own: bytes | None,
    ) -> dict[bytes, int]:
        self._begin(link, limit_s, own)
        blocking = [(key, by_key[key].encode()) for key in keys]
        inserted = link.changed(
            *self._statements.block(blocking, self._app.encode(), int(self._clock() * 1000))
        )
        read = self._read(link, keys)
        if read and inserted <= 0:
            self._wait_as_a_commit(link)
        link.commit()
        return read

    def _begin(self, link: Link, limit_s: float, own: bytes | None) -> None:
        for statement in self._statements.begin_check(limit_s):
            link.run(statement)
        if own is None:
            return
        read = link.rows(self._statements.identity_now, {"key": rows.IDENTITY_KEY})
        found = bytes(read[0][0]) if read else None
        if found != own:
            raise WrongDatabase(
                f"the table {self._statements.table} where this connection leads ({link.target()}) is of "
                f"another database: its name is {_shown(found)}, and these checks are of {_shown(own)}. A "
                "database, schema or search path differs between who prepares and who answers, or the table "
                "was made anew"
            )
        if not self._statements.dialect.locks_rows:  # a transaction of SQLite that has read may not write
            link.commit()

    def _wait_as_a_commit(self, link: Link) -> None:
        """Write a row of no meaning, and remove it again. A transaction that only reads waits for no standby.
        How old the row is that was read does not matter: a primary may come back after days."""
        if not self._statements.dialect.has_standbys:
            return
        key = secrets.token_bytes(32)  # each its own: none waits for another one
        passing = {"key": key, "app": b"", "tx_id": b"", "created_ms": int(self._clock() * 1000)}
        link.run(self._statements.enter, passing)
        link.run(*self._statements.remove([key]))

    def _read(self, link: Link, keys: Sequence[bytes]) -> dict[bytes, int]:
        return {bytes(key): int(outcome) for key, outcome in link.rows(*self._statements.read(keys))}


def identity(link: Link, statements: Statements) -> bytes | None:
    """The random name of the database that a link leads to; None: it has none yet."""
    found = link.rows(statements.identity, {"key": rows.IDENTITY_KEY})
    return bytes(found[0][0]) if found else None


def _shown(name: bytes | None) -> str:
    return "none" if name is None else name.decode(errors="replace")


class _LimitOf:
    """Saves and restores the connection's own wait limit: the next user of a pooled connection must not
    inherit a check's."""

    def __init__(self, link: Link, statements: Statements) -> None:
        self._link, self._dialect, self._limit = link, statements.dialect, 0
        if self._dialect.limit_of is not None:
            self._limit = int(link.rows(self._dialect.limit_of)[0][0])

    def restore(self) -> None:
        if self._dialect.restore_limit is not None:
            self._link.run(self._dialect.restore_limit.format(limit=self._limit))
            self._link.commit()


log = logging.getLogger(__name__)

#: The table's name, unless another is given.
TABLE = "escrowmq_fence"
#: How long a check waits for a local transaction that is still running; then it returns UNKNOWN and is
#: repeated. Well below ``query_timeout_s`` (5 s), after which the check would count as hanging.
LOCK_TIMEOUT_S = 2.0
#: How many targets are remembered as the fence's database; other connections are checked again.
TARGETS_MAX = 256
#: What is larger is taken for milliseconds, which an audit would read as a time without rows.
SECONDS_MAX = 1e11


class Fence(TxStatusQuerier):
    """Ties local transactions of one database to the transactions of one app, and answers their checks.

    ::

        fence = Fence(create_engine(url), app="shop")
        fence.create_table()                               # or put fence.schema() into a migration
        producer = cluster.producer(app="shop", tx_status_querier=fence)
        with fence.transaction(producer, [Message("orders", b"...")], query_id="42") as (tx, db):
            db.execute(text("insert into orders ..."))     # both happen, or neither does

    ``database``: an Engine or a sessionmaker of SQLAlchemy 2 (the block then gets a Connection or a
    Session), or a function that opens a DB-API connection of sqlite3, psycopg or PyMySQL. It must lead to
    the *primary* of the database that the local transactions change. A database that fails over
    asynchronously can lose the row together with the transaction, and no fence helps against that.

    Raises DatabaseMisused for arguments that cannot work: an asynchronous engine (use ``AsyncFence``), an
    in-memory database, any database other than SQLite, PostgreSQL, MariaDB or MySQL. Thread-safe. Source of
    the rules: SEMANTICS 5.1.
    """

    def __init__(
        self,
        database: Any,
        *,
        app: str,
        table: str = TABLE,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``app``: the producer's app, a part of every key. ``lock_timeout_s``: see ``LOCK_TIMEOUT_S``.
        ``clock``: seconds since the epoch; used only to decide when a row may be purged."""
        if type(app) is not str or not app:
            raise DatabaseMisused(f"app must be the name of the producer's app, not {app!r:.80}")
        if not 0 < lock_timeout_s <= 60:
            raise DatabaseMisused(f"lock_timeout_s must be above 0 and at most 60, not {lock_timeout_s!r}")
        self.app, self._clock = app, clock
        self._database = database_of(database)
        self.statements = Statements(dialect_of(self._database.dialect), table)
        self._schema, self._lock_timeout_s = self.statements.create, lock_timeout_s
        self._checking = Checking(self.statements, app, lock_timeout_s, clock)
        self._identity: bytes | None = None
        self._targets: set[str] = set()
        #: The table's schema cannot be written into statements, so each transaction may lead to another one.
        self._elsewhere = False
        #: How a producer asks before it decides; an asynchronous fence has another way.
        self.ask: Ask = self.query_statuses

    # ------------------------------------------------------------ the table

    def schema(self) -> str:
        """The statement that creates the table, for a migration. Running it again is harmless."""
        return self._schema

    def create_table(self) -> None:
        """Create the table, if it does not exist. Needs the right to create tables."""
        with self._database.checking() as link:
            link.run(self._schema)
            link.commit()
            warn_of_lost_commits(link, "fence", self.statements.table)
        self.learn_identity()

    # ------------------------------------------------------------ local transactions

    @contextmanager
    def transaction(
        self,
        producer: Producing,
        messages: Message | Sequence[Message],
        *,
        query_id: str | None = None,
        tx_id: str | None = None,
        transaction_timeout_s: float | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Messages and a database transaction together: yields (transaction, connection or session).

        Prepares the messages, begins the database transaction with the fence's row, runs the block, commits
        the database, then the messages. An exception in the block rolls both back. Do not commit or roll
        back inside the block: leaving it does. If the block did, OutcomeUnknown says so in a note.

        Raises what ``prepare`` raises (then nothing has happened); FenceLost if a check came first (both are
        rolled back); AlreadyDone if a local transaction of this ``tx_id`` committed before (the messages are
        committed, the block is not run); OutcomeUnknown if the answer to the database's commit, or to the
        broker's, was lost: then never repeat it under another id, since the check carries out what the
        database says. With a ``tx_id`` of your own an earlier attempt may have committed: then any failure,
        also DatabaseMisused, is OutcomeUnknown if the database cannot be asked about that.
        """
        if producer.app != self.app:
            raise DatabaseMisused(f"the fence is for app {self.app!r}, the producer for {producer.app!r}")
        block: TransactionBlock = producer.transaction(
            query_id, tx_id, transaction_timeout_s=transaction_timeout_s
        )
        begun = False
        with block as tx:
            tx.send(*([messages] if isinstance(messages, Message) else messages))
            tx.prepare()
            begun = True
            try:
                with self.local(tx) as db:
                    yield tx, db
            except AlreadyDone as done:
                if done.tx_id == tx.tx_id:
                    tx.commit()
                raise
        if not begun:  # the broker has it as committed: prepare() leaves the block without an error
            raise AlreadyDone(block.tx_id)

    @contextmanager
    def local(self, tx: ProducedTransaction) -> Iterator[Any]:
        """Only the database's half, for ``send_message_in_transaction(messages, local_transaction)``::

            def store(tx):
                with fence.local(tx) as db:
                    db.execute(...)
            producer.send_message_in_transaction(Message("orders", b"..."), store)

        ``tx`` must be prepared. Raises as ``transaction`` does; OutcomeUnknown (and AlreadyDone, a subclass)
        leaves the producer's transaction to the check.
        """
        refuse_unprepared(tx)
        self.guard_early(tx)
        try:
            self.learn_identity()
            with self._database.opening() as (db, link):
                entered_ms = self._enter(link, tx)
                with self._ending(link, tx, entered_ms):
                    yield db
        except (FenceLost, OutcomeUnknown):
            raise
        except Exception as error:  # DatabaseMisused too: the first attempt's set-up may have been right
            if may_repeat(tx):
                self.raise_unless_rolled_back(tx.tx_id, error, named_by(tx))
                note_known(tx, TransactionState.ROLLBACK)
            raise

    def guard_early(self, *transactions: ProducedTransaction) -> None:
        """Before anything is written, those that may be repetitions; the answers of another table than theirs
        would roll back what an earlier run has committed."""
        own = self._identity
        known = own is not None and all(named_by(tx) in (b"", rows.short_name(own)) for tx in transactions)
        guard_repeated(transactions, self.ask if known else undecided)

    def raise_unless_rolled_back(self, tx_id: str, error: Exception, named: bytes = b"") -> None:
        """After a failed attempt with an id chosen by the application: an earlier attempt, or another
        process, may have committed its local transaction, or may still do so. So a failure here does not roll
        back the messages until the database says "rolled back" for good, as it would to a check. ``named``:
        the table that has the word; another one is not asked.

        Raises AlreadyDone, or OutcomeUnknown if the database cannot be asked or another attempt is
        running."""
        try:
            self._refuse_name(tx_id, named, self.learn_identity())
            state = self.query_status(tx_id, "")
        except Exception as unreadable:
            error.add_note(f"(escrowmq: the fence's row cannot be read: {unreadable})")
            state = TransactionState.UNKNOWN
        if state is TransactionState.COMMITTED:
            raise AlreadyDone(tx_id) from error
        if state is TransactionState.UNKNOWN:
            raise OutcomeUnknown(tx_id) from error

    def enter(self, db: Any, *transactions: ProducedTransaction) -> None:
        """Write the fence's rows into a database transaction of your own: after ``tx.prepare()``, as its
        first statement, and before any savepoint.

        ``db``: a Connection or Session of SQLAlchemy, or a DB-API connection. Several transactions, those of
        ``send_transactions``, may share one database transaction. Raises FenceLost, AlreadyDone: roll back
        the database transaction. Raises DatabaseMisused: a connection in autocommit, to another database, or
        without the table; or entered twice. Commit with ``fence.commit(db, tx)``, which distinguishes a lost
        answer from a refusal.
        """
        self.entered(db, *transactions)

    def entered(self, db: Any, *transactions: ProducedTransaction) -> int:
        """As ``enter``; returns the time in the rows, which ``commit`` recognises its own by."""
        return self._enter(self._database.link(db), *transactions)

    def commit(self, db: Any, tx: ProducedTransaction) -> None:
        """Commit the database transaction. Raises OutcomeUnknown if the answer was lost, so that the
        messages are left to the check; the driver's own error if the database has certainly rolled back.
        Raises NoDatabaseTransaction, and rolls back, if the database had done so at an earlier statement."""
        self.commit_entered(db, tx, None)

    def commit_entered(self, db: Any, tx: ProducedTransaction, entered_ms: int | None) -> None:
        """As ``commit``, for the row that ``entered`` has written."""
        self._commit(self._database.link(db), tx, entered_ms)

    def _enter(self, link: Link, *transactions: ProducedTransaction) -> int:
        refuse_unprepared(*transactions)
        self.guard_early(*transactions)
        link.refuse_savepoint()
        link.refuse_autocommit("the fence's row")
        own = self._identity or self._identity_for(link)
        for tx in transactions:
            self._refuse_name(tx.tx_id, named_by(tx), own)
        guard_repeated(transactions, self.ask)
        now_ms = int(self._clock() * 1000)
        # In the order of their keys, as checks do: so transactions that share keys cannot deadlock.
        for key, tx_id in sorted((rows.key_of(self.app, tx.tx_id), tx.tx_id) for tx in transactions):
            try:
                link.run(self.statements.enter, self._row(key, tx_id, now_ms))
            except Exception as error:
                if failure_of(error) is StatementFailure.DUPLICATE:
                    raise self._lost_to(key, tx_id, error) from error
                raise self.explained(error) from error
        self._refuse_other_database(link, own)
        guard_all(transactions, self.ask)
        return now_ms

    @staticmethod
    def _refuse_name(tx_id: str, named: bytes, own: bytes) -> None:
        if named and named != rows.short_name(own):
            raise WrongDatabase(
                f"the checks of transaction {tx_id!r} go to the table {named.hex()}, which its producer's "
                f"querier has, and this fence's table is {rows.short_name(own).hex()}: give each database a "
                "producer of its own, with the fence as its querier"
            )

    def _row(self, key: bytes, tx_id: str, now_ms: int) -> dict[str, Any]:
        return {
            "key": key,
            "app": self.app.encode(),
            "tx_id": tx_id.encode(),
            "created_ms": now_ms,
        }

    def _lost_to(self, key: bytes, tx_id: str, error: Exception) -> Exception:
        """The row exists: who was first? Read on another connection, since PostgreSQL has aborted this
        transaction, and since its snapshot may not show the row."""
        try:
            with self._database.checking() as link:
                outcome = self._checking.outcome(link, key)
        except Exception as unreadable:
            unknown = OutcomeUnknown(tx_id)
            unknown.add_note(f"(the fence's row exists, but cannot be read: {unreadable})")
            return unknown
        if outcome is None:
            return DatabaseMisused(
                f"transaction {tx_id!r} was entered before in this same database transaction: enter it once"
            )
        return AlreadyDone(tx_id) if outcome == rows.COMMITTED else FenceLost(tx_id)

    def explained(self, error: Exception) -> Exception:
        """The error itself, or a typed one that says what to do."""
        return explained(
            error, "fence", self.statements.table, "the database that the local transactions change"
        )

    def _refuse_other_database(self, link: Link, own: bytes) -> None:
        """Called after writing the fence's row, which must be the first statement; once for each target."""
        target = None if self._elsewhere else link.target()
        if target is not None and target in self._targets:
            return
        if identity(link, self.statements) != own:
            raise WrongDatabase(
                f"the connection leads to another database ({link.target()}) than the one that answers "
                "checks: the row in it would protect nothing. Pass Fence the engine of the database that the "
                "local transactions change"
            )
        if target is not None:
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets.add(target)

    def learn_fence(self) -> bytes:
        """See ``TxStatusQuerier``."""
        self.fence = rows.short_name(self.learn_identity())
        return self.fence

    def adopt(self, other: Fence) -> None:
        """From now on know what a fence of the same table, over other connections, has found out."""
        self.statements, self._checking = other.statements, other._checking
        self._elsewhere, self._identity = other._elsewhere, other._identity

    def over(self, database: Any) -> Fence:
        """A fence of the same table over other connections; checks through it see whether they lead there."""
        fence = copy.copy(self)
        fence._database, fence._targets = database_of(database), set()
        return fence

    @property
    def learned(self) -> bytes | None:
        """The name of the fence's own database, if it is known in this process."""
        return self._identity

    @property
    def knows_identity(self) -> bool:
        """Whether the name of the fence's own database is known in this process."""
        return self._identity is not None

    def learn_identity(self) -> bytes:
        """Read the name of the fence's own database, or write it: a table that a migration has created has
        none yet. On a separate connection, before the local transaction has locks that could be in the way.

        Raises what the database raises, such as "locked" by another process: nothing has happened then."""
        if self._identity is None:
            try:
                with self._database.checking() as link:
                    self._find_schema(link)
                    self._identity = self._checking.name_database(link)
            except Exception as error:
                raise self.explained(error) from error
        return self._identity

    def _find_schema(self, link: Link) -> None:
        """Name the table with its schema from now on: a local transaction may have another search path than
        checks have, and lead to a table of the same name."""
        plain = self.statements  # another thread may find the schema at the same time
        found = link.rows(*plain.schema_of) if plain.schema_of else []
        if not found:
            return
        self._elsewhere = not quotable(schema := str(found[0][0]))
        if not self._elsewhere:
            self.statements = Statements(plain.dialect, plain.table, schema)
            self._checking = Checking(self.statements, self.app, self._lock_timeout_s, self._clock)

    def _identity_for(self, local: Link) -> bytes:
        """The same for ``enter``, where SQLite's one lock may be that of the application's transaction. So
        in SQLite that one writes the name itself, if it leads to the same file. Such a name is not
        remembered before it is committed."""
        if self.statements.dialect.locks_rows:
            return self.learn_identity()
        try:
            with self._database.checking() as link:
                same = self._same_file(link, local)
                found = identity(link, self.statements)
        except Exception as error:
            raise self._own_lock(local, error) from error
        if found is not None:
            self._identity = found
            return found
        if not same:
            return self.learn_identity()
        try:
            return self._checking.name_within(local)
        except Exception as error:
            raise self.explained(error) from error

    def _own_lock(self, local: Link, error: Exception) -> Exception:
        """The table cannot be read: is that the lock of the application's own transaction?"""
        if failure_of(error) is not StatementFailure.LOCKED:
            return self.explained(error)
        try:
            self._checking.name_within(local)
        except Exception:  # it cannot write either: the lock is another process's
            return error
        return DatabaseMisused(
            f"this transaction's own lock keeps the fence from reading the table {self.statements.table}: "
            "run fence.create_table() at the start of each process"
        )

    def _same_file(self, link: Link, local: Link) -> bool:
        """Whether both lead to the same database of SQLite."""
        if self.statements.dialect.locks_rows or local.dialect != link.dialect:
            return False
        schema = self.statements.table.rpartition(".")[0] or "main"
        file = file_of(link, schema)
        return bool(file) and file == file_of(local, schema)

    @contextmanager
    def _ending(self, link: Link, tx: ProducedTransaction, entered_ms: int) -> Iterator[None]:
        """Commit at the end of a block, roll back after an exception; neither if the block did so itself."""
        mark = link.mark()
        try:
            yield
        except BaseException as error:
            if link.mark() != mark and isinstance(error, Exception):
                raise self.ended_inside(tx) from error
            try:
                link.rollback()
            except Exception as broken:  # the connection is gone, and so is the transaction
                error.add_note(f"(escrowmq: the database's rollback failed: {broken})")
            raise
        if link.mark() != mark:
            raise self.ended_inside(tx)
        self._commit(link, tx, entered_ms)

    @staticmethod
    def ended_inside(tx: ProducedTransaction) -> OutcomeUnknown:
        """The error for a block that ended its transaction itself: the check finds out the outcome."""
        unknown = OutcomeUnknown(tx.tx_id)
        unknown.add_note(
            "(the database transaction was committed or rolled back inside the fence's block; the check "
            "carries out what it did. Do not commit or roll back inside the block: leaving it does)"
        )
        return unknown

    def _commit(self, link: Link, tx: ProducedTransaction, entered_ms: int | None) -> None:
        key = rows.key_of(self.app, tx.tx_id)
        # By hand the time is not known; but then no two attempts of an id may run at the same time.
        written = (rows.COMMITTED,) if entered_ms is None else (rows.COMMITTED, entered_ms)
        own = self.statements.own
        try:
            link.commit(lambda: refuse_another_transaction(link, "fence", own, key, written))
        except Exception as error:
            committed = link.has_committed()
            if committed:  # what came after it has failed: a hook, another database of the session
                note_known(tx, TransactionState.COMMITTED)
                raise self._failed_after(tx) from error
            # A link that finds a mistake does so before it commits.
            refused = committed is False or certainly_rolled_back(error) or isinstance(error, DatabaseMisused)
            if not refused:
                raise OutcomeUnknown(tx.tx_id) from error
            link.rollback()
            raise
        note_known(tx, TransactionState.COMMITTED)

    @staticmethod
    def _failed_after(tx: ProducedTransaction) -> AlreadyDone:
        done = AlreadyDone(tx.tx_id)
        done.add_note("(the database has committed; the error that this one was raised from came after that)")
        return done

    # ------------------------------------------------------------ checks

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        """COMMITTED or ROLLBACK for good; UNKNOWN while a local transaction of this id is still running.
        Raises WrongDatabase, or what the database raises: then nothing was looked up."""
        return self.query_statuses([(tx_id, query_id)])[0]

    def query_statuses(self, checks: list[tuple[str, str]]) -> Sequence[TransactionState]:
        """The same for many: two statements for up to 1,000 of them, a few more if some are locked."""
        return self.answers(checks, self.learn_identity())

    def answers(self, checks: Sequence[tuple[str, str]], own: bytes) -> Sequence[TransactionState]:
        """The same, if the table that a check's connection leads to has the name ``own``; else raises
        WrongDatabase."""
        try:
            with self._database.checking() as link:
                return self._checking.states(link, [tx_id for tx_id, _ in checks], own)
        except Exception as error:
            raise self.explained(error) from error

    # ------------------------------------------------------------ old rows

    def purge(
        self,
        admin: OpenTransactions,
        *,
        keep_s: float = rows.KEEP_S,
        slice_rows: int = 1000,
        pause_s: float = 0.01,
        told: Callable[[Purged], None] = lambda so_far: None,
    ) -> Purged:
        """Remove rows of the app that are ``keep_s`` old and older than its oldest open transaction.

        ``admin``: ``cluster.admin``. The whole table is read in slices of ``slice_rows``, each a short
        transaction of its own, with a pause between them; once a day is enough. Ids of your own must not be
        reused after their row is gone. ``told`` is called after each slice with the progress.
        """
        if keep_s < 3600:
            raise DatabaseMisused(
                f"keep_s must be an hour or more, not {keep_s!r}: a row protects for as long"
            )
        if not 1 <= slice_rows <= 1000:
            raise DatabaseMisused(f"slice_rows must be from 1 to 1000, not {slice_rows!r}")
        now_ms = int(self._clock() * 1000)
        try:
            with self._database.checking() as link:
                return purge(
                    link, self.statements, self.app, admin, now_ms, keep_s, slice_rows, pause_s, told
                )
        except Exception as error:
            raise self.explained(error) from error

    def audit(self, admin: TransactionStates, since: float, *, slice_rows: int = 1000) -> Audited:
        """Compare the app's rows since ``since`` (seconds since the epoch, as of ``time.time()``) with what
        the broker has recorded.

        ``admin``: ``cluster.admin``. A difference is a transaction that an operator decided differently from
        the database, or the trace of a database that lost a commit (a fail-over, a restored backup). The
        table is read in slices while the system runs. Raises Unavailable, and what the database raises.
        """
        given: object = since
        if not isinstance(given, int | float) or not 0 <= given < SECONDS_MAX:
            raise DatabaseMisused(
                "since must be seconds since the epoch, such as time.time() - 7 * 86_400, or the timestamp() "
                f"of a datetime, not {since!r:.80}"
            )
        if not 1 <= slice_rows <= 1000:
            raise DatabaseMisused(f"slice_rows must be from 1 to 1000, not {slice_rows!r}")
        try:
            with self._database.checking() as link:
                return audit(link, self.statements, self.app, admin, int(since * 1000), slice_rows)
        except Exception as error:
            raise self.explained(error) from error
