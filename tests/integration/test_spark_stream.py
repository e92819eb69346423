"""Streaming reads on a real cluster: every committed message once, in order, through whatever happens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.replication.model import Message
from escrowmq.spark_integration import spark_session, stop_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(240)]
Name = Callable[[str], str]
Send = Callable[..., None]


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> Iterator[SparkSession]:
    session = spark_session("test-stream", mode="local", cores=2, quick_start=True)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    stop_session(session)


@pytest.fixture
def send(cluster: Cluster, unique: Name) -> Iterator[Send]:
    """``send(topic, *values, partition=0)``; returns when they are committed."""
    with cluster.producer(app=unique("app")) as producer:

        def send(topic: str, *values: object, partition: int = 0) -> None:
            futures = [producer.send(Message(topic, str(v).encode(), partition=partition)) for v in values]
            for future in futures:
                future.result(30)

        yield send


class Seen:
    """A sink that notes the values of each batch, by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = frame.selectExpr("CAST(value AS STRING) AS v", "topic", "partition", "offset").collect()
        found = [row.v for row in sorted(rows, key=lambda r: (r.topic, r.partition, r.offset))]
        assert self.batches.get(number, found) == found, "a batch that is repeated must be the same"
        self.batches[number] = found

    @property
    def values(self) -> list[str]:
        return [value for number in sorted(self.batches) for value in self.batches[number]]

    def wait_for(self, count: int, query: StreamingQuery, timeout_s: float = 60.0) -> list[str]:
        deadline = time.monotonic() + timeout_s
        while len(self.values) < count:
            assert time.monotonic() < deadline, f"{len(self.values)} of {count} came"
            if query.exception() is not None:
                raise query.exception()  # type: ignore[misc]
            time.sleep(0.02)
        return self.values


def start(
    spark: SparkSession, seen: Seen, checkpoint: Path, trigger: dict[str, Any] | None = None, **options: str
) -> StreamingQuery:
    frame = spark.readStream.format("escrowmq").options(**options).load()
    writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def numbers(first: int, end: int) -> list[str]:
    return [str(i) for i in range(first, end)]


def test_a_stream_starts_at_the_end_and_goes_on_from_its_checkpoint(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send, tmp_path: Path
) -> None:
    topic, seen = unique("stream"), Seen()
    cluster.admin.create_topic(topic, partitions=2)
    send(topic, "before")
    query = start(spark, seen, tmp_path, subscribe=topic)
    query.processAllAvailable()
    assert seen.values == []
    send(topic, *range(50))
    send(topic, "other", partition=1)
    query.processAllAvailable()
    assert sorted(seen.values) == sorted([*numbers(0, 50), "other"])
    progress = query.lastProgress
    assert progress is not None
    query.stop()
    send(topic, *range(50, 60))
    query = start(spark, seen, tmp_path, subscribe=topic)
    query.processAllAvailable()
    query.stop()
    assert sorted(seen.values) == sorted([*numbers(0, 60), "other"])
    checkpoint = (tmp_path / "offsets" / str(max(seen.batches))).read_text().splitlines()[-1]
    assert json.loads(checkpoint) == {topic: {"0": 61, "1": 1}}


def test_what_was_planned_first_is_read_even_if_the_query_dies_before_its_first_commit(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send, tmp_path: Path
) -> None:
    topic, seen = unique("first"), Seen()
    cluster.admin.create_topic(topic, partitions=1)
    send(topic, "before")

    def fails(frame: DataFrame, number: int) -> None:
        raise RuntimeError("sink fails")

    query = start(spark, fails, tmp_path, subscribe=topic)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="sink fails"):
        query.awaitTermination(60)
    send(topic, *range(5))
    query = start(spark, seen, tmp_path, subscribe=topic)
    query.processAllAvailable()
    query.stop()
    assert seen.values == numbers(0, 5)


def test_limits_share_batches_out_and_available_now_ends(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send, tmp_path: Path
) -> None:
    topic, seen = unique("limits"), Seen()
    cluster.admin.create_topic(topic, partitions=2)
    send(topic, *range(30))
    send(topic, *range(30, 40), partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "minPartitions": "4"}
    query = start(spark, seen, tmp_path / "a", {"availableNow": True}, maxOffsetsPerTrigger="16", **options)
    assert query.awaitTermination(60)
    assert sorted(seen.values, key=int) == numbers(0, 40)
    assert [len(batch) for batch in seen.batches.values()] == [16, 16, 8]
    assert len([v for v in seen.batches[0] if int(v) < 30]) == 12  # in proportion to the lags
    by_bytes = Seen()
    query = start(
        spark, by_bytes, tmp_path / "b", {"availableNow": True}, maxBytesPerTrigger="150", **options
    )
    assert query.awaitTermination(60)
    assert sorted(by_bytes.values, key=int) == numbers(0, 40)
    assert len(by_bytes.batches) >= 2
