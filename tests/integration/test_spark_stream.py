"""Streaming reads on a real cluster: every committed message once and in order, despite failures."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.replication.model import Message
from escrowmq.spark_integration import lag
from tests.integration.spark_modes import MODES, shared
from tests.support.leaders import leader_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(240)]
Name = Callable[[str], str]
Send = Callable[..., None]


@pytest.fixture(scope="module", params=MODES)
def spark(request: pytest.FixtureRequest, cluster: Cluster) -> SparkSession:
    return shared(request.param)


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
    """A sink that records the values of each batch."""

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


def test_available_now_may_start_at_the_end_while_others_write(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send, tmp_path: Path
) -> None:
    topic, seen, ended = unique("busy"), Seen(), threading.Event()
    cluster.admin.create_topic(topic, partitions=1)
    send(topic, *range(100))

    def write() -> None:
        number = 100
        while not ended.is_set():
            send(topic, number)
            number += 1
            ended.wait(0.002)  # the query needs the processor as well

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for run in range(2):  # the second run continues from the checkpoint
            query = start(spark, seen, tmp_path, {"availableNow": True}, subscribe=topic)
            assert query.awaitTermination(60), f"run {run}"
    finally:
        ended.set()
        writer.join()
    first = int(seen.values[0])
    assert first >= 100 and seen.values == numbers(first, first + len(seen.values))


def test_new_topics_join_and_open_transactions_never_show(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send, tmp_path: Path
) -> None:
    prefix, seen = unique("many"), Seen()
    for name in ("a", "other-b"):
        cluster.admin.create_topic(f"{prefix}-{name}" if name == "a" else unique(name), partitions=1)
    query = start(spark, seen, tmp_path, subscribePattern=f"{prefix}-.*")
    query.processAllAvailable()
    cluster.admin.create_topic(f"{prefix}-new", partitions=3)
    send(f"{prefix}-new", *range(10), partition=2)
    send(f"{prefix}-a", *range(10, 15))
    with cluster.producer(app=unique("app")) as producer:
        left = producer.transaction(tx_id="open").__enter__()
        left.send(Message(f"{prefix}-a", b"undecided"))
        left.prepare()
        with pytest.raises(ValueError), producer.transaction() as tx:
            tx.send(Message(f"{prefix}-a", b"rolled back"))
            tx.prepare()
            raise ValueError
        send(f"{prefix}-a", 15)
        assert sorted(seen.wait_for(16, query), key=int) == numbers(0, 16)
        left.commit()
        assert seen.wait_for(17, query)[-1] == "undecided"
    query.stop()
    assert query.lastProgress is not None


def test_messages_that_are_gone_are_an_error_or_skipped_as_one_wishes(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send, tmp_path: Path
) -> None:
    topic, seen = unique("gone"), Seen()
    cluster.admin.create_topic(topic, partitions=1, retention_ms=500)
    query = start(spark, seen, tmp_path, subscribe=topic)
    query.processAllAvailable()
    query.stop()
    send(topic, *range(10))
    deadline = time.monotonic() + 30
    while cluster.admin.describe_topic(topic).partitions[0].start < 10:  # retention overtakes the query
        assert time.monotonic() < deadline, "retention of 500 ms has removed nothing for 30 s"
        time.sleep(0.1)
    send(topic, *range(10, 13))
    query = start(spark, seen, tmp_path, subscribe=topic)
    with pytest.raises(Exception, match=rf"DataLoss.*{topic}/0: offsets 0 to 1\d are gone.*failOnDataLoss"):
        query.awaitTermination(60)
    cluster.admin.delete_topic(topic)
    query = start(spark, seen, tmp_path, subscribe=topic)
    with pytest.raises(Exception, match=rf"DataLoss.*{topic}/0: deleted"):
        query.awaitTermination(60)
    query = start(spark, seen, tmp_path, subscribe=topic, failOnDataLoss="false")
    query.processAllAvailable()
    cluster.admin.create_topic(topic, partitions=1)
    send(topic, "anew")
    assert seen.wait_for(1, query) == ["anew"]
    query.stop()


def test_a_broker_that_dies_in_the_middle_costs_nothing_but_time(
    spark: SparkSession, cluster: Cluster, unique: Name, tmp_path: Path, healthy_again: None
) -> None:
    seen, topic = Seen(), unique("killed")
    cluster.admin.create_topic(topic, partitions=2)
    options = {"subscribe": topic, "maxOffsetsPerTrigger": "400"}
    query = start(spark, seen, tmp_path, startingOffsets="earliest", **options)
    with cluster.producer(app=unique("app")) as producer:
        sent = [producer.send(Message(topic, b"%d" % i)) for i in range(1000)]
        seen.wait_for(300, query)
        os.kill(leader_of(cluster).details["pid"], signal.SIGKILL)
        sent += [producer.send(Message(topic, b"%d" % i)) for i in range(1000, 2000)]
        for future in sent:
            future.result(60)
        assert sorted(seen.wait_for(2000, query), key=int) == numbers(0, 2000)
    query.stop()
    # The session must still be able to write.
    written = spark.range(1).selectExpr("'2000' AS value").write.format("escrowmq").mode("append")
    written.option("topic", topic).save()
    assert read(spark, subscribe=topic).count() == 2001


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("escrowmq").options(**options).load()


@pytest.fixture
def filters_offered(spark: SparkSession) -> Iterator[None]:
    """Make Spark offer filters to Python sources, which it does not by default."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("filters_offered")
def test_filters_shorten_the_plan_of_reads_that_push_them_and_give_the_same_rows(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send
) -> None:
    topic = unique("filters")
    cluster.admin.create_topic(topic, partitions=2)
    send(topic, *range(100))
    send(topic, *range(100, 150), partition=1)
    frame = read(spark, subscribe=topic)
    moment = frame.where("partition = 0 AND offset = 90").first().timestamp  # type: ignore[union-attr]
    for condition, tasks in {
        "partition = 1": 15,
        "partition = 0 AND offset >= 95 AND offset < 97": 2,
        "topic = 'other'": 1,
        f"timestamp > TIMESTAMP '{moment}'": 15,
        "offset IN (3, 7) AND length(value) > 0": 10,
        "NOT (topic = 'x' OR partition = 0)": 15,
    }.items():
        # A new read for each query: Spark plans every use of a DataFrame with the filters pushed last.
        found = read(spark, subscribe=topic, minPartitions="15", pushFilters="true").where(condition)
        assert sorted(found.collect()) == sorted(frame.where(condition).collect()), condition
        assert found.rdd.getNumPartitions() <= tasks + 1, condition


def test_a_read_that_pushes_filters_needs_the_session_s_consent(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send
) -> None:
    from pyspark.errors import PySparkException

    topic = unique("consent")
    cluster.admin.create_topic(topic, partitions=1)
    send(topic, "a")
    with pytest.raises(PySparkException, match=r"filterPushdown\.enabled"):
        read(spark, subscribe=topic, pushFilters="true").where("offset = 0").count()


def test_only_the_chosen_columns_come_and_schemas_that_cannot_be_are_refused(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send
) -> None:
    from pyspark.errors import PySparkException

    topic = unique("columns")
    cluster.admin.create_topic(topic, partitions=1)
    send(topic, "a", "b")
    assert read(spark, subscribe=topic, columns="offset,value").columns == ["offset", "value"]
    chosen = spark.read.format("escrowmq").schema("value BINARY, partition INT").option("subscribe", topic)
    assert [tuple(row) for row in chosen.load().collect()] == [(b"a", 0), (b"b", 0)]
    with pytest.raises(PySparkException, match=r"cannot provide the schema .*value:string"):
        spark.read.format("escrowmq").schema("value STRING").option("subscribe", topic).load().count()


def test_values_are_decoded_in_batches_and_streams(
    spark: SparkSession, cluster: Cluster, unique: Name, send: Send, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    topic = unique("values")
    cluster.admin.create_topic(topic, partitions=1)
    send(topic, '{"id": 1, "tags": ["x"]}', "no json", '{"id": 3, "day": "2024-05-06"}')
    options = {
        "subscribe": topic,
        "valueFormat": "json",
        "valueSchema": "id BIGINT, day DATE, tags ARRAY<STRING>",
    }
    frame = read(spark, **options)
    rows = frame.orderBy("offset").select("value.*").collect()
    assert [(row.id, str(row.day), row.tags) for row in rows] == [
        (1, "None", ["x"]),
        (None, "None", None),
        (3, "2024-05-06", None),
    ]
    typed = spark.read.format("escrowmq").schema("value STRUCT<id: INT>, offset BIGINT")
    dropped = typed.options(subscribe=topic, valueFormat="json", valueMode="DROPMALFORMED").load()
    assert sorted((row.value.id, row.offset) for row in dropped.collect()) == [(1, 0), (3, 2)]
    with pytest.raises(PySparkException, match=rf"{topic}/0, offset 1: the value is not json"):
        read(spark, **options, valueMode="FAILFAST").collect()
    with pytest.raises(PySparkException, match="valueFormat=json needs option 'valueSchema'"):
        read(spark, subscribe=topic, valueFormat="json")
    stream = spark.readStream.format("escrowmq").options(**options, startingOffsets="earliest").load()
    query = (
        stream.selectExpr("sum(value.id) AS total")
        .writeStream.format("memory")
        .queryName("totals")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    query.processAllAvailable()
    assert spark.table("totals").first().total == 4  # type: ignore[union-attr]
    assert lag(query.lastProgress) == {topic: {0: 0}}
    query.stop()
