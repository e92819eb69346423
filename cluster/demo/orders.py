"""One order's business transaction: rows in the database and messages in the broker, or neither.

The planned mishaps happen here. "The producer stops" is simulated by leaving the transaction undecided, as
would a process that dies at that point. (production.py really kills a process.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from escrowmq.actors.producer.producer import Producer
from escrowmq.cluster.demo.database import LocalTransactionFailed, ShopDatabase
from escrowmq.cluster.demo.events import COMMITTED, LEFT_OPEN, ROLLED_BACK, Checked, EventWriter, OrderEnded
from escrowmq.cluster.demo.mishaps import Mishap
from escrowmq.cluster.demo.options import LINEITEMS, ORDERS
from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS, Order, encode
from escrowmq.feedback.database.errors import FenceLost
from escrowmq.feedback.states import TransactionState, TxStatusQuerier
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.model import Message


class ShopQuerier(TxStatusQuerier):
    """Answers checks from the fence. If the plan says so, the first answer is UNKNOWN."""

    def __init__(self, shop: ShopDatabase, mishaps: Mapping[int, Mishap], events: EventWriter) -> None:
        self._shop, self._mishaps, self._events = shop, mishaps, events

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        """The outcome of the local transaction; ``query_id`` is the order key."""
        if self._mishaps.get(int(query_id)) is Mishap.UNSURE and self._shop.first_time_asked(tx_id):
            answer = TransactionState.UNKNOWN
        else:
            answer = self._shop.fence.query_status(tx_id, query_id)
        self._events.write(Checked(tx_id, answer.value))
        return answer


class OrderTaker:
    """Places orders. Thread-safe. ``run`` tells this process's attempts from those of earlier processes."""

    def __init__(
        self,
        producer: Producer,
        shop: ShopDatabase,
        mishaps: Mapping[int, Mishap],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer, self._shop, self._mishaps, self._clock = producer, shop, mishaps, clock

    def place(self, order: Order) -> OrderEnded:
        """One transaction from prepare to its end."""
        mishap = self._mishaps.get(order.key)
        try:
            with self._producer.transaction(query_id=str(order.key)) as tx:
                for message in messages_of(order):
                    tx.send(message)
                tx.prepare()
                if mishap is Mishap.STOPS_BEFORE_LOCAL:
                    tx.unknown()
                    return OrderEnded(order.key, LEFT_OPEN)
                self._shop.place_order(tx, order, fails=mishap is Mishap.FAILS)
                if mishap in (Mishap.STOPS_AFTER_LOCAL, Mishap.UNSURE):
                    tx.unknown()
                    return OrderEnded(order.key, LEFT_OPEN)
                requested = self._clock()
        except (LocalTransactionFailed, FenceLost):
            return OrderEnded(order.key, ROLLED_BACK)
        except OutcomeUnknown:
            return OrderEnded(order.key, LEFT_OPEN)
        return OrderEnded(order.key, COMMITTED, requested, self._clock())


def messages_of(order: Order) -> list[Message]:
    """The order, keyed by customer, and its lines, keyed by order."""
    customer, key = str(order.row[1]).encode(), str(order.key).encode()
    lines = [Message(LINEITEMS, encode(LINEITEM_COLUMNS, line), key) for line in order.lines]
    return [Message(ORDERS, encode(ORDER_COLUMNS, order.row), customer), *lines]
