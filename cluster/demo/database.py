"""The shop's own database: SQLite, with orders, line items, and a fence.

The fence closes the race between a check and a slow local transaction. The local transaction inserts a
row for its transaction id; a check inserts one that says "rolled back" unless there is a row, and reads
which of the two won. So a check sees the commit or forbids it for good, and can always answer.

One connection per process behind a lock: SQLite has one writer anyway, and this way threads queue in
memory and not on the file's lock.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS, Order
from escrowmq.feedback.states import TransactionState

#: Another process's transaction takes 0.2 ms; a machine under load may stop it for seconds.
BUSY_TIMEOUT_S = 30.0


class FenceTaken(Exception):
    """A check came first and recorded this transaction as rolled back: it must not commit any more."""


class LocalTransactionFailed(Exception):
    """The business refused the order (a mishap of the demo's plan)."""


class ShopDatabase:
    """Thread-safe. Every method is one SQLite transaction."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        # WAL with NORMAL: a killed process loses nothing; only a power cut could lose the newest commits.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")

    def create(self) -> None:
        """Make the tables."""
        orders = ", ".join(f"{name} {_sqlite_type(kind)}" for name, kind in ORDER_COLUMNS.items())
        lines = ", ".join(f"{name} {_sqlite_type(kind)}" for name, kind in LINEITEM_COLUMNS.items())
        with self._transaction() as db:
            db.execute(f"CREATE TABLE orders ({orders}, PRIMARY KEY (o_orderkey))")
            db.execute(f"CREATE TABLE lineitem ({lines}, PRIMARY KEY (l_orderkey, l_linenumber))")
            db.execute("CREATE TABLE fence (tx_id TEXT PRIMARY KEY, outcome TEXT NOT NULL) WITHOUT ROWID")
            db.execute("CREATE TABLE asked_once (tx_id TEXT PRIMARY KEY) WITHOUT ROWID")

    def place_order(self, tx_id: str, order: Order, *, fails: bool = False) -> None:
        """The local transaction: fence, order, lines. FenceTaken, LocalTransactionFailed: nothing is kept."""
        with self._transaction() as db:
            try:
                db.execute("INSERT INTO fence VALUES (?, ?)", (tx_id, TransactionState.COMMITTED.value))
            except sqlite3.IntegrityError as error:
                raise FenceTaken(tx_id) from error
            db.execute(_INSERT_ORDER, order.row)
            db.executemany(_INSERT_LINE, order.lines)
            if fails:
                raise LocalTransactionFailed(f"order {order.key}: credit refused")

    def outcome(self, tx_id: str) -> TransactionState:
        """What became of a local transaction; if it did not commit so far, it never will."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO fence VALUES (?, ?)", (tx_id, TransactionState.ROLLBACK.value))
            row = db.execute("SELECT outcome FROM fence WHERE tx_id = ?", (tx_id,)).fetchone()
        return TransactionState(row[0])

    def first_time_asked(self, tx_id: str) -> bool:
        """True once per transaction, whichever process asks."""
        with self._transaction() as db:
            return db.execute("INSERT OR IGNORE INTO asked_once VALUES (?)", (tx_id,)).rowcount == 1

    def order_keys(self) -> set[int]:
        """Keys of all orders that were committed."""
        return {row[0] for row in self._read("SELECT o_orderkey FROM orders")}

    def table(self, name: str, columns: dict[str, str]) -> dict[str, list[Any]]:
        """A whole table by column."""
        rows = self._read(f"SELECT {', '.join(columns)} FROM {name}")
        return {column: [row[i] for row in rows] for i, column in enumerate(columns)}

    def close(self) -> None:
        self._db.close()

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql).fetchall()

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


def _sqlite_type(kind: str) -> str:
    return "INTEGER NOT NULL" if kind == "BIGINT" else "TEXT NOT NULL"


_INSERT_ORDER = f"INSERT INTO orders VALUES ({', '.join('?' * len(ORDER_COLUMNS))})"
_INSERT_LINE = f"INSERT INTO lineitem VALUES ({', '.join('?' * len(LINEITEM_COLUMNS))})"
