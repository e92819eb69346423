"""``run(handler, inbox=...)``: each record is handled once, in a database transaction that is committed
before the record is settled. The database is a file of SQLite's, the cluster is in memory."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from escrowmq import ConfigError, Message, RetryPolicy
from escrowmq.integrations import AsyncInbox, Inbox
from escrowmq.testing import InMemoryCluster

TOPIC, GROUP, RECORDS = "invoices", "billing", 6
#: A record whose first attempt fails behind its work, and one that was handled by an earlier consumer, which
#: died before its ack.
FAILS, DONE = 1, 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "billing.db"
    with closing(sqlite3.connect(found)) as db:
        db.execute("create table bills (id int not null)")
    return found


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic(TOPIC, partitions=1)
        yield made


def send(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer:
        for number in range(RECORDS):
            producer.send(Message(TOPIC, b"%d" % number))


def bills(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        return [number for (number,) in db.execute("select id from bills order by id")]


def inbox_of(path: Path, group: str = GROUP) -> Inbox:
    made = Inbox(lambda: sqlite3.connect(path, timeout=10, check_same_thread=False), group=group)
    made.create_table()
    return made


class Billing:
    """A handler: the records that it was called for, and when the run is to end."""

    def __init__(self) -> None:
        self.called: list[int] = []
        self.stop = threading.Event()

    def bill(self, record: Any, db: Any) -> None:
        number = int(record.value)
        db.execute("insert into bills values (?)", (number,))
        self.called.append(number)
        if number == FAILS and self.called.count(number) == 1:
            raise ValueError("behind the work, before the commit")
        if len(set(self.called)) == RECORDS - 1 and self.called.count(FAILS) == 2:
            self.stop.set()


def test_a_share_consumer_handles_each_record_once(cluster: InMemoryCluster, path: Path) -> None:
    inbox, billing = inbox_of(path), Billing()
    with cluster.share_consumer(GROUP, [TOPIC], auto_offset_reset="earliest") as queue:
        send(cluster)
        for record in queue.poll(max_records=RECORDS, timeout_s=5.0):
            if int(record.value) == DONE:
                inbox.handler(lambda record, db: db.execute("insert into bills values (?)", (DONE,)))(record)
            queue.release(record)
        queue.run(billing.bill, threads=2, stop=billing.stop, inbox=inbox)
        assert bills(path) == list(range(RECORDS))
        assert sorted(billing.called) == sorted([*({*range(RECORDS)} - {DONE}), FAILS])
        cluster.clock.advance(600)
        assert queue.poll(timeout_s=1.0) == [], "also the one that was handled before is acked"
    later = Inbox(lambda: sqlite3.connect(path), group=GROUP, clock=lambda: time.time() + 8 * 86_400)
    assert later.purge(cluster.admin).removed == RECORDS, "the group is past them"


def test_rows_of_records_that_a_share_group_may_get_again_stay(cluster: InMemoryCluster, path: Path) -> None:
    inbox = inbox_of(path)
    later = Inbox(lambda: sqlite3.connect(path), group=GROUP, clock=lambda: time.time() + 8 * 86_400)
    with cluster.share_consumer(GROUP, [TOPIC], auto_offset_reset="earliest") as queue:
        send(cluster)
        for record in queue.poll(max_records=RECORDS, timeout_s=5.0):
            inbox.handler(lambda record, db: None)(record)
            if int(record.value) != 2:
                queue.ack(record)
        queue.flush()
        assert later.purge(cluster.admin).removed == 2, "those in front of the one that is not acked"


@pytest.mark.parametrize("order", ["ordered", "concurrent"])
def test_a_consumer_of_offsets_handles_each_record_once(
    cluster: InMemoryCluster, path: Path, order: str
) -> None:
    inbox, billing = inbox_of(path), Billing()
    send(cluster)
    retry = RetryPolicy(order=order)
    with cluster.consumer(GROUP, [TOPIC], auto_offset_reset="earliest", retry=retry) as consumer:
        (record,) = consumer.poll(max_records=1, timeout_s=5.0)
        inbox.handler(lambda record, db: db.execute("insert into bills values (0)"))(record)
    # The next one begins with the same record, which was not committed.
    with cluster.consumer(GROUP, [TOPIC], auto_offset_reset="earliest", retry=retry) as consumer:
        consumer.run(billing.bill, stop=billing.stop, inbox=inbox)
    assert bills(path) == list(range(RECORDS))
    assert sorted(billing.called) == [1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("sessions", [False, True])
def test_coroutines_with_an_asynchronous_inbox(cluster: InMemoryCluster, path: Path, sessions: bool) -> None:
    called: list[int] = []

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        inbox = AsyncInbox(async_sessionmaker(engine) if sessions else engine, group=GROUP)
        await inbox.create_table()
        stop = asyncio.Event()

        async def bill(record: Any, db: Any) -> None:
            assert isinstance(db, AsyncSession) is sessions
            number = int(record.value)
            await db.execute(sa.text(f"insert into bills values ({number})"))
            called.append(number)
            if number == FAILS and called.count(number) == 1:
                raise ValueError("behind the work, before the commit")
            if len(set(called)) == RECORDS and called.count(FAILS) == 2:
                stop.set()

        queue = cluster.share_consumer(GROUP, [TOPIC], auto_offset_reset="earliest").aio
        async with queue:
            await asyncio.to_thread(send, cluster)
            await queue.run(bill, tasks=1, stop=stop, inbox=inbox)
            with pytest.raises(ConfigError, match=r"`aio\.run` an AsyncInbox"):
                await queue.run(bill, inbox=inbox_of(path))
        await engine.dispose()

    asyncio.run(main())
    assert bills(path) == list(range(RECORDS)) and len(called) == RECORDS + 1


def test_what_would_be_acked_without_being_handled_is_refused(cluster: InMemoryCluster, path: Path) -> None:
    async def handler(*_: Any) -> None:
        raise AssertionError("not reached")

    inbox = AsyncInbox(create_async_engine(f"sqlite+aiosqlite:///{path}"), group=GROUP)
    with cluster.share_consumer(GROUP, [TOPIC]) as queue:
        with pytest.raises(ConfigError, match=r"coroutine function.*use consumer.aio.run"):
            queue.run(handler)
        with pytest.raises(ConfigError, match="give `run` an Inbox"):
            queue.run(print, inbox=inbox)
        with pytest.raises(ConfigError, match="group 'other', and this is group 'billing'"):
            queue.run(print, inbox=inbox_of(path, "other"))
        with pytest.raises(ConfigError, match="must be an Inbox"):
            queue.run(print, inbox=path)  # type: ignore[arg-type]
