"""A producer process of the demo: ``python -m escrowmq.cluster.demo.worker SETTINGS``.

It places its share of the orders from several threads and then answers checks until its standard input is
closed. That also happens when the demo itself dies, so no process is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.producer import Producer
from escrowmq.cluster.demo.database import LocalTransactionFailed, ShopDatabase
from escrowmq.cluster.demo.events import (
    COMMITTED,
    LEFT_OPEN,
    ROLLED_BACK,
    CheckAnswered,
    EventWriter,
    Failed,
    Finished,
    OrderEnded,
    Ready,
)
from escrowmq.cluster.demo.options import APP, LINEITEMS, ORDERS, TRANSACTION_TIMEOUT_S, Mishap, plan_mishaps
from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS, Order, encode, order_keys, read_orders
from escrowmq.feedback.database.errors import FenceLost
from escrowmq.feedback.states import TransactionState, TxStatusQuerier
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.model import Message

# ------------------------------------------------------------------------------------------------------------
# One order's business transaction: rows in the database and messages in the broker, or neither.
#
# The planned mishaps happen here. "The producer stops" is simulated by leaving the transaction undecided, as
# would a process that dies at that point. (story.py really kills a process.)


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
        self._events.write(CheckAnswered(tx_id, answer.value))
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


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a producer process, passed as JSON. ``keys_file``: a file with its share of order keys."""

    address: str
    namespace: str
    data: str
    database: str
    keys_file: str
    seed: int
    threads: int

    def encode(self) -> str:
        """As JSON, for the command line."""
        return json.dumps(asdict(self))


def main() -> int:
    """Run until standard input is closed; 1 if something failed."""
    settings = WorkerSettings(**json.loads(sys.argv[1]))
    # Standard output is reserved for events; other output goes to standard error, which is the log.
    events = EventWriter(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    try:
        _work(settings, events)
    except Exception:
        events.write(Failed(traceback.format_exc()))
        return 1
    return 0


def _work(settings: WorkerSettings, events: EventWriter) -> None:
    from escrowmq.cluster.connecting import connect

    data = Path(settings.data)
    mishaps = plan_mishaps(settings.seed, order_keys(data)).orders
    shop = ShopDatabase(Path(settings.database))
    share = frozenset(json.loads(Path(settings.keys_file).read_text()))
    mine = share - shop.order_keys()
    # All messages are sent in transactions, so the linger of plain messages does not matter.
    config = ProducerConfig(transaction_timeout_s=TRANSACTION_TIMEOUT_S)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(connect(settings.address, settings.namespace))
        querier = ShopQuerier(shop, mishaps, events)
        producer = stack.enter_context(cluster.producer(app=APP, tx_status_querier=querier, config=config))
        events.write(Ready(skipped=len(share) - len(mine)))
        taker = OrderTaker(producer, shop, mishaps)
        finished, released = threading.Event(), threading.Event()
        threading.Thread(target=_watch_parent, args=(finished, released), daemon=True).start()
        _place_all(taker, data, mine, settings.threads, events)
        finished.set()
        events.write(Finished())
        released.wait()


def _watch_parent(finished: threading.Event, released: threading.Event) -> None:
    """Wait for the end of standard input: the demo has closed it, or died. Exit if work is unfinished."""
    sys.stdin.read()
    if not finished.is_set():
        os._exit(3)
    released.set()


def _place_all(
    taker: OrderTaker, data: Path, mine: frozenset[int], threads: int, events: EventWriter
) -> None:
    waiting: queue.Queue[Order | None] = queue.Queue(maxsize=4 * threads)
    failures: list[BaseException] = []

    def place() -> None:
        while (order := waiting.get()) is not None:
            if failures:
                continue  # keep emptying the queue, so that the reader does not block
            try:
                events.write(taker.place(order))
            except BaseException as error:
                failures.append(error)

    pool = [threading.Thread(target=place, daemon=True) for _ in range(threads)]
    for thread in pool:
        thread.start()
    for order in read_orders(data, mine):
        waiting.put(order)
    for _ in pool:
        waiting.put(None)
    for thread in pool:
        thread.join()
    if failures:
        raise failures[0]


if __name__ == "__main__":
    raise SystemExit(main())
