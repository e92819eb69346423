"""A producer's own database: SQLite with the product's fence. At the end it shows what took place.

Without the fence a check treats a missing row as a rollback. That is right as long as the check first asks
the instance that runs the local transaction, however long that takes.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from escrowmq import TransactionState
from escrowmq.integrations import Fence
from tests.support.shops import Tx

BUSY_TIMEOUT_S = 30.0
APP = "chaos"  # each app has its own file, so the name is the same in all of them


class Refused(Exception):
    """The local transaction refuses, as business code may."""


def _nothing() -> None:
    pass


class Database:
    """Thread-safe; several processes may share the file."""

    def __init__(self, path: Path, *, fenced: bool = True) -> None:
        """``fenced``: whether a check that finds no row writes one."""

        def connect() -> sqlite3.Connection:
            db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
            # With WAL a killed process loses nothing; only a power cut could lose something.
            db.execute("PRAGMA synchronous=NORMAL")
            return db

        self._fenced, self._lock, self._db = fenced, threading.Lock(), connect()
        self._db.execute("PRAGMA journal_mode=WAL")
        self._fence = Fence(connect, app=APP, lock_timeout_s=BUSY_TIMEOUT_S)
        self._fence.create_table()

    def run(
        self,
        ids: Sequence[str],
        *,
        hold_s: float = 0.0,
        fails: bool = False,
        inside: Callable[[], None] = _nothing,
    ) -> None:
        """Run a local transaction for these ids, all or none. ``inside`` is called just before its commit.

        Raises FenceLost or Refused; then nothing is stored.
        """
        with self._lock, self._db as db:  # an exception rolls it back
            self._fence.enter(db, *map(Tx, ids))
            if hold_s:
                time.sleep(hold_s)
            inside()
            if fails:
                raise Refused(ids[0])
            self._fence.commit(db, Tx(ids[0]))

    def outcome(self, tx: str) -> TransactionState:
        """The outcome of a local transaction; if it has not committed so far, it never will. Without a fence
        nothing guarantees that, and the read does not wait for a transaction with the lock (WAL)."""
        if self._fenced:
            return self._fence.query_status(tx, "")
        done = self._read("AND tx_id = ?", tx.encode())
        return TransactionState.COMMITTED if done else TransactionState.ROLLBACK

    def committed(self) -> set[str]:
        """Ids of all local transactions that took place."""
        return {tx.decode() for (tx,) in self._read("")}

    def _read(self, condition: str, *values: bytes) -> list[tuple[bytes]]:
        sql = f"SELECT tx_id FROM escrowmq_fence WHERE outcome = 1 {condition}"
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        self._db.close()
