"""A consumer reads what it can: a partition whose offset cannot be looked up now holds up no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.consumer.config import RetryPolicy
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.model import NO_ID
from tests.support.brokers import Brokers
from tests.support.polling import numbered, read, values

ConsumerOf = Callable[..., Consumer]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("away"), groups=2, replicas=1)
    yield running
    running.close()


def create(brokers: Brokers, admin_of: Callable[[Brokers], Admin], topic: str) -> None:
    admin_of(brokers).create_topic(topic, partitions=2)
    for partition in (0, 1):
        brokers.produce(topic, partition, numbered(0, 5))


def named(unique: Any) -> str:
    """A consumer group whose coordinator is broker group 0."""
    return next(name for _ in range(99) if not coordinator_group(name := unique("g"), 2))


def test_a_topic_that_was_created_again_in_one_broker_group_alone(
    brokers: Brokers, admin_of: Callable[[Brokers], Admin], unique: Any, consumer_of: ConsumerOf
) -> None:
    """Group 1 was away both times, and nobody has repeated the creation."""
    sound, half = unique("sound"), unique("half")
    create(brokers, admin_of, sound)
    create(brokers, admin_of, half)
    settings = {"partitions": 2}
    brokers.groups[0].submit(ops.delete_topic(half))
    first = brokers.groups[1].leader().parts.running.replica.state.topics.topics[half].info.first_group
    (made,) = brokers.groups[0].submit(ops.create_topic(half, settings, first, NO_ID))
    here = next(p for p in (0, 1) if brokers.group_number(half, p) == 0)
    brokers.produce(half, here, numbered(100, 105))
    with consumer_of(brokers, group=named(unique), topics=[sound, half], auto_offset_reset="earliest") as it:
        found = values(read(it, 15))
        assert sorted(found) == sorted(numbered(0, 5) * 2 + numbered(100, 105))
        brokers.groups[1].submit(ops.create_topic(half, settings, first, made[1]))  # the repetition
        brokers.produce(half, 1 - here, numbered(200, 205))
        assert values(read(it, 5)) == numbered(200, 205)


def test_a_broker_group_that_is_away(
    brokers: Brokers, admin_of: Callable[[Brokers], Admin], unique: Any, consumer_of: ConsumerOf
) -> None:
    topic = unique("t")
    create(brokers, admin_of, topic)
    brokers.silent.add((1, 0))
    try:
        with consumer_of(
            brokers, group=named(unique), topics=[topic], auto_offset_reset="earliest"
        ) as consumer:
            assert values(read(consumer, 5)) == numbered(0, 5)
            brokers.silent.clear()
            assert values(read(consumer, 5)) == numbered(0, 5)
    finally:
        brokers.silent.clear()


def test_internal_topics_that_were_created_in_one_broker_group_alone(
    brokers: Brokers, admin_of: Callable[[Brokers], Admin], unique: Any, consumer_of: ConsumerOf
) -> None:
    """The first consumer of the group died in between, or group 1 was away then."""
    topic, group = unique("t"), named(unique)
    create(brokers, admin_of, topic)
    for name in (retry_topic(group), dead_topic(group)):
        brokers.groups[0].submit(ops.create_topic(name, {"partitions": 2}, 0, NO_ID))
    wanted = {"topics": [topic], "auto_offset_reset": "earliest", "retry": RetryPolicy(order="concurrent")}
    with consumer_of(brokers, group=group, **wanted) as consumer:
        assert len(read(consumer, 10)) == 10
