"""A relay over the real core of a broker: batches that are killed, paused, restored, refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from escrowmq import Message, TransactionSettled
from escrowmq.actors.outbox.shipping import BrokerShipping
from escrowmq.actors.producer.transactions.numbered import Numbered
from escrowmq.feedback.database.errors import OutboxBehind
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.outbox_shards import LEASE_MS
from escrowmq.feedback.database.relaying import Step
from tests.support.relay_clusters import ClusterWorld
from tests.support.relays import Killed, drawn


def world_at(path: Path, shards: int = 1, **limits: int) -> ClusterWorld:
    engine = sa.create_engine(f"sqlite:///{path}")
    outbox = Outbox(engine, shards=shards, **limits)
    outbox.create_table()
    return ClusterWorld(outbox, engine.connect, lambda db: db.commit())


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterWorld]:
    found = world_at(tmp_path / "shop.db", **getattr(request, "param", {}))
    yield found
    found.broker.close()


def values(world: ClusterWorld) -> list[bytes]:
    return sorted(message.value for message in world.broker.log)


def test_what_is_committed_is_readable_once(world: ClusterWorld) -> None:
    relay = world.relay()
    assert relay.step() is Step.IDLE
    world.send(Message("t", b"1", key=b"k"), Message("t", b"2", partition=1))
    world.send(Message("t", b"no"), commit=False)
    assert relay.step() is Step.SENT and relay.step() is Step.IDLE
    assert values(world) == [b"1", b"2"] and world.outbox.rows() == []
    world.send(Message("t", b"3"))
    assert relay.step() is Step.SENT and values(world) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", ["prepare", "commit"])
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_batch_whose_answer_is_lost_is_sent_again_under_its_number(
    world: ClusterWorld, kind: str, carried_out: bool
) -> None:
    world.send(Message("t", b"1"), Message("t", b"2"))
    world.broker.lose_answer(kind, carried_out)
    relay = world.relay()
    assert relay.step() is Step.AWAY
    world.send(Message("t", b"3"))  # it must not slip into the batch
    assert [relay.step(), relay.step(), relay.step()] == [Step.SENT, Step.SENT, Step.IDLE]
    assert values(world) == [b"1", b"2", b"3"]


def test_a_relay_that_pauses_between_the_brokers_commit_and_its_own(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor finds the batch in the broker, removes the rows and goes on; it must not write its own
    number over the successor's."""

    def others_work() -> None:
        world.now_ms += LEASE_MS + 1
        world.send(Message("t", b"2"))
        young = world.relay()
        assert young.step() is Step.SENT, "batch 1, which is in"
        assert young.step() is Step.SENT and young.step() is Step.IDLE
        assert world.outbox.status()[0].last_batch == 2

    world.send(Message("t", b"1"))
    old = world.relay()
    ship = world.broker.shippings[-1].ship

    def pausing(*given: Any) -> None:
        ship(*given)
        others_work()

    monkeypatch.setattr(world.broker.shippings[-1], "ship", pausing)
    assert [old.step(), old.step()] == [Step.NOT_MINE, Step.NOT_MINE]
    assert values(world) == [b"1", b"2"] and world.outbox.rows() == []
    assert world.outbox.status()[0].last_batch == 2


@pytest.mark.parametrize("hold", [True, False])
def test_a_database_that_was_restored_from_a_backup_stops_its_shard(world: ClusterWorld, hold: bool) -> None:
    world.send(Message("t", b"1"))
    world.send(Message("t", b"2"))
    relay = world.relay()
    assert relay.step() is Step.SENT  # batch 1 has both
    with world.connect() as db:  # the backup has row 1 alone, and no batch
        world.outbox.send(db, Message("t", b"1"))
        statements = world.outbox.statements
        db.execute(sa.text(f"update {statements.shards} set last_batch = 0, until_ms = 0"))
        db.commit()
    world.now_ms += LEASE_MS + 1
    restored = world.relay()
    assert restored.step() is Step.STOPPED and values(world) == [b"1", b"2"]
    assert len(world.outbox.rows()) == 1, "nothing is removed on a guess"
    with pytest.raises(OutboxBehind, match="'escrowmq outbox adopt'"):
        world.outbox.desk.refuse_stopped()
    asked = BrokerShipping(world.broker.cluster, "shop")
    assert world.outbox.desk.adopt(0, lambda: asked.last_batch(0), hold=hold) == 1
    asked.close()
    world.send(Message("t", b"3"))
    world.now_ms += LEASE_MS + 1
    later = world.relay()
    assert later.step() is Step.SENT
    assert values(world) == ([b"1", b"2", b"3"] if hold else [b"1", b"1", b"2", b"3"])
    assert len(world.outbox.rows(dead=True)) == hold


def test_a_database_that_is_put_back_under_a_relay_stops_its_shard(
    world: ClusterWorld, tmp_path: Path
) -> None:
    """The relay goes on with the lease that it had before, and does not repeat what it sent since."""
    relay = world.relay()
    world.send(Message("t", b"0"))
    assert relay.step() is Step.SENT
    world.send(Message("t", b"1"))
    shutil.copy(tmp_path / "shop.db", tmp_path / "backup.db")
    world.send(Message("t", b"2"))
    assert relay.step() is Step.SENT
    shutil.copy(tmp_path / "backup.db", tmp_path / "shop.db")
    assert relay.step() is Step.NOT_MINE and relay.step() is Step.STOPPED
    assert values(world) == [b"0", b"1", b"2"] and len(world.outbox.rows()) == 1


def put_back(world: ClusterWorld, tmp_path: Path) -> Callable[[], None]:
    """A backup of now; the call restores it. The lease in it is over by then."""
    shutil.copy(tmp_path / "shop.db", tmp_path / "backup.db")

    def restore() -> None:
        shutil.copy(tmp_path / "backup.db", tmp_path / "shop.db")
        world.now_ms += LEASE_MS + 1

    return restore


def test_a_row_that_was_sent_is_recognised_after_a_restore(world: ClusterWorld, tmp_path: Path) -> None:
    """The backup was made after the row's commit, and before the relay's."""
    world.send(Message("t", b"1", key=b"k"))
    restore = put_back(world, tmp_path)
    assert world.relay().step() is Step.SENT
    restore()
    assert world.relay().step() is Step.SENT
    assert values(world) == [b"1"] and world.outbox.rows() == []


@pytest.mark.parametrize("rows", [1, 2])
def test_a_new_row_with_number_and_content_of_one_that_was_sent_is_not_taken_for_it(
    world: ClusterWorld, tmp_path: Path, rows: int
) -> None:
    """Messages that say only that something has changed are all equal, and the numbers are used again."""
    same = [Message("t", b"refresh", key=b"prices")] * rows
    world.send(Message("t", b"0"))
    assert world.relay().step() is Step.SENT
    restore = put_back(world, tmp_path)
    world.send(*same)
    (before, *_) = world.outbox.rows()
    world.now_ms += LEASE_MS + 1
    assert world.relay().step() is Step.SENT
    restore()
    world.send(*same)
    (new, *_) = world.outbox.rows()
    assert new.id == before.id and new.message == before.message
    relay = world.relay()
    assert relay.step() is Step.STOPPED and len(world.outbox.rows()) == rows
    asked = BrokerShipping(world.broker.cluster, "shop")
    world.outbox.desk.adopt(0, lambda: asked.last_batch(0), hold=False)
    asked.close()
    world.now_ms += LEASE_MS + 1
    assert world.relay().step() is Step.SENT and world.outbox.rows() == []
    assert values(world) == [b"0"] + [b"refresh"] * 2 * rows


@pytest.mark.parametrize("world", [{"message_bytes_max": 100 << 20}], indirect=True)
def test_what_can_never_be_sent_is_dead_at_once(world: ClusterWorld) -> None:
    """``send`` takes what the relay cannot send."""
    world.send(Message("nowhere", b"1"), Message("t", b"2"))
    world.send(Message("t", b"x" * 2_000_000))
    world.send(Message("t", b"3"))
    relay = world.relay()
    assert relay.step() is Step.REFUSED and relay.step() is Step.SENT
    assert values(world) == [b"3"]
    errors = [row.error for row in world.outbox.rows(dead=True)]
    assert len(errors) == 3 and "nowhere" in errors[0] and "2000" in errors[2]


@pytest.mark.parametrize("world", [{"transaction_bytes_max": 100 << 20}], indirect=True)
def test_messages_that_are_too_large_together_are_dead_at_once(world: ClusterWorld) -> None:
    """Rows that a service with another limit has inserted."""
    world.send(*[Message("t", bytes(1_000_000))] * 17)
    world.send(Message("t", b"1"))
    relay = world.relay()
    assert [relay.step() for _ in range(3)] == [Step.REFUSED, Step.SENT, Step.IDLE]
    assert values(world) == [b"1"] and len(world.outbox.rows(dead=True)) == 17


@pytest.mark.parametrize("lost", ["prepare", "commit"])
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_batch_that_nobody_can_read_any_more_is_done_or_refused(
    world: ClusterWorld, lost: str, carried_out: bool
) -> None:
    """A relay of a later version has marked it, and may have sent it; or it was damaged since."""
    world.send(Message("t", b"1"))
    world.send(Message("t", b"2"))
    world.broker.lose_answer(lost, carried_out)
    assert world.relay().step() is Step.AWAY
    with world.connect() as db:
        db.execute(sa.text(f"update {world.outbox.statements.table} set content = x'97' where id = 2"))
        db.commit()
    world.now_ms += LEASE_MS + 1
    relay, is_in = world.relay(), lost == "commit" and carried_out
    steps = [relay.step() for _ in range(4)]
    assert steps[:2] == ([Step.SENT, Step.IDLE] if is_in else [Step.REFUSED, Step.SENT])
    assert values(world) == ([b"1", b"2"] if is_in else [b"1"])
    assert [row.message for row in world.outbox.rows(dead=True)] == ([] if is_in else [None])
    assert world.broker.cluster.admin.list_transactions() == []


def test_a_topic_that_is_deleted_while_its_batch_is_under_way_loses_and_repeats_nothing(
    world: ClusterWorld,
) -> None:
    """The refusal comes from the relay's own process, and an earlier sending of the batch is open."""
    world.broker.cluster.admin.create_topic("other", partitions=1)
    world.send(Message("t", b"1"))
    world.send(Message("other", b"2"))
    world.broker.lose_answer("commit", False)
    relay = world.relay()
    assert relay.step() is Step.AWAY
    world.broker.cluster.admin.delete_topic("other")
    world.now_ms += LEASE_MS + 1
    young = world.relay()  # it has no topic in its memory
    assert young.step() is Step.REFUSED
    assert young.step() is Step.SENT and values(world) == [b"1"]
    for _ in range(20):
        world.now_ms += 600_000
        young.step()
    (dead,) = world.outbox.rows()
    assert dead.dead and values(world) == [b"1"]
    assert world.broker.cluster.admin.list_transactions() == []


def test_an_earlier_sending_is_found_among_any_number_of_open_transactions(world: ClusterWorld) -> None:
    """More than a list of them shows, all older. Whoever sent the batch is only paused, and commits late."""
    cluster, messages = world.broker.cluster, [Message("t", b"open")]
    cluster.admin.create_topic("other", partitions=1)
    many = cluster.producer("shop")
    for _ in range(1_001):
        tx = many.transaction()
        tx.send(*messages)
        tx.prepare()
    world.send(Message("t", b"1"), Message("other", b"2"))
    paused: list[Numbered] = []
    commit = Numbered.commit

    def keeps(self: Numbered) -> None:
        paused.append(self)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Numbered, "commit", keeps)
        with pytest.raises(Killed):
            world.relay().step()
    cluster.admin.delete_topic("other")
    world.now_ms += LEASE_MS + 1
    assert world.relay().step() is Step.REFUSED
    with pytest.raises(TransactionSettled):
        commit(paused[0])
    assert values(world) == []


@pytest.mark.parametrize("topics_left", [0, 1])
def test_a_batch_that_is_in_is_done_although_its_topic_is_gone(world: ClusterWorld, topics_left: int) -> None:
    """The relay dies between the broker's commit and its own, and then the topic is deleted: its successor
    cannot send the batch again, and need not."""
    admin = world.broker.cluster.admin
    admin.create_topic("other")
    world.send(Message("t", b"1"), Message("other", b"2"))

    def dies(*given: object) -> None:
        BrokerShipping.ship(shipping, *given)  # type: ignore[arg-type]
        raise Killed

    old = world.relay()
    shipping = world.broker.shippings[-1]
    shipping.ship = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        old.step()
    assert values(world) == [b"1"] and len(world.outbox.rows()) == 2
    admin.delete_topic("other")
    if not topics_left:
        admin.delete_topic("t")
    world.now_ms += LEASE_MS + 1
    assert world.relay().step() is (Step.SENT if topics_left else Step.STOPPED)
    assert len(world.outbox.rows()) == (0 if topics_left else 2)
    assert admin.list_transactions() == []


@pytest.mark.parametrize("after", [True, False])
def test_a_relay_that_is_killed_at_every_step(tmp_path: Path, after: bool) -> None:
    for at in range(1, 16):
        world = world_at(tmp_path / f"{at}.db")
        calls = [0]

        def happens(at: int = at, calls: list[int] = calls) -> None:
            calls[0] += 1
            if calls[0] == at:
                raise Killed

        for number in range(3):
            world.send(Message("t", b"%d" % number, key=b"k"))
        try:
            relay = world.relay(happens)
            relay.step()
            if after:
                world.send(Message("t", b"9", key=b"k"))
            relay.step()
        except Killed:
            pass
        world.drain(5)
        assert world.anomalies() == []
        world.broker.close()


def test_drawn_kills_pauses_and_lost_answers(tmp_path: Path) -> None:
    for seed in range(6):
        world = world_at(tmp_path / f"{seed}.db", shards=1 + seed % 2)
        assert drawn(world, seed) == []
        world.broker.close()
