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
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.cluster.demo.database import ShopDatabase
from escrowmq.cluster.demo.events import EventWriter, Failed, Finished, Ready
from escrowmq.cluster.demo.mishaps import plan_mishaps
from escrowmq.cluster.demo.options import APP, TRANSACTION_TIMEOUT_S
from escrowmq.cluster.demo.orders import OrderTaker, ShopQuerier
from escrowmq.cluster.demo.tpch import Order, order_keys, read_orders


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
