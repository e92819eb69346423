"""Outboxes on engines, tables and contents that are out of the ordinary."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import tracemalloc
from pathlib import Path

import pytest
import sqlalchemy as sa

from escrowmq import InvalidMessage, Message, MessageTooLarge, ProducerConfig
from escrowmq.feedback.database import outbox_shards, relaying
from escrowmq.feedback.database.durability import loses_commits
from escrowmq.feedback.database.errors import NoDatabaseTransaction
from escrowmq.feedback.database.outbox import MESSAGE_BYTES_MAX, TRANSACTION_BYTES_MAX, Outbox
from escrowmq.feedback.database.outbox_statements import content_of
from escrowmq.feedback.database.relaying import Step
from escrowmq.integrations import Fence, Inbox, SendTooLarge
from tests.support.outboxes import drop, outbox_in, values, world_in
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


def spoil(world: World, id: int, content: bytes) -> None:
    with world.outbox.database.opening() as (_, link):
        table = world.outbox.statements.table
        link.run(f"update {table} set content = :content where id = {id}", {"content": content})
        link.commit()


def test_a_row_that_nobody_can_read_is_dead_with_its_group_and_holds_up_no_other(shop: Shop) -> None:
    world = world_in(shop)
    outbox, relay = world.outbox, world.relay()
    world.send(Message("t", b"1"))
    world.send(Message("t", b"2", key=b"k"), Message("t", b"with it"))
    world.send(Message("t", b"3", key=b"k"))
    _, bad, mate, _ = outbox.rows()
    later = content_of(bad.message)[:-1] + b"\xc4\x01x"  # type: ignore[arg-type]  # as of a later version
    spoil(world, bad.id, later)
    shown = outbox.row(bad.id)
    assert (
        not shown.dead
        and shown.message is None
        and shown.content == later
        and "cannot be read" in shown.error
    )
    assert [relay.step() for _ in range(3)] == [Step.REFUSED, Step.SENT, Step.IDLE]
    assert values(world) == [b"1", b"3"]
    assert [(row.id, row.dead, row.message) for row in outbox.rows()] == [
        (bad.id, True, None), (mate.id, True, mate.message),
    ]  # fmt: skip
    assert outbox.row(bad.id).content == later and outbox.status()[0].dead == 2
    assert outbox.retry([bad.id]) == 2 and relay.step() is Step.REFUSED, "it is read again, and dead again"
    spoil(world, bad.id, content_of(bad.message))  # type: ignore[arg-type]
    assert outbox.retry([mate.id]) == 2 and relay.step() is Step.SENT
    assert values(world) == [b"1", b"3", b"2", b"with it"]
    world.send(Message("t", b"4"))
    spoil(world, outbox.rows()[0].id, b"")
    assert outbox.drop([outbox.rows()[0].id]) == 1 and outbox.rows() == []
    drop(shop)


def test_whatever_a_content_is_a_relay_goes_on(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine)
    outbox.create_table()
    world, rng = World(outbox, engine.connect, lambda db: db.commit()), random.Random(5)
    for number in range(40):
        whole = content_of(Message("t", b"value", key=b"k", headers={"a": b"b"}, delay_s=1.0))
        at = rng.randrange(len(whole))
        world.send(Message("t", b"x"))
        spoil(world, number + 1, whole[:at] + rng.randbytes(1) + whole[at + 1 :])
    relay = world.relay()
    steps = {relay.step() for _ in range(90)}
    assert steps <= {Step.REFUSED, Step.SENT, Step.IDLE} and relay.step() is Step.IDLE
    assert len(outbox.rows(dead=True)) + len(world.broker.log) == 40


def test_a_content_that_no_message_can_have_is_not_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (outbox_shards, relaying):
        monkeypatch.setattr(module, "CONTENT_BYTES_MAX", 1000)
    world = world_in(shop)
    world.send(Message("t", bytes(2000)))
    world.send(Message("t", b"1"))
    relay = world.relay()
    assert [relay.step(), relay.step()] == [Step.REFUSED, Step.SENT]
    (dead,) = world.outbox.rows()
    assert dead.dead and "more than any message may have" in dead.error and values(world) == [b"1"]
    drop(shop)


def test_what_can_never_be_sent_is_refused_where_it_is_made(shop: Shop) -> None:
    config = ProducerConfig()
    assert config.message_bytes_max == MESSAGE_BYTES_MAX
    assert config.transaction_bytes_max == TRANSACTION_BYTES_MAX
    world, large = world_in(shop), Message("t", bytes(1_000_000))
    with pytest.raises(SendTooLarge, match="use several calls of send"):
        world.send(*[large] * 17)
    with pytest.raises(MessageTooLarge, match="exceeds the limit of 1048576"):
        world.send(Message("t", b"", headers={"a": bytes(1 << 20)}))
    world.send(*[large] * 16)  # more than a statement of MariaDB's can have
    assert world.relay().step() is Step.SENT and world.outbox.rows() == []
    small = outbox_in(shop, message_bytes_max=100, transaction_bytes_max=200)
    with shop.engine.connect() as db, pytest.raises(SendTooLarge):
        small.send(shop.connect() if shop.plain else db, *[Message("t", bytes(90))] * 3)
    with shop.engine.connect() as db, pytest.raises(MessageTooLarge):
        small.send(shop.connect() if shop.plain else db, Message("t", bytes(150)))
    apart = outbox_in(shop, shards=8, transaction_bytes_max=200)
    with contextlib.closing(shop.connect()) if shop.plain else shop.engine.connect() as db:
        apart.send(db, *(Message("t", bytes(90), key=bytes([n])) for n in range(4)))
    drop(shop)


@pytest.mark.parametrize(
    ("mode", "level", "warned"),
    [("wal", "normal", "WAL with synchronous=NORMAL"), ("wal", "full", ""), ("delete", "normal", ""),
     ("delete", "off", "synchronous is OFF")],
)  # fmt: skip
def test_a_database_that_loses_commits_with_the_power_is_said_to(
    tmp_path: Path, mode: str, level: str, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")

    @sa.event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"pragma journal_mode = {mode}")
        connection.execute(f"pragma synchronous = {level}")

    for made, owner in (
        (Outbox(engine), "outbox"), (Inbox(engine, group="g"), "inbox"), (Fence(engine, app="a"), "fence"),
    ):  # fmt: skip
        caplog.clear()
        made.create_table()
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == bool(warned) and all(warned in one and one.startswith(owner) for one in said)


def test_a_server_that_loses_commits_with_the_power_is_said_to(shop: Shop) -> None:
    if shop.kind == "sqlite":
        return
    setting = {
        "postgresql": "set synchronous_commit = off",
        "mariadb": "set global innodb_flush_log_at_trx_commit = 2",
    }[shop.kind]  # fmt: skip
    outbox = outbox_in(shop)
    with outbox.database.opening() as (_, link):
        before = loses_commits(link, "t")
        link.run(setting)
        assert loses_commits(link, "t")
        if shop.kind == "mariadb":
            link.run(f"set global innodb_flush_log_at_trx_commit = {before[-1] if before else 1}")
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
