"""Setting a consumer group's offsets by hand, with real broker services."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.admin.group_changes import OffsetReset
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import (
    ConfigError,
    GroupNotEmpty,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownTopic,
)
from tests.support.brokers import Brokers

ConsumerOf = Callable[..., Consumer]
Read = Callable[[int], list[bytes]]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("reset"), groups=2, replicas=1)
    yield running
    running.close()


@pytest.fixture
def topic(brokers: Brokers, admin: Admin, unique: Callable[[str], str]) -> str:
    name = unique("t")
    admin.create_topic(name, partitions=2)
    for partition in (0, 1):
        brokers.produce(name, partition, [b"%d" % n for n in range(10)])
    return name


@pytest.fixture
def admin(brokers: Brokers, admin_of: Callable[[Brokers], Admin]) -> Admin:
    return admin_of(brokers)


@pytest.fixture
def group(brokers: Brokers, topic: str, consumer_of: ConsumerOf, unique: Callable[[str], str]) -> str:
    """A group that has read everything."""
    name = unique("g")
    assert len(read(consumer_of, brokers, name, topic, 20)) == 20
    return name


def read(consumer_of: ConsumerOf, brokers: Brokers, group: str, topic: str, count: int) -> list[Any]:
    """Reads ``count`` records as a member that joins, commits and leaves."""
    found: list[Any] = []
    with consumer_of(brokers, group=group, topics=[topic], auto_offset_reset="earliest") as consumer:
        for _ in range(100):
            found += consumer.poll(count - len(found), 0.2)
            if len(found) == count:
                break
        consumer.commit()
    return found


def test_a_group_reads_everything_again(
    brokers: Brokers, admin: Admin, topic: str, group: str, consumer_of: ConsumerOf
) -> None:
    planned = admin.plan_group_reset(group, "earliest")
    assert planned == tuple(OffsetReset(topic, p, 10, 0, 0, 10) for p in (0, 1))
    assert admin.describe_group(group).lag == 0, "a plan changes nothing"
    assert admin.reset_group(group, planned) == planned
    assert admin.describe_group(group).lag == 20
    assert len(read(consumer_of, brokers, group, topic, 20)) == 20


def test_one_partition_is_put_to_an_offset_and_the_other_stays(
    brokers: Brokers, admin: Admin, topic: str, group: str, consumer_of: ConsumerOf
) -> None:
    admin.reset_group(group, 7, topic, 1)
    assert [p.committed for p in admin.describe_group(group).partitions] == [10, 7]
    assert [r.offset for r in read(consumer_of, brokers, group, topic, 3)] == [7, 8, 9]


def test_a_time_is_the_first_message_at_or_after_it(admin: Admin, topic: str, group: str) -> None:
    long_ago, to_come = datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1)
    assert [each.to for each in admin.reset_group(group, long_ago)] == [0, 0]
    assert [each.to for each in admin.reset_group(group, to_come)] == [10, 10]
    assert [each.committed for each in admin.describe_group(group).partitions] == [10, 10]


def test_a_group_that_has_read_nothing_gets_offsets_in_a_topic_that_is_named(
    admin: Admin, topic: str, unique: Callable[[str], str]
) -> None:
    fresh = unique("g")
    with pytest.raises(UnknownGroup):
        admin.reset_group(fresh, "latest")
    admin.reset_group(fresh, "latest", topic)
    assert [each.committed for each in admin.describe_group(fresh).partitions] == [10, 10]


def test_live_members_are_not_overtaken(
    brokers: Brokers, admin: Admin, topic: str, group: str, consumer_of: ConsumerOf
) -> None:
    with consumer_of(brokers, group=group, topics=[topic]) as consumer:
        consumer.poll(1, 0.2)
        with pytest.raises(GroupNotEmpty, match="stop them first"):
            admin.reset_group(group, "earliest")
        assert admin.describe_group(group).lag == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("middle",), ConfigError),
        ((True,), ConfigError),
        ((3,), ConfigError),
        (("earliest", None, 1), ConfigError),
        (("earliest", "nosuch"), UnknownTopic),
        (("earliest", ..., 2), UnknownTopic),
        ((11, ..., 0), OffsetOutOfRange),
        ((-1, ..., 0), OffsetOutOfRange),
    ],
)
def test_what_makes_no_sense_is_refused(
    admin: Admin, topic: str, group: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        admin.reset_group(group, *(topic if each is ... else each for each in arguments))
    assert admin.describe_group(group).lag == 0
