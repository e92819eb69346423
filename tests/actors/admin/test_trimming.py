"""Deleting the oldest messages by hand: what a plan says, and what real broker services do with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.admin.topic_creation import PartitionTrim, carry_out, plan_trim
from escrowmq.replication.errors import (
    ConfigError,
    OffsetOutOfRange,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.model import TopicInfo
from tests.support.brokers import Brokers
from tests.support.requests import prepare

DATE = datetime(2026, 1, 31, 12, tzinfo=UTC)


def plan(before: Any, partition: Any = None, partitions: int = 2) -> tuple[PartitionTrim, ...]:
    """A plan for a topic whose partition p has [10, 20 + p), and its first message after DATE at 12 + p."""

    def at_time(numbers: Sequence[int], time_ms: int) -> list[int]:
        assert time_ms == int(DATE.timestamp() * 1000)
        return [12 + number for number in numbers]

    def bounds(numbers: Sequence[int]) -> list[tuple[int, int]]:
        return [(10, 20 + number) for number in numbers]

    topic = TopicInfo("t", partitions, "hold", 15, 6000, -1, -1)
    return plan_trim(topic, before, partition, bounds=bounds, at_time=at_time)


def test_a_plan_says_what_goes() -> None:
    assert plan(15, 1) == (PartitionTrim(1, 10, 15, 21),)
    assert plan(15, 1)[0].messages == 5
    assert plan(3, 0)[0].messages == 0, "they are gone already"
    assert plan(20, partitions=1)[0].messages == 10, "all of them"
    assert [(t.partition, t.messages) for t in plan(DATE)] == [(0, 2), (1, 3)]
    assert plan(DATE.replace(tzinfo=None), 1) == plan(DATE, 1), "UTC, unless it says otherwise"


@pytest.mark.parametrize(
    ("before", "partition", "error"),
    [
        (15, None, ConfigError),
        (True, 0, ConfigError),
        ("15", 0, ConfigError),
        (1.5, 0, ConfigError),
        (None, 0, ConfigError),
        (21, 0, OffsetOutOfRange),
        (-1, 0, OffsetOutOfRange),
        (15, 2, UnknownTopic),
        (15, -1, UnknownTopic),
        (DATE, 7, UnknownTopic),
    ],
)
def test_what_makes_no_sense_is_refused(before: Any, partition: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        plan(before, partition)


def test_every_group_is_told_of_its_own_partitions_and_of_nothing_else() -> None:
    told: dict[int, dict[int, int]] = {}

    def submit(gid: int, request: bytes) -> tuple[int, Any]:
        (op,) = decode_ops(request)
        told[gid] = dict(zip(op.meta.starts[::2], op.meta.starts[1::2], strict=True))
        return 0, None

    carry_out(
        submit,
        lambda topic, partition: partition % 2,
        "t",
        [PartitionTrim(0, 0, 5, 9), PartitionTrim(1, 4, 4, 9), PartitionTrim(2, 0, 7, 9)],
    )
    assert told == {0: {0: 5, 2: 7}}


def test_messages_go_and_what_is_open_stays(
    brokers: Brokers, admin_of: Callable[[Brokers], Admin], unique: Callable[[str], str]
) -> None:
    name, admin = unique("trimmed"), admin_of(brokers)
    brokers.topic(name, 1)
    group = brokers.group_of(name, 0)
    brokers.produce(name, 0, [b"%d" % n for n in range(8)])
    assert group.submit(prepare(["open"], topic=name, app="shop")) == [[0]]
    brokers.produce(name, 0, [b"8", b"9"])
    with pytest.raises(OffsetOutOfRange, match=r"is outside \[0, 10\]; give one in this range"):
        admin.trim_topic(name, 11)
    assert admin.plan_trim(name, 4)[0].messages == 4
    assert admin.describe_topic(name).partitions[0].start == 0, "a plan changes nothing"
    assert admin.trim_topic(name, 4)[0].messages == 4
    assert admin.trim_topic(name, 4)[0].messages == 0
    (described,) = admin.describe_topic(name).partitions
    assert (described.start, described.end) == (4, 10)
    assert admin.trim_topic(name, datetime.now(UTC).replace(year=2099))[0].messages == 6
    assert group.submit(ops.commit("shop", ["open"])) == [[0]]
    (described,) = admin.describe_topic(name).partitions
    assert (described.start, described.end) == (10, 11), "what was open is behind everything that went"
    with pytest.raises(UnknownTopic):
        admin.trim_topic(unique("nowhere"), 4)
