"""Where topics are, over several groups and with the clients' own code: by their names, or spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.admin.topic_creation import spread_over
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.consumer.offsets import EARLIEST, LATEST, OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.errors import ConfigError, UnknownTopic
from escrowmq.replication.model import BY_NAME, Message
from tests.support.brokers import Brokers, ClientCalls
from tests.support.places import by_name, info
from tests.support.producing import COMMITTED, ProducerOf
from tests.support.waiting import wait_until

GROUPS, PARTITIONS = 3, 4
AdminOf = Callable[[Brokers], Admin]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three groups, and a topic that lies where its name says: ``named``."""
    running = Brokers(tmp_path_factory.mktemp("three"), GROUPS, replicas=1)
    running.topic("named", PARTITIONS)
    running.produce("named", 1, [b"before"])
    yield running
    running.close()


def hosts(admin: Admin, topic: str) -> list[int]:
    return [each.group for each in admin.describe_topic(topic).partitions]


def write_and_read(
    brokers: Brokers, topic: str, producer_of: ProducerOf, consumer_of: Callable[..., Consumer]
) -> set[bytes]:
    """A plain message in each partition, a transaction over all of them, and many at once; returns what a
    consumer group reads, and what it has committed in the end."""
    producer = producer_of(brokers)
    for partition in range(PARTITIONS):
        producer.send(Message(topic, b"plain %d" % partition, partition=partition)).result(20.0)
    with producer.transaction() as tx:
        for partition in range(PARTITIONS):
            tx.send(Message(topic, b"in one %d" % partition, partition=partition))
        tx.prepare()
        tx.commit()
    several = [[Message(topic, b"%d of many" % (10 * n + p), partition=p) for p in (n, 3)] for n in range(3)]
    assert tx.state is COMMITTED
    assert {each.state for each in producer.send_transactions(several)} == {COMMITTED}
    with consumer_of(brokers, group=f"readers of {topic}", topics=[topic]) as consumer:
        found: set[bytes] = set()
        wait_until(
            lambda: found.update(record.value for record in consumer.poll(timeout_s=0.2)) or len(found) >= 14,
            20.0,
            "all messages",
        )
        consumer.commit()
    return found


def test_a_topic_that_lies_where_its_name_says_stays_there(
    three: Brokers, admin_of: AdminOf, producer_of: ProducerOf, consumer_of: Callable[..., Consumer]
) -> None:
    admin = admin_of(three)
    assert admin.create_topic("named", PARTITIONS).first_group == BY_NAME, "creating it again changes nothing"
    assert hosts(admin, "named") == [by_name("named", number, GROUPS) for number in range(PARTITIONS)]
    assert b"before" in write_and_read(three, "named", producer_of, consumer_of)
    assert admin.alter_topic("named", check_max=3).first_group == BY_NAME


def test_a_new_topic_lies_where_its_creator_has_written(
    three: Brokers, admin_of: AdminOf, producer_of: ProducerOf, consumer_of: Callable[..., Consumer]
) -> None:
    admin, name = admin_of(three), "orders"
    first = spread_over(name, GROUPS)
    assert first != by_name(name, 0, GROUPS), "or this test would show nothing"
    assert admin.create_topic(name, PARTITIONS).first_group == first
    assert hosts(admin, name) == [(first + number) % GROUPS for number in range(PARTITIONS)]
    found = write_and_read(three, name, producer_of, consumer_of)
    ends = [each.end for each in admin.describe_topic(name).partitions]
    assert sum(ends) == 14 and all(ends) and len(found) == 14
    described = admin.describe_group(f"readers of {name}")
    assert {each.lag for each in described.partitions} == {0}
    assert admin.alter_topic(name, check_max=3).first_group == first
    plan = admin.plan_trim(name, 1, partition=0)
    other = admin_of(three)  # which has heard of nothing yet
    other.trim_topic(name, plan)
    assert admin.describe_topic(name).partitions[0].start == 1


def test_a_range_is_read_from_the_group_that_hosts_it(three: Brokers) -> None:
    three.topic("ranged", 1, first=(by_name("ranged", 0, GROUPS) + 1) % GROUPS)
    three.produce("ranged", 0, [b"a", b"b"])
    router = Router(three.info, calls=ClientCalls(three))
    try:
        offsets = OffsetReader(router)
        assert offsets.offsets([("ranged", 0, EARLIEST), ("ranged", 0, LATEST)], 10.0) == [0, 2]
        assert isinstance(offsets.offsets([("nowhere", 0, LATEST)], 10.0)[0], UnknownTopic)
        gid = router.placement.group_of("ranged", 0)
        with pytest.raises(ConfigError, match="which of the 3 broker groups"):
            PartitionReader(three.info, "ranged", 0, 0, 2, calls=ClientCalls(three))
        with PartitionReader(three.info, "ranged", 0, 0, 2, group=gid, calls=ClientCalls(three)) as reader:
            assert sum(block.messages for block in reader) == 2
    finally:
        router.close()


def test_who_knows_a_topic_from_before_it_was_created_again_elsewhere_finds_it(
    three: Brokers, producer_of: ProducerOf, consumer_of: Callable[..., Consumer]
) -> None:
    name, before = "again", by_name("again", 0, GROUPS)
    three.topic(name, 1)
    producer = producer_of(three)
    read: list[bytes] = []
    with consumer_of(three, group="again", topics=[name], auto_offset_reset="earliest") as consumer:

        def have_read(*values: bytes) -> bool:
            try:
                read.extend(record.value for record in consumer.poll(timeout_s=0.2))
            except UnknownTopic:  # raised once while it is gone
                pass
            return read == list(values)

        producer.send(Message(name, b"first life")).result(20.0)
        wait_until(lambda: have_read(b"first life"), 20.0, "it")
        consumer.commit()
        three.delete(name)
        three.topic(name, 1, first=(before + 1) % GROUPS)
        with pytest.raises(UnknownTopic):
            producer.send(Message(name, b"told that it is gone")).result(20.0)
        for value in (b"second life", b"goes on"):
            producer.send(Message(name, value)).result(20.0)
        # It is another topic, in which the group has no offset.
        wait_until(lambda: have_read(b"first life", b"second life", b"goes on"), 30.0, "all")


def test_nobody_guesses_where_a_topic_lies_that_was_not_heard_of() -> None:
    placement = TopicPlacement(GROUPS)
    assert placement.unheard(["t"]) == {"t"}
    with pytest.raises(UnknownTopic):
        placement.group_of("t", 0)
    placement.hear([info("t", first=2)])
    assert [placement.group_of("t", number) for number in range(4)] == [2, 0, 1, 2]
    assert TopicPlacement(1).group_of("t", 5) == 0, "with one group there is nothing to know"
