"""An order service: SQLite and a topic change together, also when the service dies in between.

Shows the two things an application brings: a local transaction, and a way to find out later what became
of it. Some orders "crash" after the local commit and before COMMIT is sent; nobody in this process
tells the broker, so it asks back, and the querier looks into the database.

The ``fence`` table closes the race between a check and a local transaction that is still running: the
local transaction inserts a row for its id; the check inserts-or-ignores one that says "rolled back", and
then reads which of the two was first. So a check sees the commit, or blocks it for good.

Run it: ``python examples/order_service.py``.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import escrowmq
from escrowmq import Cluster, Message, TransactionState, TxStatusQuerier

SCHEMA = """
create table if not exists orders (id text primary key, item text not null);
create table if not exists fence (tx_id text primary key, outcome text not null);
"""


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose block is one transaction: committed at its end, rolled back by an exception."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        connection.execute("begin immediate")
        yield connection
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    finally:
        connection.close()


class OrderStatus(TxStatusQuerier):
    """Answers checks for every instance of this service: all of them share the database."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        with database(self._path) as db:
            db.execute("insert or ignore into fence values (?, 'rolled back')", (tx_id,))
            (outcome,) = db.execute("select outcome from fence where tx_id = ?", (tx_id,)).fetchone()
        print(f"  asked back about order {query_id}: {outcome}")
        return TransactionState.COMMITTED if outcome == "committed" else TransactionState.ROLLBACK


class OutOfStock(Exception):
    """A business reason to roll back."""


def place_order(path: Path, tx_id: str, order: str, item: str) -> None:
    """The local transaction. Fails if a check was first: then the order counts as never placed."""
    with database(path) as db:
        db.execute("insert into fence values (?, 'committed')", (tx_id,))
        if item == "unicorn":
            raise OutOfStock(item)
        db.execute("insert into orders values (?, ?)", (order, item))


def run(cluster: Cluster, topic: str = "orders", orders: int = 12) -> tuple[set[str], set[str]]:
    """Places orders, some of which go wrong; returns those in the database and those in the topic."""
    # Ask back after one second, so that the example need not run for long (the default is six).
    cluster.admin.create_topic(topic, partitions=2, transaction_timeout_ms=1000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.executescript(SCHEMA)
        with cluster.producer(app=f"{topic}-shop", tx_status_querier=OrderStatus(path)) as producer:
            for number in range(orders):
                order, item = f"order-{number}", "unicorn" if number % 4 == 3 else "teapot"
                try:
                    with producer.transaction(query_id=order) as tx:
                        tx.send(Message(topic, order.encode(), key=order.encode()))
                        tx.prepare()
                        place_order(path, tx.tx_id, order, item)
                        if number % 4 == 1:
                            tx.unknown()  # as if this process had died here: COMMIT is never sent
                            print(f"order {number}: stored, but the broker was not told")
                        else:
                            print(f"order {number}: stored and committed")
                except OutOfStock:
                    print(f"order {number}: out of stock, both rolled back")
            await_settled(cluster, topic)
        with sqlite3.connect(path) as connection:
            stored = {order for (order,) in connection.execute("select id from orders")}
    sent = read_all(cluster, topic, len(stored))
    print(f"{len(stored)} orders in the database, {len(sent)} in the topic, the same: {stored == sent}")
    return stored, sent


def await_settled(cluster: Cluster, topic: str, patience_s: float = 60.0) -> None:
    """Waits until no transaction of the topic is open."""
    deadline = time.monotonic() + patience_s
    while cluster.admin.list_transactions(topic=topic):
        if time.monotonic() > deadline:
            raise TimeoutError("transactions stay open: does the querier answer?")
        time.sleep(0.2)


def read_all(cluster: Cluster, topic: str, expected: int) -> set[str]:
    """Everything in the topic."""
    found: set[str] = set()
    with cluster.consumer(group=f"{topic}-audit", topics=[topic], auto_offset_reset="earliest") as consumer:
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            records = consumer.poll(timeout_s=1.0)
            found |= {record.value.decode() for record in records}
            if len(found) >= expected and not records:
                break
    return found


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
