"""The application's database: a real SQLite whose connections stand still between any two statements, fail,
and are cut; that is restored from its backups; and in which rows appear later than others with higher ids.

SQLite has one writer at a time, so such rows cannot come about by themselves. ``LateRows`` has the outbox
insert them, takes them out again, and puts them back with the ids that they had been given: what other
databases do when a transaction commits after one that began later.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from escrowmq import Message
from escrowmq.feedback.database.links import DriverLink, Link
from escrowmq.feedback.database.outbox import OUTBOX_TABLE, Outbox
from tests.relays.turns import Turns

#: Chance that a commit fails without having been carried out, and that it is carried out without an answer.
FAILS, UNANSWERED = 0.01, 0.01
LOCK_TURNS = 30
T = TypeVar("T")


class Gone(sqlite3.OperationalError):
    """The connection is cut."""


class SteppedLink:
    """A connection of a process. Its transaction ends, without effect, when it is cut."""

    def __init__(self, inner: DriverLink, database: SteppedDatabase, owner: str) -> None:
        self._inner, self._database, self.owner = inner, database, owner
        self.dialect, self.cut = inner.dialect, False

    def _before(self) -> None:
        self._database.turns.pause()
        if self.cut:
            raise Gone("the server has closed the connection")

    def refuse_autocommit(self, row: str) -> None:
        self._inner.refuse_autocommit(row)

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        self._patiently(lambda: self._inner.run(sql, values))

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        return self._patiently(lambda: self._inner.rows(sql, values))

    def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        return self._patiently(lambda: self._inner.changed(sql, values))

    def commit(self) -> None:
        luck = self._database.luck()
        if luck < FAILS:
            self._before()
            self._inner.rollback()
            raise Gone("lost before the commit")
        self._patiently(self._inner.commit)
        if luck > 1 - UNANSWERED:
            raise Gone("lost after the commit")

    def _patiently(self, call: Callable[[], T]) -> T:
        """A lock is waited for, for some turns."""
        for _ in range(LOCK_TURNS):
            self._before()
            try:
                return call()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or not self.owner:
                    raise
        raise Gone("the lock is held for too long")

    def rollback(self) -> None:
        if not self.cut:
            self._inner.rollback()

    def break_off(self) -> None:
        """The server gives the client up."""
        if not self.cut:
            self.cut = True
            self._inner.rollback()


class SteppedDatabase:
    """See ``Database``. ``luck``: from 0 to 1, for what goes wrong with a commit; 0.5 in calm times."""

    dialect = "sqlite"

    def __init__(self, path: Path, turns: Turns, rng: random.Random) -> None:
        self.path, self.turns, self._rng = path, turns, rng
        self.calm = True  # until the schedule begins
        self._links: list[SteppedLink] = []
        with self.connection() as made:
            made.execute("PRAGMA journal_mode=MEMORY")

    def luck(self) -> float:
        return 0.5 if self.calm else self._rng.random()

    def connect(self) -> sqlite3.Connection:
        """A plain connection: a lock that another one holds is an error at once."""
        made = sqlite3.connect(self.path, timeout=0, check_same_thread=False)
        made.execute("PRAGMA synchronous=OFF")
        return made

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        made = self.connect()
        try:
            yield made
        finally:
            made.close()

    @contextmanager
    def _open(self) -> Iterator[tuple[sqlite3.Connection, SteppedLink]]:
        with self.connection() as made:
            link = SteppedLink(DriverLink(made), self, self.turns.current)
            self._links.append(link)
            try:
                yield made, link
            finally:
                self._links.remove(link)

    @contextmanager
    def checking(self) -> Iterator[Link]:
        with self._open() as (_, link):
            yield link  # type: ignore[misc]

    @contextmanager
    def opening(self) -> Iterator[tuple[Any, Link]]:
        with self._open() as (made, link):
            yield made, link  # type: ignore[misc]

    def link(self, given: Any) -> Link:
        return DriverLink(given)

    # ------------------------------------------------------------ what happens to it

    def cut(self, owner: str | None = None) -> None:
        """The connections of a process, or all."""
        for link in list(self._links):
            if owner in (None, link.owner):
                link.break_off()

    def backup(self, to: Path) -> None:
        """What is committed now."""
        with self.connection() as source, sqlite3.connect(to) as target:
            source.backup(target)
        target.close()

    def restore(self, backup: Path) -> None:
        """The database of then, in place of this one."""
        self.cut()
        copy = self.path.with_suffix(".restored")
        shutil.copy(backup, copy)
        os.replace(copy, self.path)


class LateRows:
    """Transactions that have their ids and are not committed yet."""

    def __init__(self, database: SteppedDatabase, outbox: Outbox) -> None:
        self._database, self._outbox = database, outbox
        self.open: list[tuple[list[str], list[Sequence[Any]]]] = []

    def begin(self, values: list[str], messages: Sequence[Message]) -> None:
        with self._database.connection() as db:
            highest = f"SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = '{OUTBOX_TABLE}'"
            ((before,),) = db.execute(highest)
            self._outbox.send(db, *messages)
            rows = db.execute(f"SELECT * FROM {OUTBOX_TABLE} WHERE id > ?", (before,)).fetchall()
            # The ids are given, whatever becomes of the transaction.
            db.execute(f"DELETE FROM {OUTBOX_TABLE} WHERE id > ?", (before,))
            db.commit()
        self.open.append((values, rows))

    def commit(self, at: int, done: Callable[[list[str]], None]) -> None:
        values, rows = self.open[at]
        with self._database.connection() as db:
            marks = ", ".join("?" * len(rows[0]))
            db.executemany(f"INSERT INTO {OUTBOX_TABLE} VALUES ({marks})", rows)
            db.commit()
        del self.open[at]
        done(values)
