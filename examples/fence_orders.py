"""An order service that is killed twice, and every order is in the database and in the topic, or in neither.

The first process kills itself after the database's commit and before the broker is told. The second one kills
itself inside its local transaction. The third one does nothing for the orders of the others: its fence
answers the broker's checks of them from the database.

Run it: ``python examples/fence_orders.py``.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.integrations import Fence

#: What becomes of the last order of each process.
TOLD, AFTER_COMMIT, INSIDE = "told", "after the database's commit", "inside the local transaction"


def serve(cluster: Cluster, topic: str, path: Path, orders: range, ends: str) -> None:
    """Places these orders, and dies by its own hand in the last one, unless it ends ``TOLD``."""
    fence = Fence(lambda: sqlite3.connect(path, timeout=10), app=f"{topic}-shop")
    with cluster.producer(app=f"{topic}-shop", tx_status_querier=fence) as producer:
        for number in orders:
            order, last = f"order-{number}", number == orders[-1]
            with producer.transaction(query_id=order) as tx:
                tx.send(Message(topic, order.encode(), key=order.encode()))
                tx.prepare()
                with fence.local(tx) as db:
                    db.execute("insert into orders values (?)", (order,))
                    die_if(last and ends == INSIDE, f"{order} is killed {INSIDE}")
                die_if(last and ends == AFTER_COMMIT, f"{order} is killed {AFTER_COMMIT}")
        deadline = time.monotonic() + 60
        while cluster.admin.list_transactions(app=f"{topic}-shop") and time.monotonic() < deadline:
            time.sleep(
                0.2
            )  # what the others left open is checked in a second or two, and this process answers


def die_if(condition: bool, what: str) -> None:
    """Ends this process at once, without any clean-up."""
    if condition:
        print(what, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def run(cluster: Cluster, topic: str = "orders", each: int = 4) -> tuple[set[str], set[str]]:
    """Three processes place ``each`` orders; returns those in the database and those in the topic."""
    # The broker asks back after one second (the default is six), so that the example does not take long.
    cluster.admin.create_topic(topic, partitions=2, transaction_timeout_ms=1000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("create table orders (id text primary key)")
        Fence(lambda: sqlite3.connect(path), app=f"{topic}-shop").create_table()
        for number, ends in enumerate((AFTER_COMMIT, INSIDE, TOLD)):
            told = [cluster.address, cluster.info.namespace, topic, path, number * each, each, ends]
            script = [sys.executable, __file__, *map(str, told)]
            ended = subprocess.run(script, timeout=120, check=False)
            assert ended.returncode == (0 if ends == TOLD else -signal.SIGKILL)
        with closing(sqlite3.connect(path)) as db:
            stored = {order for (order,) in db.execute("select id from orders")}
    sent: set[str] = set()
    with cluster.consumer(group=f"{topic}-audit", topics=[topic], auto_offset_reset="earliest") as consumer:
        deadline = time.monotonic() + 60
        while sent != stored and time.monotonic() < deadline:
            sent |= {record.value.decode() for record in consumer.poll(timeout_s=1.0)}
    print(f"{len(stored)} orders are in the database, and the same ones in the topic: {sent == stored}")
    return stored, sent


if __name__ == "__main__":
    if len(sys.argv) > 1:
        address, namespace, topic, path, first, each, ends = sys.argv[1:]
        with escrowmq.connect(address, namespace) as cluster:
            serve(cluster, topic, Path(path), range(int(first), int(first) + int(each)), ends)
    else:
        with escrowmq.start_local() as cluster:
            run(cluster)
