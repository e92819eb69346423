"""Planning over in-process brokers: the ranges are what was asked for, and end at what is committed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.actors.client.router import Router
from escrowmq.replication.errors import ConfigError, OffsetOutOfRange, UnknownTopic
from escrowmq.spark_integration.ray_data.datasource import EscrowMQDatasource, SnapshotLost
from escrowmq.spark_integration.ray_data.planning import PlannedRange, plan, resolved, shared_out
from escrowmq.spark_integration.source.planning import OffsetRange
from escrowmq.spark_integration.source.reading import stretches
from tests.support.brokers import Brokers, ClientCalls
from tests.support.sinking import PARTITIONS


@pytest.fixture
def router(brokers: Brokers) -> Iterator[Router]:
    made = Router(brokers.info, calls=ClientCalls(brokers), name="ray-data-test")
    yield made
    made.close()


@pytest.fixture
def filled(brokers: Brokers, topic: str) -> str:
    """Partition ``p`` has ``10 * p`` messages."""
    for partition in range(1, PARTITIONS):
        brokers.produce(topic, partition, [b"x" * 50] * 10 * partition)
    return topic


def bounds(planned: list[PlannedRange]) -> dict[int, tuple[int, int]]:
    return {each.part.partition: (each.part.start, each.part.end) for each in planned}


def test_everything_that_is_committed_now(brokers: Brokers, filled: str, router: Router) -> None:
    ranges = plan(router, filled, "earliest", "latest", None)
    assert bounds(ranges) == {p: (0, 10 * p) for p in range(1, PARTITIONS)}, "without the empty partition"
    brokers.produce(filled, 1, [b"later"])
    for planned in ranges:
        assert 50 * planned.messages < planned.size_bytes < 100 * planned.messages
        assert planned.group == brokers.group_number(filled, planned.part.partition)
    assert resolved(router, filled, "latest", None) == {0: 0, 1: 11, 2: 20, 3: 30}
    assert resolved(router, filled, "earliest", [2]) == {2: 0}


def test_bounds_by_offset_and_by_time(filled: str, router: Router) -> None:
    assert bounds(plan(router, filled, {1: 4}, {1: 6, 3: 30}, [1, 3])) == {1: (4, 6), 3: (0, 30)}
    now = datetime.now(UTC)
    assert plan(router, filled, now + timedelta(days=1), "latest", None) == []
    assert plan(router, filled, "earliest", now - timedelta(days=1), None) == []
    assert bounds(plan(router, filled, now - timedelta(days=1), "latest", [2])) == {2: (0, 20)}
    assert plan(router, filled, "latest", "latest", None) == []


@pytest.mark.parametrize(
    ("start", "end", "partitions", "error", "why"),
    [
        ({1: 11}, "latest", None, OffsetOutOfRange, r"offset 11 of .*/1 is outside \[0, 10\]"),
        ("earliest", {1: 11}, None, OffsetOutOfRange, r"offset 11 of .*/1 is outside \[0, 10\]"),
        ({1: 5}, {1: 4}, None, ConfigError, "/1 would be read from 5 back to 4"),
        ({1: 5}, "latest", [2], ConfigError, r"start names partitions .*not read: \[1\]"),
        ("earliest", {9: 5}, None, ConfigError, r"end names partitions .*not read: \[9\]"),
        ("earliest", "latest", [1, PARTITIONS], UnknownTopic, f"no partition {PARTITIONS}"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(
    filled: str, router: Router, start: Any, end: Any, partitions: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        plan(router, filled, start, end, partitions)


def test_a_topic_that_does_not_exist(router: Router) -> None:
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        plan(router, "nowhere", "earliest", "latest", None)


def test_what_retention_removes_before_it_is_read_is_an_error(
    brokers: Brokers, filled: str, router: Router
) -> None:
    (planned,) = plan(router, filled, "earliest", "latest", [3])
    brokers.trim(filled, {3: 7}, planned.group)
    with pytest.raises(OffsetOutOfRange, match=re.escape("offset 3 of")):
        plan(router, filled, {3: 3}, "latest", None)
    assert bounds(plan(router, filled, "earliest", "latest", [3])) == {3: (7, 30)}

    def lost(what: str, error: Exception) -> None:
        raise SnapshotLost(what) from error

    found = stretches(brokers.info, planned.part, lost, calls=ClientCalls(brokers), group=planned.group)
    with pytest.raises(SnapshotLost, match=r"/3: offsets 0 to 7 are gone: retention .*materialize") as caught:
        list(found)
    assert "failOnDataLoss" not in str(caught.value)


def test_tasks_tell_ray_how_much_they_read(brokers: Brokers, filled: str, router: Router) -> None:
    ranges = plan(router, filled, "earliest", "latest", None)
    source = EscrowMQDatasource(brokers.info, filled, ranges, ("value", "offset"))
    tasks = source.get_read_tasks(4)
    assert sum(task.metadata.num_rows for task in tasks) == 60 and len(tasks) == 4
    whole = source.estimate_inmemory_data_size()
    assert whole == pytest.approx(sum(task.metadata.size_bytes for task in tasks), abs=40)
    assert 60 * 50 < whole < 60 * 100
    assert tasks[0].schema.names == ["value", "offset"]
    no_contents = EscrowMQDatasource(brokers.info, filled, ranges, ("offset",))
    assert no_contents.estimate_inmemory_data_size() == 60 * 8
    (nothing,) = EscrowMQDatasource(brokers.info, filled, [], ("offset",)).get_read_tasks(4)
    (block,) = nothing()
    assert nothing.metadata.num_rows == block.num_rows == 0 and block.schema.names == ["offset"]


@given(st.lists(st.integers(1, 1_000), max_size=30), st.integers(1, 40))
def test_every_message_is_the_work_of_one_task(sizes: list[int], tasks: int) -> None:
    ranges = [PlannedRange(OffsetRange("t", p, 5, 5 + n), 100 * n) for p, n in enumerate(sizes)]
    shares = shared_out(ranges, tasks)
    pieces = [piece.part for share in shares for piece in share]
    read = [(part.partition, offset) for part in pieces for offset in range(part.start, part.end)]
    assert read == [(p, 5 + i) for p, n in enumerate(sizes) for i in range(n)]
    works = [sum(piece.messages for piece in share) for share in shares]
    assert len(shares) == min(tasks, sum(sizes))
    assert not works or 1 <= min(works) <= max(works) <= min(works) + 1
    assert abs(sum(piece.size_bytes for share in shares for piece in share) - 100 * sum(sizes)) <= len(pieces)
