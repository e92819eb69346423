"""Why "save, then send" is not enough: four ways to write to a database and a broker, each failing once.

A crash at the wrong moment, or an answer that is lost, leaves an order without its message, a message
without its order, or two messages. No order of the two writes avoids that, since nothing ties them
together. The last way is the escrow: the message is durable before the order, and becomes readable only
with it.

Run it: ``python examples/why_not_dual_write.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable

import escrowmq
from escrowmq import Cluster, Message, OutcomeUnknown, Producer, TransactionState, TxStatusQuerier


class Crash(Exception):
    """The process dies here. (An exception, so that the example goes on.)"""


class Shop(TxStatusQuerier):
    """Orders in a database, messages in a topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic, self.database = topic, sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("create table orders (id text primary key)")
        self.database.commit()
        self.producer: Producer = cluster.producer(app=topic, tx_status_querier=self)

    def insert(self, order: str) -> None:
        """Not committed yet."""
        self.database.execute("insert into orders values (?)", (order,))

    def send(self, order: str) -> None:
        """A plain message."""
        self.producer.send(Message(self.topic, order.encode())).result()

    def has(self, order: str) -> bool:
        """Whether the order was committed."""
        return self.database.execute("select 1 from orders where id = ?", (order,)).fetchone() is not None

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        """What the broker asks after a crash."""
        return TransactionState.COMMITTED if self.has(query_id) else TransactionState.ROLLBACK


def save_then_send(shop: Shop, order: str) -> None:
    """The order is there, and nobody ever hears of it."""
    shop.insert(order)
    shop.database.commit()
    raise Crash  # before shop.send(order)


def send_then_save(shop: Shop, order: str) -> None:
    """Everybody hears of an order that does not exist."""
    shop.send(order)
    raise Crash  # before shop.insert(order) and the commit


def send_inside_the_database_transaction(shop: Shop, order: str) -> None:
    """It looks safe: a message that cannot be sent rolls the order back. But the commit can fail as well."""
    shop.insert(order)
    shop.send(order)
    shop.database.rollback()  # a deadlock, a full disk, a lost connection: the commit fails
    raise Crash


def send_again_when_in_doubt(shop: Shop, order: str) -> None:
    """The order is there once, and its message twice: an answer was lost, so the service tried again."""
    shop.insert(order)
    shop.database.commit()
    try:
        shop.send(order)
        raise OutcomeUnknown(order)  # the answer is lost on its way
    except OutcomeUnknown:
        shop.send(order)


def escrow(shop: Shop, order: str) -> None:
    """The message is durable before the order is written. The process dies after the order, at the moment
    that broke the others: the broker asks whether the order exists, and commits the message."""
    tx = shop.producer.transaction(query_id=order, transaction_timeout_s=1)
    tx.send(Message(shop.topic, order.encode()))
    tx.prepare()
    shop.insert(order)
    shop.database.commit()
    raise Crash  # before tx.commit()


WAYS: tuple[Callable[[Shop, str], None], ...] = (
    save_then_send, send_then_save, send_inside_the_database_transaction, send_again_when_in_doubt, escrow,
)  # fmt: skip


def run(cluster: Cluster, topic: str = "orders", patience_s: float = 60.0) -> dict[str, tuple[int, int]]:
    """Tries each way once; returns for each how many orders and how many messages there are in the end."""
    cluster.admin.create_topic(topic)
    shop = Shop(cluster, topic)
    for way in WAYS:
        try:
            way(shop, way.__name__)
        except Crash:
            shop.database.rollback()
    messages: Counter[str] = Counter()
    deadline = time.monotonic() + patience_s
    with cluster.consumer(f"{topic}-mail", [topic], auto_offset_reset="earliest") as consumer:
        while not messages[escrow.__name__] and time.monotonic() < deadline:
            messages.update(record.value.decode() for record in consumer.poll(timeout_s=1))
    shop.producer.close()
    found = {way.__name__: (int(shop.has(way.__name__)), messages[way.__name__]) for way in WAYS}
    for name, (orders, sent) in found.items():
        print(f"{name:38} {orders} order, {sent} messages{'' if orders == sent else '   <- broken'}")
    return found


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
