"""A consumer that bills orders with ``run`` and an inbox: ``python -m tests.fence_trials.clerk JSON``.

It ends with its standard input. What it sees goes into a file of its own, line by line, since that is what a
trial has to go by when an order is missing: which records it was given, and whether the database has
confirmed the commit of their bills.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

import escrowmq
from escrowmq import Cluster, RetryPolicy
from escrowmq.integrations import Inbox, database_is_away

CONCURRENT, ORDERED, SHARE = "concurrent", "ordered", "share"
SESSION_S = 3.0
THREADS = 4
#: Of a hundred orders: that can never be billed, and whose first attempt fails; and how long a slow one
#: takes.
POISON, FLAKY, SLOW = 3, 10, 5
SLOW_S = 0.2
#: What a clerk has seen.
GIVEN, BILLED, FAILED = "given", "billed", "failed"


class Spoiled(Exception):
    """The bill cannot be written: the order is to blame."""


@dataclass(frozen=True, slots=True)
class Clerk:
    """The settings of a consumer. ``kind``: of its group; ``seen``: the file that it writes."""

    address: str
    namespace: str
    url: str
    group: str
    topic: str
    bills: str
    kind: str
    seen: str

    def encode(self) -> str:
        return json.dumps(asdict(self))


def lot(order: str) -> int:
    """0 to 99, the same for an order wherever it is drawn."""
    return zlib.crc32(order.encode()) % 100


def is_poison(order: str) -> bool:
    """Whether no attempt can ever succeed."""
    return lot(order) < POISON


class Billing:
    """The handler."""

    def __init__(self, told: Clerk, inbox: Inbox) -> None:
        self._insert = sa.text(f"insert into {told.bills} values (:id)")
        self._handled = inbox.handler(self._bill)
        self._seen = os.open(told.seen, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def __call__(self, record: Any) -> None:
        order = record.value.decode()
        about = f"{order} {record.topic}/{record.partition}@{record.offset} {record.attempt}"
        self._note(GIVEN, about)
        try:
            self._handled(record)
        except BaseException as error:
            self._note(FAILED, f"{about} {type(error).__name__}")
            raise
        self._note(BILLED, about)

    def _bill(self, record: Any, db: Any) -> None:
        order = record.value.decode()
        if is_poison(order) or (lot(order) < POISON + FLAKY and record.attempt == 1):
            raise Spoiled(order)
        db.execute(self._insert, {"id": order})
        if lot(order) >= 100 - SLOW:
            time.sleep(SLOW_S)

    def _note(self, what: str, about: str) -> None:
        os.write(self._seen, f"{time.time():.3f} {os.getpid()} {what} {about}\n".encode())


def main() -> None:
    told = Clerk(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    engine = sa.create_engine(told.url)
    billing = Billing(told, Inbox(engine, group=told.group))
    with escrowmq.connect(told.address, told.namespace) as cluster:
        _work(told, cluster, billing)


def _work(told: Clerk, cluster: Cluster, billing: Billing) -> None:
    if told.kind == SHARE:
        with cluster.share_consumer(told.group, [told.topic], auto_offset_reset="earliest") as queue:
            queue.run(billing, threads=THREADS, pause_on=database_is_away)
        return
    with cluster.consumer(
        told.group,
        [told.topic],
        auto_offset_reset="earliest",
        session_timeout_s=SESSION_S,
        retry=RetryPolicy(order=told.kind),
    ) as consumer:
        consumer.run(billing, pause_on=database_is_away)


def _end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
