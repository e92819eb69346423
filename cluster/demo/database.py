"""The shop's own database: SQLite, with orders and line items, and the product's fence.

Each process has one connection, behind a lock: SQLite allows only one writer anyway, and this way threads
wait in memory and not on the file's lock. The fence's checks have their own connections.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from escrowmq.cluster.demo.options import APP
from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS, Order
from escrowmq.feedback.database.fence import Fence
from escrowmq.feedback.database.producing import ProducedTransaction

#: Another process's transaction takes 0.2 ms, but on a machine under load that process may pause for seconds.
BUSY_TIMEOUT_S = 30.0


class LocalTransactionFailed(Exception):
    """The shop refused the order (a planned mishap of the demo)."""


class ShopDatabase:
    """Thread-safe. Every method is one SQLite transaction."""

    def __init__(self, path: Path) -> None:
        def connect() -> sqlite3.Connection:
            db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
            # With WAL a killed process loses nothing; only a power failure could lose the last commits.
            db.execute("PRAGMA synchronous=NORMAL")
            return db

        self._lock = threading.Lock()
        self._db = connect()
        self._db.execute("PRAGMA journal_mode=WAL")
        self.fence = Fence(connect, app=APP, lock_timeout_s=BUSY_TIMEOUT_S)

    def create(self) -> None:
        """Create the tables."""
        orders = ", ".join(f"{name} {_sqlite_type(kind)}" for name, kind in ORDER_COLUMNS.items())
        lines = ", ".join(f"{name} {_sqlite_type(kind)}" for name, kind in LINEITEM_COLUMNS.items())
        self._db.execute(f"CREATE TABLE orders ({orders}, PRIMARY KEY (o_orderkey))")
        self._db.execute(f"CREATE TABLE lineitem ({lines}, PRIMARY KEY (l_orderkey, l_linenumber))")
        self._db.execute("CREATE TABLE asked_once (tx_id TEXT PRIMARY KEY) WITHOUT ROWID")
        self.fence.create_table()

    def place_order(self, tx: ProducedTransaction, order: Order, *, fails: bool = False) -> None:
        """The local transaction: inserts order and lines. Raises FenceLost, LocalTransactionFailed."""
        with self._lock, self._db as db:  # rolls back on any exception
            self.fence.enter(db, tx)
            db.execute(_INSERT_ORDER, order.row)
            db.executemany(_INSERT_LINE, order.lines)
            if fails:
                raise LocalTransactionFailed(f"order {order.key}: credit refused")
            self.fence.commit(db, tx)

    def first_time_asked(self, tx_id: str) -> bool:
        """True for the first call with this id in any process, False afterwards."""
        with self._lock, self._db as db:
            return db.execute("INSERT OR IGNORE INTO asked_once VALUES (?)", (tx_id,)).rowcount == 1

    def order_keys(self) -> set[int]:
        """Keys of all committed orders."""
        return {row[0] for row in self._read("SELECT o_orderkey FROM orders")}

    def table(self, name: str, columns: dict[str, str]) -> dict[str, list[Any]]:
        """A whole table: column -> its values."""
        rows = self._read(f"SELECT {', '.join(columns)} FROM {name}")
        return {column: [row[i] for row in rows] for i, column in enumerate(columns)}

    def close(self) -> None:
        self._db.close()

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql).fetchall()


def _sqlite_type(kind: str) -> str:
    return "INTEGER NOT NULL" if kind == "BIGINT" else "TEXT NOT NULL"


_INSERT_ORDER = f"INSERT INTO orders VALUES ({', '.join('?' * len(ORDER_COLUMNS))})"
_INSERT_LINE = f"INSERT INTO lineitem VALUES ({', '.join('?' * len(LINEITEM_COLUMNS))})"
