"""Compensation: the shop hears what the warehouse has done with each order, and may give the money back.

Each order is sent with ``reply_to``. The warehouse's share group acknowledges with a result, or rejects.
Either way the broker writes one reply for the shop, in the entry of its log that settles the order. The
shop handles replies with an inbox: a table row in the same database transaction, so that a reply that is
read again after a crash is not handled twice.

Run it: ``python examples/compensation.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import sqlite3
import time

import escrowmq
from escrowmq import Cluster, Message, Reply

SCHEMA = """
create table orders (id text primary key, state text not null);
create table inbox (reader text, origin text, primary key (reader, origin));
"""


def run(
    cluster: Cluster, topic: str = "orders", orders: int = 8, patience_s: float = 60.0
) -> dict[str, list[str]]:
    """Sends orders, of which every third cannot be delivered; returns the orders by what became of them."""
    app, group = f"{topic}-shop", f"{topic}-warehouse"
    cluster.admin.create_topic(topic, partitions=2)
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(SCHEMA)
    with (
        cluster.replies(app) as replies,  # before the first order: without its topic nobody is heard
        cluster.share_consumer(group, [topic], auto_offset_reset="earliest") as queue,
    ):
        with cluster.producer(app=app) as producer:
            for number in range(orders):
                place(producer, database, topic, f"order-{number}", app)
        deadline = time.monotonic() + patience_s
        while waiting(database) and time.monotonic() < deadline:
            for record in queue.poll(timeout_s=0.5):
                order = record.value.decode()
                if int(order.rpartition("-")[2]) % 3 == 2:
                    queue.reject(record, f"nothing left for {order}")  # a dead letter, and a reply "failed"
                else:
                    queue.ack(record, result=f"parcel of {order}".encode())  # and a reply "done"
            for reply in replies.poll(timeout_s=0.5):
                handle(database, reply)
            replies.commit()
    rows = database.execute("select state, id from orders order by id").fetchall()
    return {state: [id for of, id in rows if of == state] for state in {state for state, _ in rows}}


def place(
    producer: escrowmq.Producer, database: sqlite3.Connection, topic: str, order: str, app: str
) -> None:
    """The order and its message happen together."""
    message = Message(topic, order.encode(), key=order.encode(), reply_to=app)
    with producer.transaction(query_id=order) as tx:
        tx.send(message)
        tx.prepare()
        database.execute("insert into orders values (?, 'paid')", (order,))


def handle(database: sqlite3.Connection, reply: Reply) -> None:
    """One reply, once."""
    order = (reply.record.key or b"").decode()
    origin = repr(reply.origin and reply.origin[:3])
    database.execute("begin immediate")
    try:
        database.execute("insert into inbox values (?, ?)", (reply.group, origin))
    except sqlite3.IntegrityError:  # handled before
        database.execute("rollback")
        return
    state = "delivered" if reply.done else "refunded"
    database.execute("update orders set state = ? where id = ?", (state, order))
    database.execute("commit")
    print(f"{order}: {state} ({reply.result.decode() or reply.reason})")


def waiting(database: sqlite3.Connection) -> int:
    """Orders of which nothing was heard yet."""
    (count,) = database.execute("select count(*) from orders where state = 'paid'").fetchone()
    return int(count)


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
