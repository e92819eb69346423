"""A member that subscribes to no topics, or to a pattern that matches none, reads nothing from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from escrowmq import Consumer, Message, StaleMember
from escrowmq.testing import InMemoryCluster

TP = ("orders", 0)


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


@pytest.fixture
def consumer(cluster: InMemoryCluster) -> Consumer:
    """Has read the first two of five messages, and fetched all of them."""
    with cluster.producer("shop") as producer:
        for number in range(5):
            producer.send(Message("orders", b"%d" % number)).result(0)
    made = cluster.consumer("mail", ["orders"], auto_offset_reset="earliest")
    assert read(made, 2) == [b"0", b"1"]
    return made


def read(consumer: Consumer, limit: int = 10) -> list[object]:
    return [record.value for record in consumer.poll(limit, timeout_s=2.0)]


NOTHING: list[Callable[[Consumer], None]] = [
    lambda consumer: consumer.subscribe([]),
    lambda consumer: consumer.subscribe(pattern="nothing-.*"),
]


@pytest.mark.parametrize("nothing", NOTHING)
def test_it_reads_nothing_and_another_member_goes_on_at_once(
    cluster: InMemoryCluster, consumer: Consumer, nothing: Callable[[Consumer], None]
) -> None:
    given_up: list[tuple[str, int]] = []

    def on_revoke(partitions: list[tuple[str, int]]) -> None:
        given_up.extend(partitions)
        consumer.commit()  # still counts

    consumer.subscribe(["orders"], on_revoke=on_revoke)
    nothing(consumer)
    assert read(consumer) == []
    assert (consumer.assignment(), given_up) == ([], [TP])
    began = cluster.clock.time()
    other = cluster.consumer("mail", ["orders"])
    assert read(other) == [b"2", b"3", b"4"]
    assert cluster.clock.time() - began < 5.0, "it has left the group; its session lasts for ten seconds"
    cluster.clock.advance(60.0)
    assert read(consumer) == []
    with pytest.raises(StaleMember):
        consumer.commit({TP: 1})
    other.commit()
    assert other.committed(*TP) == 5


@pytest.mark.parametrize("nothing", NOTHING)
def test_it_may_commit_until_the_next_poll_and_subscribe_again(
    cluster: InMemoryCluster, consumer: Consumer, nothing: Callable[[Consumer], None]
) -> None:
    nothing(consumer)
    cluster.clock.advance(30.0)
    consumer.commit()
    assert read(consumer) == []
    cluster.clock.advance(30.0)
    consumer.subscribe(["orders"])
    assert read(consumer) == [b"2", b"3", b"4"]
    consumer.commit()
    assert consumer.committed(*TP) == 5


def test_what_it_still_had_is_lost_when_its_session_ends(
    cluster: InMemoryCluster, consumer: Consumer
) -> None:
    lost: list[tuple[str, int]] = []
    consumer.subscribe(["orders"], on_lost=lost.extend)
    consumer.subscribe([])
    with cluster.outage():
        cluster.clock.advance(60.0)
    began = cluster.clock.time()
    with pytest.raises(StaleMember):
        consumer.commit()
    assert cluster.clock.time() - began < 20.0, "there is nothing to wait for"
    assert read(consumer) == []
    assert lost == [TP]


def test_a_topic_that_its_pattern_finds_later_is_read(cluster: InMemoryCluster, consumer: Consumer) -> None:
    consumer.subscribe(pattern="late-.*")
    assert read(consumer) == []
    cluster.admin.create_topic("late-1")
    with cluster.producer("shop") as producer:
        producer.send(Message("late-1", b"new")).result(0)
    cluster.clock.advance(10.0)
    assert read(consumer) == [b"new"]
