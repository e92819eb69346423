"""What people do with an outbox: look at rows and shards, retry and drop rows, release a stopped shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import InvalidMessage, Message
from escrowmq.feedback.database.errors import OutboxBehind, OutboxRowBusy, TableMissing, UnknownOutboxRow
from escrowmq.feedback.database.outbox import GROUP_ROWS_MAX, Outbox
from escrowmq.feedback.database.relaying import Step
from tests.support.outboxes import drop, values, world_in
from tests.support.relays import World
from tests.support.shops import Shop, ShopMaker


@pytest.fixture
def world(make_shop: ShopMaker) -> Iterator[World]:
    shop = make_shop()
    yield world_in(shop)
    drop(shop)


def test_rows_and_shards_are_shown_with_what_a_person_wants_to_know(world: World) -> None:
    outbox = world.outbox
    assert outbox.rows() == [] and outbox.status() == []
    world.send(Message("t", b"1", key=b"k"), Message("t", b"2"))
    world.send(Message("unknown", b"3"))
    (status,) = outbox.status()
    assert (status.shard, status.waiting, status.sending, status.dead) == (0, 3, 0, 0)
    assert status.oldest_ms is not None and status.owner == status.stopped == ""
    relay = world.relay()
    assert relay.step() is Step.REFUSED
    assert [row.message.value for row in outbox.rows(dead=False)] == [b"1", b"2"]
    (dead,) = outbox.rows(dead=True)
    assert (dead.message, dead.error, dead.attempts) == (Message("unknown", b"3"), "unknown topic", 1)
    assert [row.id for row in outbox.rows(limit=1, after=outbox.rows()[0].id)] == [outbox.rows()[1].id]
    assert outbox.row(dead.id) == dead
    world.broker.away = True
    assert relay.step() is Step.AWAY
    (status,) = outbox.status()
    assert (status.waiting, status.sending, status.dead, status.owner) == (2, 2, 1, "relay-1")
    assert [row.batch for row in outbox.rows()] == [1, 1, None]


def test_dead_rows_are_retried_or_dropped_with_their_whole_group(world: World) -> None:
    outbox = world.outbox
    world.send(Message("t", b"1"), Message("unknown", b"2"))
    world.send(Message("unknown", b"3"), Message("t", b"4"))
    relay = world.relay()
    assert relay.step() is Step.REFUSED
    first, second, third, fourth = outbox.rows(dead=True)
    assert outbox.drop([first.id]) == 2 and outbox.retry([third.id]) == 2 and outbox.retry([third.id]) == 2
    with pytest.raises(UnknownOutboxRow, match=f"no row {second.id}"):
        outbox.drop([second.id, fourth.id])
    world.broker.known.add("unknown")  # somebody has created the topic
    assert relay.step() is Step.SENT and values(world) == [b"3", b"4"]
    assert outbox.rows() == []


def test_rows_that_are_being_sent_are_left_alone(world: World) -> None:
    outbox = world.outbox
    world.send(Message("t", b"1"))
    world.broker.away = True
    assert world.relay().step() is Step.AWAY
    (row,) = outbox.rows()
    for change in (outbox.retry, outbox.drop):
        with pytest.raises(OutboxRowBusy, match=f"row {row.id}: they are being sent now"):
            change([row.id])
    with pytest.raises(OutboxRowBusy, match="shard 0 has not stopped"):
        outbox.desk.adopt(0, lambda: 1, hold=True)
    assert outbox.rows() == [row]


@pytest.mark.parametrize("what", ["retry", "drop"])
def test_rows_that_are_sent_while_a_person_decides_are_not_said_to_be_changed(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    desk, relay = world.outbox.desk, world.relay()
    world.send(Message("t", b"1"), Message("t", b"2"))
    _, second = world.outbox.rows()
    chosen = desk.chosen

    def sent_meanwhile(ids: Any) -> Any:
        found = chosen(ids)
        assert relay.step() is Step.SENT
        return found

    monkeypatch.setattr(desk, "chosen", sent_meanwhile)
    with pytest.raises(UnknownOutboxRow, match=f"no row {second.id}: sent or dropped meanwhile") as caught:
        getattr(world.outbox, what)([second.id])
    assert caught.value.ids == (second.id,) and values(world) == [b"1", b"2"]


@pytest.mark.parametrize("hold", [True, False])
def test_a_stopped_shard_is_released_by_a_person(world: World, hold: bool) -> None:
    outbox = world.outbox
    relay = world.relay()
    world.send(Message("t", b"1"))
    assert relay.step() is Step.SENT
    world.broker.last[0] = 7, b"of what the database has forgotten"
    world.send(Message("t", b"2"))
    world.send(Message("t", b"3"))
    assert relay.step() is Step.STOPPED and relay.step() is Step.NOT_MINE
    with pytest.raises(OutboxBehind, match="shard 0 of the outbox has stopped: number 2, and 7 is in"):
        outbox.desk.refuse_stopped()
    assert outbox.desk.adopt(0, lambda: 7, hold=hold) == 2
    outbox.desk.refuse_stopped()
    assert outbox.status()[0].last_batch == 7
    if hold:
        assert relay.step() is Step.IDLE and values(world) == [b"1"]
        held = outbox.rows(dead=True)
        assert all(row.error.startswith("number 2") for row in held)
        assert outbox.drop([held[0].id]) == 1 and outbox.retry([held[1].id]) == 1
        assert relay.step() is Step.SENT and values(world) == [b"1", b"3"]
    else:
        assert relay.step() is Step.SENT and values(world) == [b"1", b"2", b"3"]
    assert world.broker.last[0][0] == 8


def test_a_commit_wakes_the_relay_and_a_rollback_does_not(shop: Shop) -> None:
    if shop.plain:
        return  # a driver does not tell: the relay looks by itself
    world = world_in(shop)
    woken: list[int] = []
    call = lambda: woken.append(1)  # noqa: E731
    world.outbox.tell(call)
    world.send(Message("t", b"1"), commit=False)
    assert woken == []
    world.send(Message("t", b"1"))
    world.send(Message("t", b"2"))
    assert woken == [1, 1]
    with shop.engine.begin():
        pass  # a transaction without messages
    world.outbox.tell_no_more(call)
    world.send(Message("t", b"3"))
    assert woken == [1, 1]
    drop(shop)


def test_what_cannot_work_is_refused(shop: Shop) -> None:
    outbox = Outbox(shop.connect if shop.plain else shop.engine, table="no_such_outbox")
    for call in (outbox.rows, outbox.status, lambda: outbox.drop([1]), lambda: outbox.row(1)):
        with pytest.raises(TableMissing, match=r"outbox\.create_table"):
            call()
    with pytest.raises(InvalidMessage, match="use several calls"):
        outbox.send(None, *[Message("t", b"")] * (GROUP_ROWS_MAX + 1))
