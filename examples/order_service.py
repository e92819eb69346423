"""An order service: SQLite and a topic change together, even if the service dies in between.

``Fence`` ties the two together: the local transaction and its messages both happen, or neither does. Some
orders "crash" after the local commit and before COMMIT is sent. The broker then hears nothing, so it asks
back, and the fence answers from the database. The service needs no code for that.

Run it: ``python examples/order_service.py``. With SQLAlchemy the fence takes an engine instead of a function.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.integrations import Fence


class OutOfStock(Exception):
    """A business reason to roll back."""


def run(cluster: Cluster, topic: str = "orders", orders: int = 12) -> tuple[set[str], set[str]]:
    """Places orders, some of which fail; returns those in the database and those in the topic."""
    # The broker asks back after one second (the default is six), so that the example does not take long.
    cluster.admin.create_topic(topic, partitions=2, transaction_timeout_ms=1000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.execute("create table orders (id text primary key, item text not null)")
        fence = Fence(lambda: sqlite3.connect(path, timeout=10), app=f"{topic}-shop")
        fence.create_table()
        with cluster.producer(app=f"{topic}-shop", tx_status_querier=fence) as producer:
            for number in range(orders):
                order, item = f"order-{number}", "unicorn" if number % 4 == 3 else "teapot"
                message = Message(topic, order.encode(), key=order.encode())
                try:
                    with fence.transaction(producer, message, query_id=order) as (tx, db):
                        if item == "unicorn":
                            raise OutOfStock(item)
                        db.execute("insert into orders values (?, ?)", (order, item))
                        if number % 4 == 1:
                            tx.unknown()  # as if this process died before it could send COMMIT
                    told = "the broker was not told" if number % 4 == 1 else "committed"
                    print(f"order {number}: stored, {told}")
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
    """All orders in the topic."""
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
