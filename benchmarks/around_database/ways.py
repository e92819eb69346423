"""The ways to commit an order and its message, each as a service would write it with SQLAlchemy and psycopg.

All of them insert the same order into the same table, and send the same message. What differs is what they
promise, which ``GIVES`` says in one line.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import sqlalchemy as sa

from benchmarks.around_database.by_hand import ByHandRelay, create_by_hand, insert_by_hand
from escrowmq import Message
from escrowmq.integrations import Fence, Outbox, OutboxRelay

BODY_BYTES = 256
PARTITIONS = 4
#: Connections of the service; PostgreSQL has 40.
POOL = 24

_ORDERS = "create table if not exists orders (id bigint primary key, body bytea not null)"
_ORDER = sa.text("insert into orders values (:id, :body)")


class Place:
    """The database and the cluster that all ways share, and the numbers of the orders."""

    def __init__(self, engine: sa.Engine, cluster: Any) -> None:
        self.engine, self.cluster = engine, cluster
        self._numbers = itertools.count(1)
        with engine.begin() as db:
            db.execute(sa.text(_ORDERS))

    def next(self) -> int:
        """The number of a new order. For any thread."""
        return next(self._numbers)

    @staticmethod
    def insert(db: sa.Connection, number: int) -> None:
        """The business."""
        db.execute(_ORDER, {"id": number, "body": body_of(number)})


def body_of(number: int) -> bytes:
    """What is stored and sent of an order: its number, and bytes up to the usual size."""
    return number.to_bytes(8, "big") + bytes(BODY_BYTES - 8)


def number_of(body: bytes) -> int:
    """The order's number."""
    return int.from_bytes(body[:8], "big")


class Way(Protocol):
    """One way. ``commit`` may be called by many threads at once."""

    name: str
    gives: str
    topic: str

    def commit(self) -> tuple[int, float]:
        """One order, and its message if the way has one: its number, and when the database had answered to
        the commit."""

    def relaying(self) -> Any:
        """A context manager in which the messages go on to the broker; it yields a function that counts how
        many have, or None if no relay is needed."""

    def fill(self, rows: int) -> float:
        """So many messages for the relay in one database transaction; when that was committed."""

    def close(self) -> None:
        """The way's producers."""


class Alone:
    """The ceiling: the order alone, no message."""

    name, topic = "the order alone", ""
    gives = "no message"

    def __init__(self, place: Place) -> None:
        self._place = place

    def commit(self) -> tuple[int, float]:
        number = self._place.next()
        with self._place.engine.begin() as db:
            self._place.insert(db, number)
        return number, time.perf_counter()

    @contextmanager
    def relaying(self) -> Iterator[None]:
        yield

    def fill(self, rows: int) -> float:
        raise NotImplementedError("this way has no relay")

    def close(self) -> None: ...


class Fenced:
    """``fence.transaction``, written out so that the time of the database's commit is seen."""

    name, topic = "fence", "fenced"
    gives = "both or neither, once; in the order of the calls; readable at the return. Needs the broker"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._fence = Fence(place.engine, app="bench-fence")
        self._fence.create_table()
        self._producer = place.cluster.producer(app="bench-fence", tx_status_querier=self._fence)

    def commit(self) -> tuple[int, float]:
        number = self._place.next()
        with self._producer.transaction(f"{number}") as tx:
            tx.send(Message(self.topic, body_of(number), key=b"%d" % number))
            tx.prepare()
            with self._fence.local(tx) as db:
                self._place.insert(db, number)
            committed = time.perf_counter()
        return number, committed

    @contextmanager
    def relaying(self) -> Iterator[None]:
        yield

    def fill(self, rows: int) -> float:
        raise NotImplementedError("this way has no relay")

    def close(self) -> None:
        self._producer.close()


class Outboxed:
    """Our outbox, and its relay in a thread of the service. ``woken``: by the service's commits; otherwise it
    looks by itself, as one in another process does."""

    gives = "both or neither, once, across any crash; in the order of the rows. Works without the broker"

    def __init__(self, place: Place, *, woken: bool = True) -> None:
        mark = "outbox" if woken else "looking"
        self.name, self.topic = "outbox" if woken else "outbox, relay not woken", mark
        self._place, self._app = place, f"bench-{mark}"
        self._outbox = Outbox(place.engine, table=f"bench_{mark}")
        self._outbox.create_table()
        self._relays = self._outbox if woken else Outbox(place.engine, table=self._outbox.statements.table)

    def commit(self) -> tuple[int, float]:
        number = self._place.next()
        with self._place.engine.begin() as db:
            self._place.insert(db, number)
            self._outbox.send(db, Message(self.topic, body_of(number), key=b"%d" % number))
        return number, time.perf_counter()

    @contextmanager
    def relaying(self) -> Iterator[Any]:
        with OutboxRelay(self._relays, self._place.cluster, app=self._app) as relay:
            yield lambda: relay.rows_sent

    def fill(self, rows: int) -> float:
        with self._place.engine.begin() as db:
            for _ in range(rows):
                number = self._place.next()
                self._outbox.send(db, Message(self.topic, body_of(number), key=b"%d" % number))
        return time.perf_counter()

    def close(self) -> None: ...


class ByHand:
    """A plain table, and a relay as a user would write it."""

    name, topic = "plain table, relay by hand", "by-hand"
    gives = "both or neither, but again after the relay's crash or a lost answer; order with one relay only"

    def __init__(self, place: Place) -> None:
        self._place = place
        with place.engine.begin() as db:
            create_by_hand(db)
        self._producer = place.cluster.producer(app="bench-by-hand")

    def commit(self) -> tuple[int, float]:
        number = self._place.next()
        with self._place.engine.begin() as db:
            self._place.insert(db, number)
            insert_by_hand(db, self.topic, b"%d" % number, body_of(number))
        return number, time.perf_counter()

    @contextmanager
    def relaying(self) -> Iterator[Any]:
        with ByHandRelay(self._place.engine, self._producer) as relay:
            yield lambda: relay.rows_sent

    def fill(self, rows: int) -> float:
        with self._place.engine.begin() as db:
            for _ in range(rows):
                number = self._place.next()
                insert_by_hand(db, self.topic, b"%d" % number, body_of(number))
        return time.perf_counter()

    def close(self) -> None:
        self._producer.close()
