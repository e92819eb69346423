"""An order service that is killed with its relay in the middle of a batch, and every order is sent once.

Each order is a row of the database and a message in its outbox, in one database transaction; the broker is
not asked. The first process kills itself when the broker has its relay's second batch and the database does
not know it yet: its rows are still there. The relay of the second process sends the batch again under the
same number, and the broker says that it is in.

Run it: ``python examples/outbox_orders.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.integrations import Outbox, OutboxRelay

#: So many orders before the first batch, and so many after it.
HALF = 6
#: A relay that is silent for so long loses its outbox to the next one (15 seconds, unless it is said).
LEASE_S = 2.0


def serve(cluster: Cluster, topic: str, path: Path, first: int, dies: bool) -> None:
    """Takes orders while a relay sends them; ``dies``: it is killed in the relay's second batch."""
    engine = sa.create_engine(f"sqlite:///{path}")
    outbox = Outbox(engine)
    relay = OutboxRelay(outbox, cluster, app=f"{topic}-shop", lease_s=LEASE_S)
    place_orders(engine, outbox, topic, range(first, first + HALF))
    print(f"{relay.send_waiting()} orders sent")
    place_orders(engine, outbox, topic, range(first + HALF, first + 2 * HALF))
    if dies:
        die_at_the_next_delete(engine)
    print(f"{relay.send_waiting()} orders sent")
    relay.close()


def place_orders(engine: sa.Engine, outbox: Outbox, topic: str, numbers: range) -> None:
    """Each in a transaction of its own; every third one fails, and nothing of it is sent."""
    for number in numbers:
        order = f"order-{number}"
        with engine.connect() as db:
            db.execute(sa.text("insert into orders values (:order)"), {"order": order})
            outbox.send(db, Message(topic, order.encode(), key=order.encode()))
            if number % 3 == 2:
                db.rollback()
            else:
                db.commit()


def die_at_the_next_delete(engine: sa.Engine) -> None:
    """Ends this process when its relay is about to remove rows: then the broker has them."""

    @sa.event.listens_for(engine, "before_cursor_execute")
    def look(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            print("killed: the broker has the batch, and the database does not know it", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def run(cluster: Cluster, topic: str = "orders") -> tuple[list[str], list[str]]:
    """Two processes take orders; returns those in the database and those in the topic, in order."""
    cluster.admin.create_topic(topic, partitions=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.begin() as db:
            db.execute(sa.text("create table orders (id text primary key)"))
        Outbox(engine).create_table()
        for first, dies in ((0, True), (2 * HALF, False)):
            if first:
                time.sleep(LEASE_S + 0.5)  # then the killed relay counts as dead
            told = [cluster.address, cluster.info.namespace, topic, path, first, int(dies)]
            script = [sys.executable, __file__, *map(str, told)]
            ended = subprocess.run(script, timeout=120, check=False)
            assert ended.returncode == (-signal.SIGKILL if dies else 0)
        with engine.connect() as db:
            stored = [order for (order,) in db.execute(sa.text("select id from orders order by rowid"))]
        assert Outbox(engine).rows() == []
    sent: list[str] = []
    with cluster.consumer(group=f"{topic}-audit", topics=[topic], auto_offset_reset="earliest") as consumer:
        deadline = time.monotonic() + 60
        while len(sent) < len(stored) and time.monotonic() < deadline:
            sent += [record.value.decode() for record in consumer.poll(timeout_s=1.0)]
        sent += [record.value.decode() for record in consumer.poll(timeout_s=1.0)]  # what would be too much
    print(f"{len(stored)} orders in the database, and the same ones once and in order: {sent == stored}")
    return stored, sent


if __name__ == "__main__":
    if len(sys.argv) > 1:
        address, namespace, topic, path, first, dies = sys.argv[1:]
        with escrowmq.connect(address, namespace) as cluster:
            serve(cluster, topic, Path(path), int(first), bool(int(dies)))
    else:
        with escrowmq.start_local() as cluster:
            run(cluster)
