"""Outboxes on engines, tables and contents that are out of the ordinary."""

from __future__ import annotations

import sqlite3
import tracemalloc
from pathlib import Path

import pytest
import sqlalchemy as sa

from escrowmq import InvalidMessage, Message
from escrowmq.feedback.database.errors import NoDatabaseTransaction
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.relaying import Step
from tests.support.outboxes import drop, world_in
from tests.support.relays import World
from tests.support.shops import Shop


def test_a_relay_and_a_desk_in_autocommit_change_nothing(shop: Shop) -> None:
    """An engine in AUTOCOMMIT commits each statement on its own: half of a step would stay."""
    world = world_in(shop)
    world.send(Message("t", b"1"))
    engine = sa.create_engine(shop.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    outbox = Outbox(engine, table=world.outbox.statements.table)
    with pytest.raises(NoDatabaseTransaction, match="AUTOCOMMIT"):
        World(outbox, world.connect, world.commit).relay().step()
    with pytest.raises(NoDatabaseTransaction, match="AUTOCOMMIT"):
        outbox.drop([outbox.rows()[0].id])
    assert world.relay().step() is Step.SENT
    drop(shop)


def test_a_table_in_an_attached_database(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")

    @sa.event.listens_for(engine, "connect")
    def attach(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"attach '{tmp_path}/messages.db' as own")

    outbox = Outbox(engine, table="own.outbox")
    for _ in range(2):
        outbox.create_table()
    world = World(outbox, engine.connect, lambda db: db.commit())
    world.send(Message("t", b"1"))
    assert world.relay().step() is Step.SENT and not outbox.rows()
    with engine.connect() as db:
        assert db.execute(sa.text("select name from own.sqlite_master where type = 'index'")).all()


@pytest.mark.parametrize("text", ["topic", "header"])
def test_a_text_that_cannot_be_sent_is_refused_at_once(shop: Shop, text: str) -> None:
    world, broken = world_in(shop), "\ud800"
    with pytest.raises(InvalidMessage, match="no text that can be sent"):
        world.send(Message(broken, b"") if text == "topic" else Message("t", b"", headers={broken: b""}))
    drop(shop)


def test_a_look_reads_the_contents_of_one_batch(shop: Shop) -> None:
    """A window of a thousand rows, of a MiB each, would be a GiB in the relay's memory."""
    world = world_in(shop)
    for _ in range(40):
        world.send(Message("t", bytes(1 << 20)))
    tracemalloc.start()
    try:
        relay, steps = world.relay(), 0
        while relay.step() is Step.SENT:
            steps += 1
            world.broker.log.clear()
        assert steps == 6, "8 MiB each"
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    drop(shop)
