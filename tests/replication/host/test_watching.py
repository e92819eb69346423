"""News of many partitions in one parked call, and bytes of offset ranges from the index."""

from __future__ import annotations

import random
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.calling.answers import PartitionBounds, PartitionSpans
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.index import PartitionIndex
from tests.support.broker_group import BrokerGroup


def test_a_parked_watch_ends_with_the_news_and_an_idle_one_with_its_time(trio: BrokerGroup) -> None:
    trio.topic()
    watching = trio.leader().parts.watching
    assert watching.watch([("t", 0, -1)], 10.0) == ("ok", PartitionBounds([0], [0], [0]))
    began = time.monotonic()
    assert watching.watch([("t", 0, 0)], 0.2) == ("ok", PartitionBounds([0], [0], [0]))
    assert time.monotonic() - began >= 0.2
    threading.Timer(0.2, trio.publish, ("a", "b")).start()
    assert watching.watch([("t", 0, 0)], 10.0)[1].ends in ([1], [2])  # as its two commits become readable
    assert time.monotonic() - began < 9


def test_only_the_leader_answers_and_it_knows_what_is_not_there(trio: BrokerGroup) -> None:
    trio.topic()
    follower, leader = trio.follower()
    assert follower.parts.watching.watch([("t", 0, 0)], 0.0)[:2] == ("not_leader", leader.rid)
    assert follower.parts.watching.spans([("t", 0, 0, 1, 1)])[:2] == ("not_leader", leader.rid)
    _, bounds = leader.parts.watching.watch([("nope", 0, -1), ("t", 99, -1)], 0.0)
    assert bounds.codes == [ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION]
    _, spans = leader.parts.watching.spans([("nope", 0, 0, 1, 1)])
    assert spans == PartitionSpans([ResultCode.UNKNOWN_TOPIC], [0], [0])


def test_spans_say_how_far_a_number_of_bytes_reaches(trio: BrokerGroup) -> None:
    trio.topic()
    trio.publish(*(f"x{i}" for i in range(10)), size=1_000)
    watching = trio.leader().parts.watching
    _, whole = watching.spans([("t", 0, 0, 10, 1 << 40)])
    (total,) = whole.sizes
    assert whole.offsets == [10] and 10_000 < total < 11_000
    _, half = watching.spans([("t", 0, 0, 10, total // 2)])
    assert half.offsets in ([4], [5]) and half.sizes[0] <= total // 2


@given(st.integers(0, 2**32), st.data())
def test_a_span_never_exceeds_its_bytes_and_goes_on_where_it_can(seed: int, data: st.DataObject) -> None:
    rng = random.Random(seed)
    index = PartitionIndex()
    sizes: list[float] = []
    for entry in range(1, rng.randrange(2, 600)):
        count, size = rng.randrange(1, 5), rng.randrange(5, 50)
        index.append(entry, 0, count * size, count, entry)
        sizes += [size] * count
        if rng.random() < 0.01:
            index.seal()
    start = data.draw(st.integers(0, index.end))
    end = data.draw(st.integers(start, index.end + 5))
    limit = data.draw(st.integers(0, 20_000))
    offset, taken = index.span(start, end, limit)
    assert start <= offset <= min(end, index.end)
    assert taken == sum(sizes[start:offset]) <= limit
    assert offset == min(end, index.end) or taken + sizes[offset] > limit
