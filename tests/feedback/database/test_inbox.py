"""The inbox on real databases: a record is handled once, whoever is delivered it, and however often."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from escrowmq import Message, StreamRecord
from escrowmq.feedback.database.failures import StatementFailure, failure_of
from escrowmq.integrations import (
    AlreadyDone,
    AsyncInbox,
    DatabaseMisused,
    Inbox,
    NoDatabaseTransaction,
    Outbox,
    OutboxRelay,
    TableMissing,
)
from escrowmq.replication.errors import EscrowMQError, OutcomeUnknown, TransactionSettled
from escrowmq.testing import InMemoryCluster
from tests.support.inboxes import Accounts, race, record
from tests.support.shops import DRIVERS, LEVELS, Shop, ShopMaker, closing_shops


@pytest.fixture
def accounts(make_shop: ShopMaker) -> Iterator[Accounts]:
    made = Accounts(make_shop())
    yield made
    made.close()


def handle(accounts: Accounts, number: int, commit: bool = True, inbox: Inbox | None = None) -> bool:
    with accounts.open() as local:
        with (inbox or accounts.inbox).once(local.connection, record(number)) as first:
            if first:
                accounts.do(local, number)
        if commit:
            local.connection.commit()
        return first


def test_a_record_is_handled_once_and_what_is_rolled_back_was_not_handled(accounts: Accounts) -> None:
    assert handle(accounts, 1, commit=False)
    assert handle(accounts, 1) and not handle(accounts, 1)
    assert handle(accounts, 2)
    assert accounts.done() == [1, 2] and accounts.rows() == 2


def test_several_records_share_one_database_transaction(accounts: Accounts) -> None:
    with accounts.open() as local:
        seen = []
        for number in (1, 2, 1):
            with accounts.inbox.once(local.connection, record(number)) as first:
                seen.append(first)
        local.connection.commit()
    assert seen == [True, True, False] and accounts.rows() == 2


def test_groups_do_not_see_each_other_nor_do_records_that_look_alike(accounts: Accounts) -> None:
    assert handle(accounts, 1) and handle(accounts, 1, inbox=accounts.make("audit"))
    others = [
        record(1, topic="orders2"),
        record(1, partition=1),
        record(1, timestamp=8),  # the topic was deleted and created again
        record(11),
        record(1, topic="Orders"),  # no collation decides
        record(1, topic="orders "),
    ]
    for other in others:
        with accounts.open() as local:
            with accounts.inbox.once(local.connection, other) as first:
                assert first, other
            local.connection.commit()


def test_a_record_that_was_stored_again_is_the_one_that_it_was_at_first(accounts: Accounts) -> None:
    assert handle(accounts, 1)
    again = SimpleNamespace(topic="__retry.billing", partition=3, offset=99, timestamp=500, origin=record(1))
    fresh = SimpleNamespace(topic="orders", partition=0, offset=2, timestamp=7, origin=None)
    with accounts.open() as local:
        with accounts.inbox.once(local.connection, again) as first:
            assert not first
        with accounts.inbox.once(local.connection, fresh) as first:
            assert first
        local.connection.commit()
    assert not handle(accounts, 2), "with an origin or without: the same record"


def test_a_block_that_fails_has_not_handled_its_record_even_if_somebody_commits(accounts: Accounts) -> None:
    with accounts.open() as local:
        with pytest.raises(ZeroDivisionError), accounts.inbox.once(local.connection, record(1)):
            raise ZeroDivisionError
        with accounts.inbox.once(local.connection, record(2)) as first:
            assert first
        with pytest.raises(ZeroDivisionError), accounts.inbox.once(local.connection, record(2)):
            raise ZeroDivisionError  # it was handled before: this changes nothing
        local.connection.commit()
    assert handle(accounts, 1) and not handle(accounts, 2)


def test_a_statement_that_fails_in_the_block_comes_out_as_it_is(accounts: Accounts) -> None:
    with accounts.open() as local:
        with (
            pytest.raises(Exception, match="no_such_table"),
            accounts.inbox.once(local.connection, record(1)),
        ):
            local.execute("select * from no_such_table")
        local.connection.rollback()
    assert handle(accounts, 1)


def test_a_block_that_commits_itself_has_handled_its_record(accounts: Accounts) -> None:
    with accounts.open() as local:
        with pytest.raises(ZeroDivisionError), accounts.inbox.once(local.connection, record(1)):
            local.connection.commit()
            raise ZeroDivisionError
        local.connection.commit()
    assert not handle(accounts, 1)


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_second_handler_waits_for_the_first_at_every_level(accounts: Accounts, first_commits: bool) -> None:
    for number, level in enumerate(LEVELS[accounts.shop.kind]):
        told: list[object] = []
        first = accounts.shop.begin(level)
        with accounts.inbox.once(first.connection, record(number)) as is_first:
            assert is_first
            accounts.do(first, number)

        def second(level: str = level, number: int = number, told: list[object] = told) -> None:
            other = accounts.shop.begin(level)
            try:
                with accounts.inbox.once(other.connection, record(number)) as is_first:
                    told.append(is_first)
                    if is_first:
                        accounts.do(other, number)
                other.connection.commit()
            except Exception as error:
                told.append(failure_of(error))
                other.rollback()

        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.2)
        assert told == [], level
        if first_commits:
            first.commit()
        else:
            first.rollback()
        waiting.join(30)
        # A snapshot that is older than the row cannot see it: some databases refuse, and it comes again.
        refused = [[StatementFailure.LOCKED]] if level in ("REPEATABLE READ", "SERIALIZABLE") else []
        assert told in ([[False], *refused] if first_commits else [[True]]), level
        assert handle(accounts, number) is False
    assert accounts.done() == list(range(len(LEVELS[accounts.shop.kind])))


def test_drawn_races_and_crashes_handle_every_record_once(make_shop: ShopMaker) -> None:
    for seed in range(6):
        accounts = Accounts(make_shop())
        assert race(accounts, seed) == []
        accounts.close()


def test_sessions_and_savepoints(accounts: Accounts) -> None:
    inbox = Inbox(accounts.shop.engine, group="sessions", table=accounts.table)
    with Session(accounts.shop.engine) as session, session.begin():
        with inbox.once(session, record(1)) as first:
            assert first
        with pytest.raises(ZeroDivisionError), session.begin_nested(), inbox.once(session, record(2)):
            raise ZeroDivisionError
        with session.begin_nested(), inbox.once(session, record(3)) as first:
            assert first
    for number, expected in ((1, False), (2, True), (3, False)):
        with accounts.shop.engine.begin() as db, inbox.once(db, record(number)) as first:
            assert first is expected


def test_asyncio(accounts: Accounts) -> None:
    async def story() -> None:
        engine = create_async_engine(accounts.shop.url(DRIVERS[accounts.shop.kind]))
        try:
            inbox = AsyncInbox(async_sessionmaker(engine), group="aio", table=accounts.table)
            await inbox.create_table()
            work = sa.text(f"insert into {accounts.work} values (1)")
            for expected in (True, False):
                async with engine.begin() as db, inbox.once(db, record(1)) as first:
                    assert first is expected
                    if first:
                        await db.execute(work)
            async with AsyncSession(engine) as session:
                with pytest.raises(ZeroDivisionError):
                    async with inbox.once(session, record(2)):
                        raise ZeroDivisionError
                await session.commit()
                async with inbox.once(session, record(2)) as first:
                    assert first
                await session.commit()
            with pytest.raises(DatabaseMisused, match="AsyncConnection"):
                async with inbox.once(engine, record(1)):
                    raise AssertionError("not reached")
            assert (await inbox.purge(None, keep_s=3600.0)).read == 2
            assert inbox.schema() == accounts.inbox.schema()
        finally:
            await engine.dispose()

    asyncio.run(story())
    assert accounts.done() == [1]


@pytest.mark.parametrize("wrong", [None, b"x", SimpleNamespace(topic="t"), replace(record(1), offset=-1)])
def test_what_is_no_record_is_refused(accounts: Accounts, wrong: Any) -> None:
    with (
        accounts.open() as local,
        pytest.raises(DatabaseMisused, match=r"poll\(\)"),
        accounts.inbox.once(local.connection, wrong),
    ):
        raise AssertionError("not reached")


def test_what_cannot_work_is_refused(accounts: Accounts, shop: Shop) -> None:
    database = shop.connect if shop.plain else shop.engine
    for group in ("", "x" * 3000, 5):
        with pytest.raises(DatabaseMisused, match="group"):
            Inbox(database, group=group)  # type: ignore[arg-type]
    for options in ({"keep_s": 60.0}, {"slice_rows": 0}):
        with pytest.raises(DatabaseMisused, match="must be"):
            accounts.inbox.purge(None, **options)  # type: ignore[arg-type]
    with pytest.raises(DatabaseMisused, match="table"):
        Inbox(database, group="g", table="drop table x")
    missing = Inbox(database, group="g", table="no_such_inbox")
    with (
        accounts.open() as local,
        pytest.raises(TableMissing, match=r"inbox\.create_table"),
        missing.once(local.connection, record(1)),
    ):
        raise AssertionError("not reached")


def test_a_connection_in_autocommit_is_refused(accounts: Accounts) -> None:
    shop = accounts.shop
    if not shop.plain:
        connection: Any = shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    else:
        connection = shop.connect()
        if shop.kind == "sqlite":
            connection.isolation_level = None
        elif shop.kind == "postgresql":
            connection.autocommit = True
        else:
            connection.autocommit(True)
    with (
        pytest.raises(NoDatabaseTransaction, match="inbox's row"),
        accounts.inbox.once(connection, record(1)),
    ):
        raise AssertionError("not reached")
    connection.close()
    assert accounts.rows() == 0


# ------------------------------------------------------------ records that become messages


class HandledBefore(Exception):
    """As in the guide: the record has its row already."""


@pytest.mark.parametrize("way", ["obvious", "exception", "origin", "outbox"])
def test_a_redelivered_record_becomes_one_message_in_the_ways_of_the_guide(tmp_path: Path, way: str) -> None:
    """Its first handling fails, the second one succeeds, the third is a redelivery."""
    with closing_shops(None, tmp_path, False) as make, InMemoryCluster() as cluster:
        shop = make()
        cluster.admin.create_topic("invoices")
        inbox = Inbox(shop.engine, group="billing")
        inbox.create_table()
        outbox = Outbox(shop.engine)
        outbox.create_table()
        relay = OutboxRelay(outbox, cluster, app="relay")
        producer = cluster.producer(app="shop", tx_status_querier=shop.fence)
        invoice, taken = Message("invoices", b"1"), StreamRecord("orders", 0, 1, 7, None, b"1", {}, None)
        origin = "/".join(map(str, taken.origin)) if way == "origin" else None

        def handle(fails: bool) -> None:
            if way == "outbox":
                with shop.engine.begin() as db, inbox.once(db, taken) as first:
                    if first:
                        outbox.send(db, invoice)
                    if fails:
                        raise ZeroDivisionError
                return
            with (
                contextlib.suppress(HandledBefore),
                shop.fence.transaction(producer, invoice, tx_id=origin) as (_, db),
                inbox.once(db, taken) as first,
            ):
                if way == "exception" and not first:
                    raise HandledBefore
                if fails:
                    raise ZeroDivisionError

        if way == "origin":
            handle(False)
            with pytest.raises(AlreadyDone):
                handle(False)
            taken = replace(taken, offset=2)
            origin = "/".join(map(str, taken.origin))
        with pytest.raises(ZeroDivisionError):
            handle(True)
        for _ in range(2):
            with pytest.raises(TransactionSettled) if way == "origin" else contextlib.nullcontext():
                handle(False)
        relay.send_waiting()
        cluster.clock.advance(90.0)
        relay.close()
        with cluster.consumer("reader", ["invoices"], auto_offset_reset="earliest") as reader:
            read = [len(reader.poll(timeout_s=1.0)) for _ in range(3)]
        assert sum(read) == (2 if way == "obvious" else 1)


LOST = [
    ("prepare", False),
    ("prepare", True),
    ("commit", False),
    ("commit", True),
    ("send", False),
    ("send", True),
]


@pytest.mark.parametrize("way", ["exception", "outbox"])
@pytest.mark.parametrize(("what", "carried_out"), LOST)
@pytest.mark.parametrize("tries", [1, 3])
def test_each_row_has_one_message_whatever_answer_is_lost(
    tmp_path: Path, way: str, what: str, carried_out: bool, tries: int
) -> None:
    """As the guide says it: whatever raises, the record comes again, until its handling ends without error.
    ``tries``: how often in a row such an answer is lost."""
    with closing_shops(None, tmp_path, False) as make, InMemoryCluster() as cluster:
        shop = make()
        cluster.admin.create_topic("invoices")
        inbox, outbox = Inbox(shop.engine, group="billing"), Outbox(shop.engine)
        inbox.create_table()
        outbox.create_table()
        relay = OutboxRelay(outbox, cluster, app="relay")
        producer = cluster.producer(app="shop", tx_status_querier=shop.fence)
        records = [StreamRecord("orders", 0, n, 7, None, b"%d" % n, {}, None) for n in range(3)]

        def handle(record: StreamRecord) -> None:
            invoice = Message("invoices", record.value)
            if way == "outbox":
                with shop.engine.begin() as db, inbox.once(db, record) as first:
                    if first:
                        outbox.send(db, invoice)
                relay.send_waiting()
                return
            with (
                contextlib.suppress(HandledBefore),
                shop.fence.transaction(producer, invoice) as (_, db),
                inbox.once(db, record) as first,
            ):
                if not first:
                    raise HandledBefore

        for record in records:
            left = tries
            for _ in range(10):
                if left:
                    cluster.fail_next(what, OutcomeUnknown, carried_out=carried_out)
                    left -= 1
                try:
                    handle(record)
                except EscrowMQError:
                    cluster.clock.advance(90.0)
                else:
                    break
            else:
                raise AssertionError("it is never handled")
            handle(record)  # a redelivery, since the offset's commit was lost
        for _ in range(3):
            cluster.clock.advance(90.0)
            relay.send_waiting()
        relay.close()
        with cluster.consumer("reader", ["invoices"], auto_offset_reset="earliest") as reader:
            read = [record.value for _ in range(6) for record in reader.poll(timeout_s=1.0)]
        assert sorted(read) == [b"0", b"1", b"2"]
