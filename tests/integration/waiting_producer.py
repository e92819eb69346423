"""One instance of a service whose database makes it wait. Run by test_slow_database.

    python -m tests.integration.waiting_producer ADDRESS DATABASE APP TOPIC ORDERS SECONDS

It places ORDERS orders at once, each with a local transaction of SECONDS seconds, and prints their outcomes.
With 0 orders it prints "ready", answers checks until its input ends, and prints which queries it got.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import escrowmq
from escrowmq import Message, TransactionState, TxStatusQuerier


class Orders(TxStatusQuerier):
    """A querier without a fence: no row means ROLLBACK."""

    def __init__(self, database: str) -> None:
        self.database, self.asked = database, list[str]()

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        self.asked.append(query_id)
        with closing(sqlite3.connect(self.database, timeout=30)) as db:
            found = db.execute("SELECT 1 FROM orders WHERE id = ?", (query_id,)).fetchone()
        return TransactionState.COMMITTED if found else TransactionState.ROLLBACK


def main(address: str, database: str, app: str, topic: str, orders: int, seconds: float) -> None:
    querier = Orders(database)

    def store(tx_id: str, query_id: str) -> None:
        time.sleep(seconds)  # as if another process had the lock for this long
        with closing(sqlite3.connect(database, timeout=30)) as db, db:
            db.execute("INSERT INTO orders VALUES (?)", (query_id,))

    with (
        escrowmq.connect(address=address) as cluster,
        cluster.producer(app=app, tx_status_querier=querier) as producer,
    ):

        def place(order: str) -> str:
            message = Message(topic, order.encode())
            return producer.send_message_in_transaction(message, store, query_id=order).state.value

        if orders:
            with ThreadPoolExecutor(orders) as threads:
                states = list(threads.map(place, [f"order-{n}" for n in range(orders)]))
            print(json.dumps(states), flush=True)
            return
        print("ready", flush=True)
        sys.stdin.read()
        print(json.dumps(querier.asked), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), float(sys.argv[6]))
