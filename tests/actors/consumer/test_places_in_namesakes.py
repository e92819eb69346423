"""A topic is deleted and created again while a group reads it: the group begins the new one at its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import StaleMember
from tests.support.brokers import Brokers
from tests.support.polling import numbered, read, settle, values

ConsumerOf = Callable[..., Consumer]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One replica: of three, a busy machine may elect another leader in between. That one knows nothing of
    the earlier topic, and goes by the ids that members tell (test_coordinator.py)."""
    running = Brokers(tmp_path_factory.mktemp("namesakes"), replicas=1)
    yield running
    running.close()


def create_again(brokers: Brokers, topic: str, partitions: int = 1) -> None:
    brokers.delete(topic)
    brokers.topic(topic, partitions)


def commit_behind(brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf) -> Consumer:
    """A member that has read five messages of the old topic, and commits when there is a new one."""
    brokers.produce(topic, 0, numbered(0, 5))
    consumer = consumer_of(brokers, group=group, topics=[topic])
    read(consumer, 5)
    create_again(brokers, topic)
    consumer.commit()
    return consumer


def test_an_offset_in_the_old_topic_is_not_committed_into_the_new_one(
    brokers: Brokers, topic: str, unique: Any, consumer_of: ConsumerOf
) -> None:
    group = unique("g")
    with pytest.raises(StaleMember, match="again"):
        commit_behind(brokers, topic, group, consumer_of)
    brokers.produce(topic, 0, numbered(100, 107))
    other = consumer_of(brokers, group=group, topics=[topic])
    assert other.committed(topic, 0) is None


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_member_goes_on_at_the_start_of_the_new_topic(
    brokers: Brokers, topic: str, unique: Any, consumer_of: ConsumerOf, partitions: int
) -> None:
    """Its offset was after five messages, and of the seven new ones it got the last two."""
    brokers.produce(topic, 0, numbered(0, 5))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    read(consumer, 5)
    consumer.commit()
    create_again(brokers, topic, partitions)
    brokers.produce(topic, 0, numbered(100, 107))
    seen: list[bytes] = []

    def done() -> bool:
        seen.extend(values(consumer.poll(timeout_s=0.02)))
        return set(numbered(100, 107)) <= set(seen) and len(consumer.assignment()) == partitions

    settle([], done)
    consumer.commit()
    assert consumer.committed(topic, 0) == 7
