"""A topic is deleted while it is read: poll reports it, and does not wait for messages that will never
come."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from escrowmq.actors.consumer import fetcher, membership_thread
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.model import ConsumerRecord
from tests.support.brokers import Brokers
from tests.support.polling import read, settle, values

ConsumerOf = Callable[..., Consumer]
Name = Callable[[str], str]
GONE = r"topic '.*' was deleted while it was read; create it again"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes waits of seconds last fractions of a second."""
    monkeypatch.setattr(membership_thread, "LOOK_FOR_TOPICS_S", 0.3)
    monkeypatch.setattr(fetcher, "LAG_PATIENCE_S", 0.3)


def after_its_end(brokers: Brokers, topic: str, consumer: Consumer) -> None:
    settle([consumer], lambda: len(consumer.assignment()) == 1)
    consumer.position(topic, 0)  # it has found where to begin: before that, the topic is merely unknown
    brokers.delete(topic)
    with pytest.raises(UnknownTopic, match=GONE) as caught:
        settle([consumer], lambda: False, 5.0)
    assert caught.value.topic == topic


def polls(consumer: Consumer) -> Iterator[list[ConsumerRecord]]:
    """What it reads; it says again and again, in between, that a topic is gone."""
    until = time.monotonic() + 20.0
    while time.monotonic() < until:
        with contextlib.suppress(UnknownTopic):
            if records := consumer.poll(timeout_s=5.0):
                yield records


def test_a_member_of_a_group_is_told_and_goes_on_when_the_topic_is_back(
    brokers: Brokers, topic: str, unique: Name, consumer_of: ConsumerOf
) -> None:
    """Formerly its polls returned nothing, without end."""
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    after_its_end(brokers, topic, consumer)
    with pytest.raises(UnknownTopic):
        asyncio.run(consumer.aio.poll(timeout_s=0.0))
    brokers.topic(topic)
    brokers.produce(topic, 0, [b"new"])

    def assigned() -> bool:
        try:
            return bool(consumer.poll(timeout_s=0.1))
        except UnknownTopic:
            return False

    settle([], assigned)


def test_a_reader_of_partitions_is_told(brokers: Brokers, topic: str, consumer_of: ConsumerOf) -> None:
    consumer = consumer_of(brokers)
    consumer.assign([(topic, 0)])
    after_its_end(brokers, topic, consumer)


def test_records_of_other_topics_come_first_and_others_may_be_subscribed_to(
    brokers: Brokers, topic: str, unique: Name, consumer_of: ConsumerOf
) -> None:
    other = unique("other")
    brokers.topic(other)
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic, other])
    settle([consumer], lambda: len(consumer.assignment()) == 2)
    brokers.delete(topic)
    with pytest.raises(UnknownTopic):
        settle([consumer], lambda: False, 5.0)
    brokers.produce(other, 0, [b"a"])
    assert values(next(polls(consumer))) == [b"a"]
    consumer.subscribe([other])
    brokers.produce(other, 0, [b"b"])
    assert values(read(consumer, 1)) == [b"b"]
    assert consumer.poll(timeout_s=0.5) == []


def test_a_topic_that_another_member_reads_is_not_gone(
    brokers: Brokers, topic: str, unique: Name, consumer_of: ConsumerOf
) -> None:
    group = unique("g")
    members = [consumer_of(brokers, group=group, topics=[topic]) for _ in range(2)]
    settle(members, lambda: sum(len(member.assignment()) for member in members) == 1)
    brokers.asked.clear()
    for _ in range(4):
        assert [member.poll(timeout_s=0.25) for member in members] == [[], []]
    assert 1 <= [method for _, _, method in brokers.asked].count("topics") <= 8
