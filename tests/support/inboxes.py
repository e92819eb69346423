"""Handlers with an inbox, crashes and second deliveries, and the anomalies in what they have done.

``handled-twice``: the work for a record was committed more than once. ``handled-never``: the consumer has
passed a record by, and its work was never committed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from escrowmq import ConsumerRecord
from escrowmq.integrations import Inbox
from tests.support.shops import Shop


def record(number: int, *, topic: str = "orders", partition: int = 0, timestamp: int = 7) -> ConsumerRecord:
    """A record as ``poll`` returns it."""
    return ConsumerRecord(topic, partition, number, timestamp, None, b"%d" % number, {}, None)


class Accounts:
    """A handler's database: a row for each time that a record's work was done."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.table, self.work = shop, f"inbox_{shop.table}", f"work_{shop.table}"
        self.inbox = self.make("billing")
        self.inbox.create_table()
        with shop.engine.begin() as db:
            suffix = " engine=innodb" if shop.kind == "mariadb" else ""
            db.execute(sa.text(f"create table {self.work} (id integer not null){suffix}"))

    def make(self, group: str, **options: Any) -> Inbox:
        """An inbox on the same table."""
        database = self.shop.connect if self.shop.plain else self.shop.engine
        return Inbox(database, group=group, table=self.table, **options)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """A connection, closed without a commit unless the caller commits."""
        local = self.shop.begin()
        try:
            yield local
        finally:
            local.connection.close()
            self.shop.begun.remove(local)

    def do(self, local: Any, number: int) -> None:
        local.execute(f"insert into {self.work} values ({number})")

    def done(self) -> list[int]:
        """The records whose work is committed, in order, each as often as it was done."""
        with self.shop.engine.connect() as db:
            return sorted(number for (number,) in db.execute(sa.text(f"select id from {self.work}")))

    def rows(self) -> int:
        """Rows of the inbox."""
        with self.shop.engine.connect() as db:
            return int(db.execute(sa.text(f"select count(*) from {self.table}")).scalar_one())

    def close(self) -> None:
        with self.shop.engine.begin() as db:
            db.execute(sa.text(f"drop table {self.table}"))
            db.execute(sa.text(f"drop table {self.work}"))


def anomalies(done: list[int], passed: int) -> list[str]:
    """A line for each of records 0 to ``passed`` whose work was not done exactly once."""
    twice = [f"handled-twice: {number}" for number in sorted(set(done)) if done.count(number) > 1]
    return twice + [f"handled-never: {number}" for number in range(passed) if number not in set(done)]


CRASH = 0.25  # share of deliveries in which the handler's process dies, at one of three steps
TRIES = 200


def race(accounts: Accounts, seed: int, records: int = 8) -> list[str]:
    """Two members of a group are delivered the same records, as around a rebalance: each dies often, and is
    started again where the group has committed."""
    committed, lock = [0], threading.Lock()

    def member(name: int) -> None:
        rng = random.Random(f"{seed}/{name}")
        for _ in range(TRIES):
            with lock:
                begin = committed[0]
            if begin == records:
                return
            for number in range(begin, records):
                if not deliver(accounts, number, rng):
                    break
                with lock:
                    committed[0] = max(committed[0], number + 1)
        raise AssertionError("the members make no progress")

    members = [threading.Thread(target=member, args=(name,)) for name in range(2)]
    for one in members:
        one.start()
    for one in members:
        one.join()
    return [f"{line} (seed {seed})" for line in anomalies(accounts.done(), committed[0])]


def deliver(accounts: Accounts, number: int, rng: random.Random) -> bool:
    """Handle a record; False: the process has died, or the database has refused, before the offset is
    committed."""
    dies = rng.choice(("at once", "before the commit", "after the commit")) if rng.random() < CRASH else ""
    with accounts.open() as local:
        try:
            with accounts.inbox.once(local.connection, record(number)) as first:
                if dies == "at once":
                    return False
                if first:
                    time.sleep(rng.uniform(0, 0.004))
                    accounts.do(local, number)
            if dies == "before the commit":
                return False
            local.connection.commit()
        except Exception as error:
            if not _refused(error):
                raise
            return False
    return dies != "after the commit"


def _refused(error: Exception) -> bool:
    from escrowmq.feedback.database.failures import StatementFailure, failure_of

    return failure_of(error) is StatementFailure.LOCKED
