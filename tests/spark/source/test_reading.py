"""A task's reads over in-process brokers: what replicas lack is lost only if their leader says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from escrowmq.replication.errors import DataLoss, Unavailable
from escrowmq.spark_integration.decode.records import RowFormat
from escrowmq.spark_integration.source.planning import OffsetRange
from escrowmq.spark_integration.source.reading import TaskReader
from tests.support.brokers import BehindCalls, Brokers

Clusters = tuple[Brokers, Brokers]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """A cluster, and another one that was never told of its topics, as a replica that has just started."""
    both = tuple(Brokers(tmp_path_factory.mktemp(name), replicas=1) for name in ("now", "before"))
    yield both  # type: ignore[misc]
    for cluster in both:
        cluster.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, clusters: Clusters) -> str:
    name = f"t-{abs(hash(request.node.nodeid)):x}"
    clusters[0].topic(name)
    clusters[0].produce(name, 0, [b"%d" % i for i in range(10)])
    return name


@pytest.fixture
def read(clusters: Clusters) -> Callable[..., int]:
    """``read(topic, end, fails, behind=True)``: how many messages of [0, end) a task gets."""
    now, before = clusters

    def read(topic: str, end: int, fails: bool, behind: bool = True) -> int:
        calls = BehindCalls(now, before if behind else now)
        task = TaskReader("127.0.0.1:1", "test", RowFormat(), fails)
        part = OffsetRange(topic, 0, 0, end)
        found = task.stretches(now.info, part, calls=calls, lag_patience_s=0.3, ask_timeout_s=1.0)
        return sum(run[1] for stretch in found for run in stretch.runs)

    return read


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("knows", ["no topic", "no message"])
def test_what_the_leader_has_is_not_lost_because_replicas_lack_it(
    clusters: Clusters, topic: str, read: Callable[..., int], knows: str, fails: bool
) -> None:
    if knows == "no message":
        clusters[1].topic(topic)
    with pytest.raises(Unavailable, match=f"replicas lag behind offset 0 of {topic}/0"):
        read(topic, 10, fails)
    assert read(topic, 10, fails, behind=False) == 10, "the task's next attempt finds a replica that has it"


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("knows", ["no topic", "no message"])
def test_nothing_is_lost_as_long_as_no_leader_says_so(
    clusters: Clusters, topic: str, read: Callable[..., int], knows: str, fails: bool
) -> None:
    if knows == "no message":
        clusters[1].topic(topic)
    clusters[0].silent.add((0, 0))
    try:
        with pytest.raises(Unavailable):
            read(topic, 10, fails)
    finally:
        clusters[0].silent.clear()


@pytest.mark.parametrize("gone", ["topic", "messages"])
def test_what_the_leader_has_not_is_lost(
    clusters: Clusters, topic: str, read: Callable[..., int], gone: str
) -> None:
    clusters[0].delete(topic)
    if gone == "messages":
        clusters[0].topic(topic)
    with pytest.raises(DataLoss, match=rf"{topic}/0: .*(unknown topic|created again).*failOnDataLoss"):
        read(topic, 10, True, behind=False)
    assert read(topic, 10, False, behind=False) == 0
