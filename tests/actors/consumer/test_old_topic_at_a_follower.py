"""A topic is created again while a replica lags: nobody reads the old topic there, where other messages have
the same offsets, and so nobody skips any of the new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.model import NO_ID
from tests.support.brokers import Brokers
from tests.support.polling import numbered, read, settle, values
from tests.support.waiting import wait_until

ConsumerOf = Callable[..., Consumer]
PARTITIONS = 3  # one for each replica: each partition's reading begins at another one


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("lagging"))
    yield running
    running.close()


def create(brokers: Brokers, topic: str) -> None:
    (result,) = brokers.groups[0].submit(ops.create_topic(topic, {"partitions": PARTITIONS}, 0, NO_ID))
    assert result[0] == 0, result


def recreated_beside_a_follower_that_stands_still(brokers: Brokers, topic: str) -> threading.Event:
    """The old topic has five messages in each partition, and the new one seven. One follower does not apply
    what comes after the old ones until the event is set; it answers fetches meanwhile."""
    create(brokers, topic)
    for partition in range(PARTITIONS):
        brokers.produce(topic, partition, numbered(0, 5))
    follower = next(rid for rid in range(3) if rid != brokers.leader())
    running = brokers.groups[0].alive[follower].parts.running
    known = running.replica.state.topics.topics
    wait_until(
        lambda: topic in known and all(p.index.end == 5 for p in known[topic].partitions.values()),
        10.0,
        "the follower's copies",
    )
    goes_on = threading.Event()
    running.driver.submit(lambda: goes_on.wait(20.0) and None)
    brokers.delete(topic)
    create(brokers, topic)
    for partition in range(PARTITIONS):
        brokers.produce(topic, partition, numbered(100, 107))
    return goes_on


def read_by_a_new_group(brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf) -> list[bytes]:
    goes_on = recreated_beside_a_follower_that_stands_still(brokers, topic)
    consumer = consumer_of(brokers, group=group, topics=[topic])
    seen: list[bytes] = []

    def done() -> bool:
        seen.extend(values(consumer.poll(timeout_s=0.05)))
        return len(seen) >= PARTITIONS * 7

    try:
        settle([], done, 10.0)
    finally:
        goes_on.set()
    return seen


def test_a_group_reads_the_new_topic_from_its_start_whichever_replica_it_asks(
    brokers: Brokers, unique: Any, consumer_of: ConsumerOf
) -> None:
    seen = read_by_a_new_group(brokers, unique("again"), unique("g"), consumer_of)
    assert sorted(seen) == sorted(numbered(100, 107) * PARTITIONS)


def test_a_reader_of_partitions_does_not_go_back_to_the_old_topic(
    brokers: Brokers, unique: Any, consumer_of: ConsumerOf
) -> None:
    topic = unique("again")
    goes_on = recreated_beside_a_follower_that_stands_still(brokers, topic)
    consumer = consumer_of(brokers)
    consumer.assign([(topic, p) for p in range(PARTITIONS)])
    try:
        found = values(read(consumer, PARTITIONS * 7))
    finally:
        goes_on.set()
    assert sorted(found) == sorted(numbered(100, 107) * PARTITIONS)


def test_a_reader_of_partitions_follows_the_name_into_a_later_topic(
    brokers: Brokers, unique: Any, consumer_of: ConsumerOf
) -> None:
    topic = unique("again")
    create(brokers, topic)
    consumer = consumer_of(brokers)
    consumer.assign([(topic, 0)])
    brokers.produce(topic, 0, numbered(0, 5))
    read(consumer, 5)
    brokers.delete(topic)
    create(brokers, topic)
    brokers.produce(topic, 0, numbered(100, 107))
    assert values(read(consumer, 2)) == numbered(105, 107), "its offset is 5, in whatever has the name"


def test_a_leader_that_has_an_earlier_topic_answers_no_look_up(
    brokers: Brokers, unique: Any, consumer_of: ConsumerOf
) -> None:
    topic = unique("again")
    create(brokers, topic)
    offsets = consumer_of(brokers).core.offsets
    known = brokers.leader_of(topic, 0).parts.running.replica.state.topics.topics[topic].info.topic_id
    assert offsets.bounds([(topic, 0)], 5.0, {topic: known}) == {(topic, 0): (0, 0)}
    with pytest.raises(Unavailable, match="has an earlier topic"):
        offsets.bounds([(topic, 0)], 5.0, {topic: known + 1})
