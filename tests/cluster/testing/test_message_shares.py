"""What the trace of a message says of share groups: waiting, leased, retrying, done, dead; streams that
retry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from escrowmq import Message
from escrowmq.actors.client.results import submitting
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.share_ops import BY_TABLE, REJECT
from escrowmq.replication.host import tracing
from escrowmq.testing import InMemoryCluster

START = datetime(2026, 7, 1, tzinfo=UTC)
START_MS = round(START.timestamp() * 1000)
RETRY, DEAD = "__retry.mail", "__dead.mail"


class World:
    """Share group ``mail`` over ``orders``, which has ten messages."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self.cluster, self.admin = cluster, cluster.admin
        self.admin.create_topic("orders")
        for name in (RETRY, DEAD):
            self.submit(ops.create_topic(name, {"partitions": 1}, 0, 0))
        self.submit(share_ops.group_settings("mail", {"delays_ms": [60_000], "max_attempts": 2}))
        self.submit(share_ops.share_create("mail", "orders", 0, share_ops.EARLIEST, self.id_of("orders")))
        with cluster.producer("shop") as producer:
            for n in range(10):
                producer.send(Message("orders", b"v%d" % n)).result(0)

    def submit(self, frame: bytes) -> None:
        code, _ = submitting(self.admin.router, 10.0)(0, frame)
        assert code == 0

    def id_of(self, topic: str) -> int:
        broker: Any = self.cluster.network.brokers[0]
        topic_id: int = broker.parts.running.replica.state.topics.topics[topic].info.topic_id
        return topic_id

    def ack(self, *ranges: int, topic: str = "orders") -> None:
        self.submit(share_ops.share_ack("mail", topic, 0, ranges, self.id_of(topic)))

    def nack(
        self, offset: int, topic: str = "orders", delay_ms: int = BY_TABLE, stream: bool = False
    ) -> None:
        frame = share_ops.nack(
            "mail",
            topic,
            0,
            [offset],
            [delay_ms],
            ["no answer"],
            "aa" * 16,
            "me",
            self.id_of(topic),
            stream=stream,
        )
        self.submit(frame)

    def told(self, offset: int, topic: str = "orders") -> tuple[Any, ...] | None:
        """Kind, state, attempt and reason for the group; None: nothing."""
        for one in self.admin.trace(topic, 0, offset).groups:
            if one.group == "mail":
                return one.kind, one.state, one.attempt, one.reason
        return None


def desk(world: World) -> Any:
    """Of the leader of the only broker group."""
    broker: Any = world.cluster.network.brokers[0]
    return broker.parts.running.replica.lease_dispatcher


@pytest.fixture
def world() -> Iterator[World]:
    with InMemoryCluster(start=START) as cluster:
        yield World(cluster)


def test_what_is_not_finished_waits_and_what_is_acknowledged_is_done(world: World) -> None:
    world.ack(0, 1, 5, 5)
    assert [world.told(n) for n in (0, 1, 5)] == [("share", "done", None, "")] * 3
    assert world.told(2) == ("share", "waiting", None, "")


def test_a_failed_message_is_retrying_until_it_is_done(world: World) -> None:
    world.nack(3)
    (group,) = world.admin.trace("orders", 0, 3).groups
    assert (group.state, group.attempt, group.reason) == ("retrying", 2, "no answer")
    assert group.due_ms is not None and START_MS + 60_000 <= group.due_ms <= START_MS + 66_100
    assert world.told(4) == ("share", "waiting", None, "")
    world.cluster.clock.advance(70)
    assert world.told(3) == ("share", "retrying", 2, "no answer")
    assert world.told(0, RETRY) == ("share", "waiting", None, "")
    world.ack(0, 0, topic=RETRY)
    assert world.told(3) == ("share", "done", 2, "")


def test_what_a_consumer_has_is_leased_until_it_is_settled(world: World) -> None:
    mine = world.cluster.share_consumer("mail", ["orders"], lease_s=20)
    records = mine.poll(max_records=3)
    (group,) = world.admin.trace("orders", 0, 2).groups
    assert (group.kind, group.state, group.attempt, group.place) == ("share", "leased", None, None)
    assert [group.member] == desk(world).members("mail") and group.due_ms is not None
    now_ms = round(world.cluster.clock.now().timestamp() * 1000)
    assert now_ms + 19_000 <= group.due_ms <= now_ms + 20_000
    mine.nack(records[0], reason="no answer")
    mine.ack(records[1])
    mine.release(records[2])
    mine.flush()
    assert world.told(0) == ("share", "retrying", 2, "no answer")
    assert world.told(1) == ("share", "done", None, "")
    world.cluster.clock.advance(70)
    again = mine.poll(max_records=1)
    assert [(record.topic, record.attempt) for record in again] == [(RETRY, 2)]
    assert world.told(0) == ("share", "leased", 2, "no answer")
    assert world.told(0, RETRY) == ("share", "leased", None, "")
    mine.release(again[0])
    mine.close()
    assert world.told(0) == ("share", "retrying", 2, "no answer"), "given back"
    assert [world.told(n) for n in (2, 9)] == [("share", "waiting", None, "")] * 2


def test_a_new_leader_has_leased_nothing(world: World) -> None:
    with world.cluster.share_consumer("mail", ["orders"]) as mine:
        mine.poll(max_records=1)
        assert world.told(0) == ("share", "leased", None, "")
        desk(world).begin()
        assert world.told(0) == ("share", "waiting", None, "")


def test_what_its_group_finishes_meanwhile_does_not_pass_for_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tracing.ShareTraces._origin

    def acked_meanwhile(self: Any, partition: Any, offset: int) -> bytes:
        self._state.shares.get("mail", partition).add([offset, offset])
        return asked(self, partition, offset)

    monkeypatch.setattr(tracing.ShareTraces, "_origin", acked_meanwhile)
    assert world.told(3) == ("share", "finished", None, "")


def test_a_dead_letter_is_dead_until_it_is_dropped(world: World) -> None:
    world.nack(3)
    world.cluster.clock.advance(70)
    world.nack(0, RETRY)
    assert world.told(3) == ("share", "dead", 2, "no answer")
    world.nack(4, delay_ms=REJECT)
    assert world.told(4) == ("share", "dead", 1, "no answer")
    assert world.admin.drop_dead_letters("mail", None) == 2
    assert world.told(3) == ("share", "dropped", 2, "no answer")
    assert world.told(4) == ("share", "dropped", 1, "no answer")


def test_a_letter_that_went_into_a_topic_is_redriven_and_the_topic_and_transaction_are_told(
    world: World,
) -> None:
    """Its neighbours were not, though a portion of a redrive can lie around them."""
    world.admin.create_topic("lost")
    for offset in range(6):
        world.nack(offset, delay_ms=REJECT)
    assert world.admin.redrive("mail", ["0-0", "0-2", "0-5"], to="lost").redriven == 3
    assert world.admin.drop_dead_letters("mail", ["0-1", "0-4"]) == 2
    assert [world.told(n)[1] for n in range(6)] == [  # type: ignore[index]
        *("redriven", "dropped", "redriven", "dead", "dropped", "redriven")
    ]
    (group,) = world.admin.trace("orders", 0, 2).groups
    copies = [world.admin.message("lost", 0, n) for n in range(3)]
    assert (group.to, group.tx_id) == ("lost", copies[1].tx_id) and copies[1].value == b"v2"
    assert world.told(2, DEAD) == ("share", "redriven", 1, "no answer")


def test_of_a_letter_that_left_the_audit_trail_only_that_it_is_settled_is_told(world: World) -> None:
    for offset in range(3):
        world.nack(offset, delay_ms=REJECT)
    world.admin.create_topic("lost")
    world.admin.redrive("mail", ["0-0"], to="lost")
    world.submit(share_ops.share_ack("mail", DEAD, 0, [1, 1], world.id_of(DEAD), "REDRIVEN operator:old"))
    assert world.told(1) == ("share", "redriven", 1, "no answer"), "where to, nothing tells"
    broker: Any = world.cluster.network.brokers[0]
    broker.parts.running.replica.state.transactions.audit.clear()
    world.ack(2, 2, topic=DEAD)
    assert [world.told(n) for n in range(3)] == [("share", "settled", 1, "no answer")] * 3


def test_a_redriven_letter_is_retrying_again(world: World) -> None:
    world.nack(4, delay_ms=REJECT)
    world.nack(0, DEAD, delay_ms=0)
    assert world.told(4) == ("share", "retrying", 1, "")
    world.ack(0, 0, topic=RETRY)
    assert world.told(4) is not None and world.told(4)[1] == "done"  # type: ignore[index]


def test_a_stream_that_retries_says_so(world: World) -> None:
    world.admin.create_topic("clicks")
    with world.cluster.producer("shop") as producer:
        for _ in range(3):
            producer.send(Message("clicks", b"")).result(0)
    with world.cluster.consumer("mail", ["clicks"], auto_offset_reset="earliest") as consumer:
        consumer.poll(2)
        consumer.commit()
    assert world.told(1, "clicks") == ("stream", "passed", None, "")
    world.nack(1, "clicks", stream=True)
    assert world.told(1, "clicks") == ("stream", "retrying", 2, "no answer")
    assert world.told(2, "clicks") == ("stream", "ahead", None, "")


def test_without_time_it_is_only_finished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.nack(3)
    monkeypatch.setattr(tracing, "TIMERS_MAX", 0)
    assert world.told(3) == ("share", "finished", None, "")
