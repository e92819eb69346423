"""An application's database in virtual time: locks, snapshots, limits, lost answers, crashes.

It understands the fence's SQL behind the fence's own interface (``feedback/database/links``), so ``Fence``
and ``Checking`` run here unchanged. It models what they rely on: an insert waits for the transaction that has
inserted or removed the same key (SQLite: for any transaction that writes), a commit makes everything visible
at one instant, and an error means what it means in the dialect's drivers.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from escrowmq.feedback.database.statements import DIALECTS
from tests.sim.environment.fibres import Fibre, Fibres
from tests.sim.environment.world import World

#: Kind -> seconds for which a local transaction waits for a lock by default; None: without limit.
KINDS = {"postgresql": None, "mariadb": 50.0, "sqlite": 5.0}
COLUMNS = ("tx_key", "app", "tx_id", "outcome", "created_ms")
#: Chance that a call (a commit) loses its connection, each on the way to the server and on the way back.
LOST, LOST_COMMIT = 0.004, 0.08
REFUSED = 0.02  # share of commits that the database rolls back and reports as rolled back
LATENCY_S, SLOW, SLOW_S = 0.001, 0.03, 0.3
NOTICED_S = 1.0  # longest time until the server notices that a client is gone, and releases its locks
_INSERT = re.compile(r"INSERT (OR IGNORE |IGNORE )?INTO (\w+) VALUES (.+?)( ON CONFLICT DO NOTHING)?$")
_SELECT = re.compile(
    r"SELECT ([\w, ]+) FROM (\w+) WHERE tx_key (?:= (:\w+)|IN \(([^)]*)\))(?: LOCK IN SHARE MODE)?$"
)
_SLICE = re.compile(r"SELECT ([\w, ]+) FROM (\w+) WHERE tx_key > :after ORDER BY tx_key LIMIT :most$")
_REMOVE = re.compile(r"DELETE FROM (\w+) WHERE tx_key IN \(([^)]*)\)$")
_LIMIT = re.compile(r"(?:lock_timeout|innodb_lock_wait_timeout|busy_timeout) = (\d+)$")
_CODES = {
    "duplicate": ("23505", 1062, "SQLITE_CONSTRAINT_PRIMARYKEY"),
    "locked": ("55P03", 1205, "SQLITE_BUSY"),
    "refused": ("40001", 1213, "SQLITE_BUSY"),
    "aborted": ("25P02", 0, ""),
    "lost": ("08006", 2013, ""),
}
Lock = tuple[str, Any]
#: Takes the place of a row that was removed.
GONE: tuple[Any, ...] = ()
#: SQLite's one lock.
ALL: Lock = ("", b"")


class ServerError(Exception):
    """An error like psycopg's (with a code) or PyMySQL's (with a number as its first argument)."""

    sqlstate: str | None = None


class Transaction:
    """A transaction of the database, open or ended."""

    def __init__(self, level: str) -> None:
        self.level, self.over, self.failed = level, False, False
        self.snapshot: int | None = None
        self.writes: dict[Lock, tuple[Any, ...]] = {}
        self.locks: list[Lock] = []


class SimDatabase:
    """The server. ``kind``: one of ``KINDS``; ``level``: the isolation level of local transactions."""

    def __init__(
        self, world: World, fibres: Fibres, calm: Callable[[], bool], kind: str, level: str = "READ COMMITTED"
    ) -> None:
        self.world, self.fibres, self.calm, self.kind, self.level = world, fibres, calm, kind, level
        self.rng = world.stream("database")
        self.locks_rows = DIALECTS[kind].locks_rows
        self.links: list[SimLink] = []
        self.down_until = 0.0
        self.crashes = 0
        self._committed: dict[Lock, tuple[int, tuple[Any, ...]]] = {}
        self._held: dict[Lock, Transaction] = {}
        self._waiting: dict[Lock, list[Fibre]] = {}
        self._commits = 0

    def error(self, what: str) -> Exception:
        """The error that a driver of this kind of database raises."""
        state, number, name = _CODES[what]
        if self.kind == "sqlite":
            error: Exception = sqlite3.OperationalError(what)
            error.sqlite_errorname = name  # type: ignore[attr-defined]
        elif self.kind == "mariadb":
            error = ServerError(number, what)
        else:
            error = ServerError(what)
            error.sqlstate = state  # type: ignore[attr-defined]
        return error

    def committed(self, table: str) -> set[Any]:
        """Keys of the committed rows."""
        return {key for (name, key), (_, row) in self._committed.items() if name == table and row}

    def crash(self) -> None:
        """The server crashes and restarts: committed rows stay."""
        self.crashes += 1
        self.down_until = self.world.now + self.rng.random()
        for link in list(self.links):
            link.cut(0.0)

    def drop(self, owner: str) -> None:
        """A client's process has died."""
        for link in list(self.links):
            if link.owner == owner:
                link.cut(0.0 if self.kind == "sqlite" else NOTICED_S * self.rng.random())

    # -------------------------------------------------------------- transactions

    def insert(
        self, tx: Transaction, lock: Lock, row: tuple[Any, ...], ignoring: bool, limit_s: float | None
    ) -> None:
        """Insert a row, after waiting for an open transaction that has inserted or removed the key."""
        until = self._begin_writing(tx, limit_s)
        while self._held.get(lock) not in (None, tx):
            self._wait(tx, lock, until)
        if not self._newest(tx, lock):
            self._take(tx, lock, until)
            tx.writes[lock] = row
        elif not ignoring:
            tx.failed = self.kind == "postgresql"
            raise self.error("duplicate")

    def remove(self, tx: Transaction, lock: Lock, limit_s: float | None) -> None:
        """Remove a row; waits like ``insert``. A missing row is no error."""
        until = self._begin_writing(tx, limit_s)
        while self._held.get(lock) not in (None, tx):
            self._wait(tx, lock, until)
        if self._newest(tx, lock):
            self._take(tx, lock, until)
            tx.writes[lock] = GONE

    def _begin_writing(self, tx: Transaction, limit_s: float | None) -> float | None:
        """The time until which the transaction waits for locks; None: no limit."""
        until = None if limit_s is None else self.world.now + limit_s
        if not self.locks_rows:
            self._take(tx, ALL, until)
        return until

    def _newest(self, tx: Transaction, lock: Lock) -> tuple[Any, ...]:
        """The row that a write of this transaction would find; ``GONE`` if there is none."""
        return tx.writes[lock] if lock in tx.writes else self._committed.get(lock, (0, GONE))[1]

    def keys(self, table: str, after: Any) -> list[Lock]:
        """The locks of rows that may exist after a key, in key order."""
        return sorted(lock for lock in self._committed if lock[0] == table and lock[1] > after)

    def _take(self, tx: Transaction, lock: Lock, until: float | None) -> None:
        while (holder := self._held.get(lock)) is not None and holder is not tx:
            self._wait(tx, lock, until)
        if self._held.get(lock) is None:
            self._held[lock] = tx
            tx.locks.append(lock)

    def _wait(self, tx: Transaction, lock: Lock, until: float | None) -> None:
        left = None if until is None else until - self.world.now
        if left is not None and left <= 0:
            tx.failed = self.kind == "postgresql"
            raise self.error("locked")
        self._waiting.setdefault(lock, []).append(self.fibres.current())
        self.fibres.wait(left)
        if tx.over:
            raise self.error("lost")

    def read(self, tx: Transaction, lock: Lock) -> tuple[Any, ...] | None:
        if tx.snapshot is None or tx.level == "READ COMMITTED":
            tx.snapshot = self._commits
        if lock in tx.writes:
            return tx.writes[lock] or None
        number, row = self._committed.get(lock, (0, ()))
        return row if row and number <= tx.snapshot else None

    def end(self, tx: Transaction, commit: bool) -> None:
        """End the transaction at one instant, and wake those that wait for its locks."""
        if tx.over:
            return
        tx.over = True
        if commit:
            self._commits += 1
            self._committed |= {lock: (self._commits, row) for lock, row in tx.writes.items()}
        for lock in tx.locks:
            del self._held[lock]
            for fibre in self._waiting.pop(lock, ()):
                self.fibres.wake(fibre)


class SimLink:
    """One connection."""

    def __init__(self, database: SimDatabase, owner: str, level: str) -> None:
        self._database, self.owner, self._level = database, owner, level
        self.dialect = DIALECTS[database.kind].name
        self.tx: Transaction | None = None
        self._gone = False
        self._limit_s = KINDS[database.kind]
        self._limit_here_s: float | None = None  # the lock limit of this transaction alone
        database.links.append(self)

    def cut(self, noticed_s: float) -> None:
        """Break the connection; its transaction ends when the server notices."""
        self._gone = True
        if self in self._database.links:
            self._database.links.remove(self)
        if self.tx is not None:
            self._database.world.later(noticed_s, self._database.end, self.tx, False)

    # -------------------------------------------------------------- what a fence needs

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        self._call(lambda: self._execute(sql, values or {}))

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = self._call(lambda: self._execute(sql, values or {}))
        return found

    def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        before = 0 if self.tx is None else len(self.tx.writes)
        self._call(lambda: self._execute(sql, values))
        return 0 if self.tx is None else len(self.tx.writes) - before

    def order(self, tx_id: str) -> None:
        """Insert the row of the business data."""
        self._call(lambda: self._insert(("orders", tx_id), (tx_id,), ignoring=False))

    def target(self) -> str | None:
        return "here"

    def refuse_autocommit(self, row: str) -> None: ...

    def refuse_savepoint(self) -> None: ...

    def refuse_failed(self) -> None: ...

    def mark(self) -> object:
        return self.tx

    def commit(self, last: Callable[[], None] = lambda: None) -> None:
        last()
        self._call(self._commit, LOST_COMMIT)

    def has_committed(self) -> bool | None:
        return None

    def rollback(self) -> None:
        self._call(lambda: self._end(False))

    def close(self) -> None:
        if not self._gone:
            self.cut(0.0)

    # -------------------------------------------------------------- at the server

    def _call(self, work: Callable[[], Any], lost: float = LOST) -> Any:
        database, rng = self._database, self._database.rng
        self._way(lost)
        if self.tx is None:
            self.tx, self._limit_here_s = Transaction(self._level), None
        if rng.random() < SLOW and not database.calm():
            self._way(0.0, SLOW_S * rng.random())
        answer = work()
        self._way(lost)
        return answer

    def _way(self, lost: float, seconds: float = LATENCY_S) -> None:
        database = self._database
        if not self._gone:
            database.fibres.wait(seconds)
        if self._gone or database.world.now < database.down_until:
            self.close()
            raise database.error("lost")
        if database.kind != "sqlite" and not database.calm() and database.rng.random() < lost:
            self.cut(NOTICED_S * database.rng.random())
            raise database.error("lost")

    def _commit(self) -> None:
        database, tx = self._database, self.tx
        assert tx is not None
        if tx.writes and not database.calm() and database.rng.random() < REFUSED:
            if database.kind != "sqlite":  # SQLite keeps the transaction open
                self._end(False)
            raise database.error("refused")
        self._end(not tx.failed)

    def _end(self, commit: bool) -> None:
        assert self.tx is not None
        self._database.end(self.tx, commit)
        self.tx = None

    def _execute(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        database, tx = self._database, self.tx
        assert tx is not None
        if tx.failed:
            raise database.error("aborted")
        if sql.startswith("SET TRANSACTION ISOLATION LEVEL "):
            tx.level = sql.removeprefix("SET TRANSACTION ISOLATION LEVEL ")
        elif found := _LIMIT.search(sql):
            limit_s = int(found[1]) / (1 if database.kind == "mariadb" else 1000)
            if sql.startswith("SET LOCAL"):
                self._limit_here_s = limit_s
            else:
                self._limit_s = limit_s
        elif sql in ("SELECT @@SESSION.innodb_lock_wait_timeout", "PRAGMA busy_timeout"):
            return [(int((self._limit_s or 0) * (1 if database.kind == "mariadb" else 1000)),)]
        elif sql.startswith(("SELECT nspname FROM pg_class ", "SELECT table_schema FROM information_schema")):
            return []  # there is one schema: the name without it is good everywhere
        elif found := _INSERT.match(sql):
            for part in re.findall(r"\(([^)]*)\)", found[3]):
                row = tuple(values[v[1:]] if v[0] == ":" else int(v) for v in part.split(", "))
                self._insert((found[2], row[0]), row, ignoring=bool(found[1] or found[4]))
        elif found := _SELECT.match(sql):
            wanted = [COLUMNS.index(name) for name in found[1].split(", ")]
            keys = [values[name[1:]] for name in (found[3] or found[4]).split(", ")]
            rows = [database.read(tx, (found[2], key)) for key in keys]
            return [tuple(row[at] for at in wanted) for row in rows if row is not None]
        elif found := _SLICE.match(sql):
            wanted = [COLUMNS.index(name) for name in found[1].split(", ")]
            seen = (database.read(tx, lock) for lock in database.keys(found[2], values["after"]))
            rows = [row for row in seen if row is not None][: values["most"]]
            return [tuple(row[at] for at in wanted) for row in rows]
        elif found := _REMOVE.match(sql):
            for name in found[2].split(", "):
                database.remove(tx, (found[1], values[name[1:]]), self._lock_limit_s())
        else:
            assert sql.startswith("SET LOCAL synchronous_commit"), f"the simulated database knows no {sql}"
        return []

    def _insert(self, lock: Lock, row: tuple[Any, ...], ignoring: bool) -> None:
        assert self.tx is not None
        self._database.insert(self.tx, lock, row, ignoring, self._lock_limit_s())

    def _lock_limit_s(self) -> float | None:
        return self._limit_s if self._limit_here_s is None else self._limit_here_s


class Access:
    """One process's access to the database, as it is given to its fence."""

    def __init__(self, database: SimDatabase, owner: str) -> None:
        self._database, self._owner = database, owner
        self.dialect = DIALECTS[database.kind].name

    @contextmanager
    def _open(self, level: str) -> Iterator[SimLink]:
        link = SimLink(self._database, self._owner, level)
        try:
            yield link
        finally:
            link.close()

    @contextmanager
    def checking(self) -> Iterator[SimLink]:
        with self._open("READ COMMITTED") as link:
            yield link

    @contextmanager
    def opening(self) -> Iterator[tuple[Any, SimLink]]:
        with self._open(self._database.level) as link:
            yield link, link

    def link(self, given: Any) -> SimLink:
        assert isinstance(given, SimLink)
        return given
