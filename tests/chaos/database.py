"""A producer's own database: SQLite, with what it did and a fence.

The fence closes the race between a check and a slow local transaction (see docs/concepts.md): the local
transaction inserts a row for its id; a check inserts one that says "rolled back" unless there is a row,
and reads which of the two won. At the end the fence is the truth that the history is judged by.

Without the fence a check takes a missing row for a rollback. That is right as long as the check asks the
instance first that runs the local transaction, however long it takes.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from escrowmq import TransactionState

BUSY_TIMEOUT_S = 30.0


class FenceTaken(Exception):
    """A check came first: this local transaction must not commit any more."""


class Refused(Exception):
    """The local transaction fails for reasons of its own."""


def _nothing() -> None:
    pass


class Database:
    """Thread-safe; several processes may share the file."""

    def __init__(self, path: Path, *, fenced: bool = True) -> None:
        """``fenced``: whether a check that finds no row writes one."""
        self._fenced = fenced
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        # WAL with NORMAL: a killed process loses nothing; only a power cut could.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS fence (tx TEXT PRIMARY KEY, outcome TEXT NOT NULL) WITHOUT ROWID"
        )

    def run(
        self,
        ids: Sequence[str],
        *,
        hold_s: float = 0.0,
        fails: bool = False,
        inside: Callable[[], None] = _nothing,
    ) -> None:
        """A local transaction for these ids, all or none. ``inside`` is called just before its commit.

        Raises FenceTaken or Refused; nothing is kept then.
        """
        with self._transaction() as db:
            for tx in ids:
                try:
                    db.execute("INSERT INTO fence VALUES (?, ?)", (tx, TransactionState.COMMITTED.value))
                except sqlite3.IntegrityError as error:
                    raise FenceTaken(tx) from error
            if hold_s:
                time.sleep(hold_s)
            inside()
            if fails:
                raise Refused(ids[0])

    def outcome(self, tx: str) -> TransactionState:
        """What became of a local transaction; if it did not commit so far, it never will. Without a fence
        that is no more than a hope, and a look past whoever has the lock: WAL lets readers through."""
        if not self._fenced:
            with self._lock:
                row = self._db.execute("SELECT outcome FROM fence WHERE tx = ?", (tx,)).fetchone()
            return TransactionState.ROLLBACK if row is None else TransactionState(row[0])
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO fence VALUES (?, ?)", (tx, TransactionState.ROLLBACK.value))
            (found,) = db.execute("SELECT outcome FROM fence WHERE tx = ?", (tx,)).fetchone()
        return TransactionState(found)

    def committed(self) -> set[str]:
        """Ids of all local transactions that took place."""
        with self._lock:
            rows = self._db.execute(
                "SELECT tx FROM fence WHERE outcome = ?", (TransactionState.COMMITTED.value,)
            ).fetchall()
        return {tx for (tx,) in rows}

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            # IMMEDIATE: a transaction that begins as a reader and then writes can fail at once as busy.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
