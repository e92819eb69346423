"""The outbox on real databases: what a transaction inserts is sent once, in order, whatever dies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from escrowmq import InvalidMessage, Message
from escrowmq.feedback.database.errors import DatabaseMisused, NoDatabaseTransaction, TableMissing
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.outbox_shards import LEASE_MS, OutboxShards, ShardLost
from escrowmq.feedback.database.outbox_statements import (
    OutboxRow,
    content_of,
    digest_of_rows,
    message_of,
    order_key_of,
    shard_of,
)
from escrowmq.feedback.database.relaying import Step
from tests.support.outboxes import drop, left, values, world_in
from tests.support.relays import Broker, World, drawn
from tests.support.shops import Shop, ShopMaker, closing_shops


@pytest.fixture
def world(make_shop: ShopMaker) -> Iterator[World]:
    shop = make_shop()
    found = world_in(shop)
    yield found
    drop(shop)


def test_what_is_committed_is_sent_and_what_is_rolled_back_is_not(world: World) -> None:
    relay = world.relay()
    assert relay.step() is Step.IDLE
    at = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000)
    world.send(Message("t", b"1", key=b"k", headers={"a": b"b"}), Message("t", b"2", deliver_at=at))
    world.send(Message("t", b"3"), commit=False)
    world.send(Message("t", b"4", partition=2, delay_s=1.5))
    assert relay.step() is Step.SENT and relay.step() is Step.IDLE
    assert values(world) == [b"1", b"2", b"4"] and left(world) == []
    first, second, third = world.broker.log
    assert (first.key, dict(first.headers), first.partition) == (b"k", {"a": b"b"}, 1)
    assert second.deliver_at == at and (third.partition, third.delay_s) == (2, 1.5)
    assert world.broker.last[0][0] == 1
    world.send(*(Message("t", b"%d" % n, key=b"k") for n in range(250)))  # more than one INSERT holds
    assert relay.step() is Step.SENT
    assert values(world)[3:] == [b"%d" % n for n in range(250)]


def test_while_the_broker_is_away_rows_pile_up_and_nothing_counts(world: World) -> None:
    world.broker.away = True
    relay = world.relay()
    for number in range(3):
        world.send(Message("t", b"%d" % number))
        assert relay.step() is Step.AWAY
    assert left(world) == [(1, 0, None)] * 3
    world.broker.away = False
    assert [relay.step() for _ in range(3)] == [Step.SENT, Step.SENT, Step.IDLE]
    assert values(world) == [b"0", b"1", b"2"]


def test_a_refused_batch_goes_group_by_group_and_holds_back_its_keys_alone(world: World) -> None:
    world.broker.refuses = lambda found: "too bad" if any(m.value == b"bad" for m in found) else ""
    world.send(Message("t", b"1", key=b"a"))
    world.send(Message("t", b"bad", key=b"bb"))
    world.send(Message("t", b"2", key=b"bb"), Message("t", b"3", key=b"ccc"))
    world.send(Message("t", b"4", key=b"ccc"))
    world.send(Message("t", b"5", key=b"dddd"))
    relay = world.relay()
    assert relay.step() is Step.REFUSED and values(world) == []
    seen = [relay.step() for _ in range(4)]
    assert seen == [Step.SENT, Step.REFUSED, Step.SENT, Step.IDLE]
    assert values(world) == [b"1", b"5"], "what has a key of a group that waits, waits too"
    for _ in range(40):
        world.now_ms += 600_000
        relay.step()
    assert values(world) == [b"1", b"5", b"2", b"3", b"4"]
    assert left(world) == [(2, 16, "too bad")], "dead, for a person"


def test_what_cannot_be_sent_at_all_is_dead_at_once_with_its_group(world: World) -> None:
    world.send(Message("t", b"1"), Message("unknown", b"2"))
    world.send(Message("t", b"3"))
    relay = world.relay()
    assert [relay.step() for _ in range(3)] == [Step.REFUSED, Step.SENT, Step.IDLE]
    assert values(world) == [b"3"] and left(world) == [(2, 1, "unknown topic")] * 2


def test_a_relay_that_was_paused_stops_and_does_not_write_over_its_successor(world: World) -> None:
    old = world.relay()
    world.send(Message("t", b"1"))
    assert old.step() is Step.SENT
    young = world.relay()
    assert young.step() is Step.NOT_MINE
    world.now_ms += LEASE_MS + 1
    world.send(Message("t", b"2"))
    assert young.step() is Step.SENT
    assert old.step() is Step.NOT_MINE and young.step() is Step.IDLE
    assert values(world) == [b"1", b"2"]


def test_the_database_of_yesterday_stops_the_shard_and_removes_nothing(world: World) -> None:
    relay = world.relay()
    world.send(Message("t", b"1"))
    assert relay.step() is Step.SENT
    world.broker.last[0] = 7, b"of what the database has forgotten"
    world.send(Message("t", b"2"))
    assert relay.step() is Step.STOPPED
    assert values(world) == [b"1"] and len(left(world)) == 1
    world.now_ms += LEASE_MS + 1
    assert relay.step() is Step.NOT_MINE and world.relay().step() is Step.NOT_MINE


def test_a_lease_that_a_wrong_clock_took_does_not_last_for_years(world: World) -> None:
    now, year = world.now_ms, 365 * 86_400_000

    def shards(owner: str, clock_ms: int) -> OutboxShards:
        return OutboxShards(world.outbox.database, world.outbox.statements, owner, lambda: clock_ms)

    first = shards("ahead", now + year).take(0)
    assert first is not None
    second = shards("right", now).take(0)
    assert second is not None and second.epoch == first.epoch + 1
    assert shards("minutes ahead", now + 600_000).take(1) is not None
    assert shards("right", now).take(1) is None, "it may live, and its clock is only minutes ahead"


def test_rows_that_somebody_has_changed_are_left_alone(world: World) -> None:
    world.send(Message("t", b"1"), Message("t", b"2"))
    shards = OutboxShards(world.outbox.database, world.outbox.statements, "me", lambda: world.now_ms)
    lease = shards.take(0)
    assert lease is not None
    rows = shards.pick(0)
    assert [row.batch for row in shards.mark(lease, rows, {row.id: 0 for row in rows})] == [1, 1]
    for wrong in (
        lambda: shards.mark(lease, rows, {row.id: 0 for row in rows}),
        lambda: shards.finish(lease, 2, rows),
        lambda: shards.finish(lease, 1, [*rows, replace(rows[0], id=99)]),
        lambda: shards.dissolve(lease, 2, rows, "x"),
        lambda: shards.bury(lease, rows, "x"),
        lambda: shards.finish(replace(lease, epoch=lease.epoch - 1), 1, rows),
    ):
        with pytest.raises(ShardLost):
            wrong()
    assert [row.batch for row in shards.in_batch(lease)] == [1, 1]
    assert shards.finish(lease, 1, rows).last == 1 and left(world) == []


def test_drawn_kills_and_pauses(make_shop: ShopMaker, kind: str) -> None:
    for seed in range(30 if kind == "sqlite" else 4):
        shop = make_shop()
        assert drawn(world_in(shop, shards=1 + seed % 2), seed) == []
        drop(shop)
        shop.close()


def test_rows_that_wait_hide_none_behind_them(make_shop: ShopMaker) -> None:
    shop = make_shop()
    world = world_in(shop, new_shards=partial(OutboxShards, window=4))
    world.broker.refuses = lambda found: "no" if any(m.key == b"bad" for m in found) else ""
    for number in range(12):
        world.send(Message("t", b"%d" % number, key=b"bad"))
    world.send(*(Message("t", b"good %d" % number) for number in range(6)))
    relay = world.relay()
    for _ in range(20):
        relay.step()
    assert values(world) == [b"good %d" % number for number in range(6)]
    drop(shop)


def test_what_cannot_work_is_refused(make_shop: ShopMaker, shop: Shop) -> None:
    database = shop.connect if shop.plain else shop.engine
    for shards in (0, 1000, "1"):
        with pytest.raises(DatabaseMisused, match="shards"):
            Outbox(database, shards=shards)  # type: ignore[arg-type]
    outbox = Outbox(database, table="no_such_outbox")
    local = shop.begin()
    with pytest.raises(TableMissing, match=r"outbox\.create_table"):
        outbox.send(local.connection, Message("t", b""))
    local.rollback()
    for wrong in (Message("t", {"a": 1}), "text"):
        with pytest.raises(InvalidMessage):
            outbox.send(None, wrong)  # type: ignore[arg-type]
    if not shop.plain:
        connection = shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with connection, pytest.raises(NoDatabaseTransaction, match="outbox's row"):
            outbox.send(connection, Message("t", b""))


def test_contents_digests_and_keys_are_those_of_every_version() -> None:
    message = Message("orders", b"v", key=b"k", headers={"b": b"2", "a": b"1"}, deliver_at=1_900_000_000_000)
    content = content_of(message)
    assert content.hex() == ("96a66f7264657273c0c4016bc4017682a162c40132a161c40131cf000001ba60d33800"), (
        "rows of databases are read by later versions"
    )
    row = OutboxRow(1, b"g", 1, None, content, 0, 0, 1, 2)
    assert digest_of_rows([row]).hex() == "b6dc0d5e044fb10e65ce754163512623", "later ones send it"
    for changed in ({"id": 2}, {"group": b"h"}, {"placed": 1}, {"batch": 2}):
        assert digest_of_rows([replace(row, **changed)]) != digest_of_rows([row])  # type: ignore[arg-type]
    assert digest_of_rows([replace(row, attempts=1, content=b"damaged")]) == digest_of_rows([row])
    assert message_of(content, 2).partition == 2
    assert order_key_of(message) == order_key_of(Message("orders", b"", key=b"k"))
    assert order_key_of(message) != order_key_of(Message("order", b"", key=b"sk"))
    assert order_key_of(Message("orders", b"")) is None
    assert shard_of(None, b"12345678", 8) == shard_of(b"12345678", b"", 8)


class ByCursor(OutboxShards):
    """Remembers the id up to which it has sent, and never looks before it."""

    seen = 0

    def pick(self, shard: int) -> list[OutboxRow]:
        rows = [row for row in super().pick(shard) if row.id > self.seen]
        self.seen = rows[-1].id if rows else self.seen
        return rows


class BatchChanges(OutboxShards):
    """After a restart the batch is put together anew, from the rows that are there by then."""

    def in_batch(self, lease: Any) -> list[OutboxRow]:
        rows = super().in_batch(lease)
        return rows[: len(rows) // 2] if len(rows) > 1 else rows


class NotInOrder(OutboxShards):
    """Sends what came last first."""

    def pick(self, shard: int) -> list[OutboxRow]:
        return super().pick(shard)[-1:]


class NoLease(OutboxShards):
    """Does not look whether it has its shard still."""

    @staticmethod
    def _expect(count: int, changed: int) -> None: ...


class NoEpochs(Broker):
    """Nor does the broker."""

    def claim(self, shard: int) -> int:
        return self.epochs.setdefault(shard, 1)


class RemovedUnasked(Broker):
    """Without an answer from the broker, the rows are removed."""

    def ship(self, *given: Any) -> None:
        if not self.away:
            super().ship(*given)


class NoNumbers(Broker):
    """Takes any batch for a new one."""

    def ship(self, shard: int, epoch: int, number: int, messages: Sequence[Message], digest: bytes) -> None:
        self.log += messages


@pytest.mark.parametrize(
    ("broker", "new_shards", "anomaly"),
    [
        (Broker, BatchChanges, ("outbox-lost", "outbox-duplicate", "outbox-reordered")),
        (NoEpochs, NoLease, ("outbox-",)),
        (RemovedUnasked, OutboxShards, ("outbox-lost",)),
        (Broker, NotInOrder, ("outbox-reordered",)),
        (NoNumbers, OutboxShards, ("outbox-duplicate", "outbox-reordered")),
    ],
)
def test_a_planted_fault_is_found(
    broker: type[Broker], new_shards: type[OutboxShards], anomaly: tuple[str, ...], tmp_path: Any
) -> None:
    with closing_shops(None, tmp_path, True) as make:
        for seed in range(80):
            found = drawn(world_in(make(), broker(), new_shards), seed)
            if found:
                assert all(line.startswith(anomaly) for line in found), found
                return
    raise AssertionError("not found")


@pytest.mark.parametrize("new_shards", [OutboxShards, ByCursor])
def test_a_relay_by_cursor_loses_what_is_committed_late(
    make_shop: ShopMaker, kind: str, new_shards: type[OutboxShards]
) -> None:
    if kind == "sqlite":
        return  # one writer at a time: rows are committed in the order of their ids
    shop = make_shop()
    world = world_in(shop, new_shards=new_shards)
    slow = world.connect()
    world.outbox.send(slow, Message("t", b"slow"))
    world.send(Message("t", b"quick"))
    relay = world.relay()
    assert relay.step() is Step.SENT
    slow.commit()
    slow.close()
    world.committed.append(b"slow")
    relay.step()
    assert (world.anomalies() == ["outbox-lost: b'slow'"]) is (new_shards is ByCursor)
    drop(shop)
