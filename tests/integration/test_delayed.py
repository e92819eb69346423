"""Delayed messages on real Ray: both ways to the broker, a leader that dies, and the command line's list."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq import Message, Producer
from escrowmq.actors.client.linked_calls import LinkedCalls
from escrowmq.actors.client.ray_calls import RayCalls
from tests.support.leaders import leader_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from escrowmq import Cluster

pytestmark = pytest.mark.ray
Unique = Callable[[str], str]


def read(cluster: Cluster, topic: str, count: int, settle_s: float = 0.3) -> list[Any]:
    with cluster.consumer(topics=[topic], auto_offset_reset="earliest", group=f"g-{topic}") as consumer:
        found: list[Any] = []
        deadline = time.monotonic() + 30.0
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.poll(timeout_s=0.5)
        return found + consumer.poll(timeout_s=settle_s)


@pytest.fixture(params=["own connection", "calls of Ray"])
def producer(request: pytest.FixtureRequest, cluster: Cluster, unique: Unique) -> Any:
    info = cluster.admin.info
    over_ray = request.param == "calls of Ray"
    with Producer(info, app=unique("shop"), calls=RayCalls(info) if over_ray else None) as made:
        calls = made.core.router.calls
        assert isinstance(calls, LinkedCalls) is not over_ray
        yield made
        assert over_ray or calls.linked > 0  # type: ignore[attr-defined]


def test_delayed_messages_come_on_time_unless_they_are_cancelled(
    cluster: Cluster, unique: Unique, producer: Producer
) -> None:
    topic = unique("reminders")
    cluster.admin.create_topic(topic, partitions=2)
    if isinstance(producer.core.router.calls, LinkedCalls):  # a lone call may come before the connection
        before = unique("before")
        cluster.admin.create_topic(before)
        wait_until(lambda: _linked(producer, before), 20.0, "a connection of its own")
    plain = producer.send(Message(topic, b"plain", delay_s=2)).result(20)
    due = round(time.time() * 1000) + 3_000
    with producer.transaction() as tx:
        tx.send(
            Message(topic, b"now"),
            Message(topic, b"in tx", deliver_at=due),
            Message(topic, b"no", deliver_at=due),
        )
        tx.prepare()
    many = producer.send_many(topic, [b"many"] * 10, delay_s=1).result(20)
    assert plain.offset == -1 and many.offsets.tolist() == [-1] * 10
    waiting = cluster.admin.scheduled(topic)
    assert {plain.schedule_id, *tx.schedule_ids} <= {message.schedule_id for message in waiting}
    assert len(waiting) == 13
    assert tx.schedule_ids[1] is not None and producer.cancel(tx.schedule_ids[1])
    records = {record.value: record for record in read(cluster, topic, 13)}
    assert records.keys() == {b"plain", b"now", b"in tx", b"many"}
    assert records[b"plain"].timestamp >= (plain.deliver_at or 0) and records[b"in tx"].timestamp >= due
    assert cluster.admin.scheduled(topic) == []
    (group,) = cluster.admin.status().groups
    assert group.timers is not None


def _linked(producer: Producer, topic: str) -> bool:
    producer.send(Message(topic, b"")).result(20)
    calls: Any = producer.core.router.calls
    return bool(calls.linked > 0)


def test_what_waits_survives_the_death_of_the_leader(cluster: Cluster, unique: Unique) -> None:
    topic = unique("reminders")
    cluster.admin.create_topic(topic)
    with cluster.producer(unique("shop")) as producer:
        late = [producer.send(Message(topic, b"%d" % n, delay_s=6)).result(20) for n in range(20)]
        os.kill(leader_of(cluster).details["pid"], signal.SIGKILL)
        assert late[3].schedule_id is not None and producer.cancel(late[3].schedule_id)
    found = read(cluster, topic, 19)
    assert [record.value for record in found] == [b"%d" % n for n in range(20) if n != 3]
    assert min(record.timestamp for record in found) >= (late[0].deliver_at or 0)
    wait_until(lambda: cluster.status().healthy, 60.0, "the killed replica's return")
