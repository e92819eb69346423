"""Batch reads with Spark on a real cluster: all committed messages, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.cluster.demo.tpch import generate, read_orders
from escrowmq.replication.errors import ConfigError, Unavailable
from escrowmq.replication.model import Message
from escrowmq.spark_integration import spark_session, stop_session
from tests.integration.spark_modes import MODES, make_room, shared

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(240)]
Name = Callable[[str], str]


# In every run the demo reads with executors on Ray (test_demo.py).
@pytest.fixture(scope="module", params=MODES)
def spark(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[SparkSession]:
    import ray

    if request.param == "local":
        yield shared("local")
        return
    make_room()
    before = ray.available_resources()["CPU"]  # type: ignore[no-untyped-call]
    session = spark_session("test-batch", mode=request.param, executors=1, cores=1, quick_start=True)
    yield session
    stop_session(session)
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU", 0) < before:  # type: ignore[no-untyped-call]
        assert time.monotonic() < deadline, "stop_session left executors behind"
        time.sleep(0.2)


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("escrowmq").options(**options).load()


def test_executors_that_do_not_fit_are_refused_at_once(cluster: Cluster) -> None:
    with pytest.raises(Unavailable, match="CPUs"):
        spark_session("too-many", mode="raydp", executors=100)
    with pytest.raises(ConfigError, match="cores"):
        spark_session("too-large", mode="raydp", cores=1000)


def test_executors_unpack_compressed_values(spark: SparkSession, cluster: Cluster, unique: Name) -> None:
    topic = unique("compressed")
    cluster.admin.create_topic(topic, partitions=2)
    orders = [{"id": n, "text": "teapot " * 400} for n in range(60)]
    for method in ("zstd", "lz4", None):
        with cluster.producer(unique("app"), compression=method, value_serializer="json") as producer:
            producer.send_many(topic, orders).result(30)
            assert producer.statistics().values_compressed == (60 if method else 0)
    plain = read(spark, subscribe=topic)
    assert sorted(json.loads(row.value)["id"] for row in plain.select("value").collect()) == sorted(
        [*range(60)] * 3
    )
    typed = read(spark, subscribe=topic, valueFormat="json", valueSchema="id BIGINT, text STRING")
    assert typed.selectExpr("sum(value.id)", "min(length(value.text))").collect()[0][:] == (3 * 1_770, 2_800)


def test_committed_messages_come_with_all_their_columns(
    spark: SparkSession, cluster: Cluster, unique: Name
) -> None:
    topic = unique("columns")
    cluster.admin.create_topic(topic, partitions=1)
    with cluster.producer(app=unique("app")) as producer:
        stored = producer.send(Message(topic, b"plain", None)).result(30)
        with producer.transaction(tx_id="committed") as tx:
            tx.send(Message(topic, b"first", b"k", {"h": b"1"}), Message(topic, b"", b""))
        left = producer.transaction(tx_id="open").__enter__()
        left.send(Message(topic, b"never"))
        left.prepare()
        with pytest.raises(ValueError), producer.transaction(tx_id="rolled-back") as tx:
            tx.send(Message(topic, b"never"))
            tx.prepare()
            raise ValueError
        rows = read(spark, subscribe=topic, includeHeaders="true").orderBy("offset").collect()
        left.rollback()
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "tx_id"]
    assert rows[0].__fields__ == names
    found = [(r.key, r.value, r.offset, [(h.key, h.value) for h in r.headers], r.tx_id) for r in rows]
    assert found == [
        (None, b"plain", 0, [], None),
        (b"k", b"first", 1, [("h", b"1")], "committed"),
        (b"", b"", 2, [], "committed"),
    ]
    assert {(r.topic, r.partition, r.timestampType) for r in rows} == {(topic, 0, 1)}
    milliseconds = read(spark, subscribe=topic).where("offset = 0").selectExpr("unix_millis(timestamp) AS ms")
    assert milliseconds.first().ms == stored.timestamp  # type: ignore[union-attr]


def test_ranges_are_cut_into_tasks_and_cover_every_offset_once(
    spark: SparkSession, cluster: Cluster, unique: Name
) -> None:
    topic = unique("ranges")
    cluster.admin.create_topic(topic, partitions=2)
    with cluster.producer(app=unique("app")) as producer:
        for i in range(400):
            producer.send(Message(topic, b"%d" % i, partition=0 if i < 300 else 1))
    frame = read(
        spark,
        assign=json.dumps({topic: [0, 1]}),
        startingOffsets=json.dumps({topic: {"0": 10, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": 290, "1": -1}}),
        minPartitions="6",
        maxRecordsPerPartition="50",
    )
    tasks = frame.selectExpr(
        "spark_partition_id() AS task", "partition", "offset", "CAST(value AS STRING) AS v"
    )
    rows = tasks.collect()
    assert sorted((r.partition, r.offset, int(r.v)) for r in rows) == [
        *((0, i, i) for i in range(10, 290)),
        *((1, i, 300 + i) for i in range(100)),
    ]
    by_task: dict[int, int] = defaultdict(int)
    for row in rows:
        by_task[row.task] += 1
    assert len(by_task) >= 6 and max(by_task.values()) <= 50


def test_spark_arrives_at_the_sum_of_what_was_committed(
    spark: SparkSession, cluster: Cluster, unique: Name, tmp_path: Path
) -> None:
    topic = unique("lines")
    cluster.admin.create_topic(topic, partitions=4)
    generate(0.001, tmp_path)
    orders = [order for order in read_orders(tmp_path) if order.key < 1200]
    expected: dict[str, Decimal] = defaultdict(Decimal)
    with cluster.producer(app=unique("app")) as producer:
        for order in orders:
            kept = order.key % 5 != 0
            tx = producer.transaction()
            for line in order.lines:
                text = json.dumps({"flag": line[8], "price": line[5]})
                tx.send(Message(topic, text.encode(), str(order.key).encode()))
                expected[line[8]] += Decimal(line[5]) if kept else 0
            tx.prepare()
            (tx.commit if kept else tx.rollback)()
    answer = (
        read(spark, subscribe=topic)
        .selectExpr("from_json(CAST(value AS STRING), 'flag STRING, price DECIMAL(15,2)') AS line")
        .groupBy("line.flag")
        .agg({"line.price": "sum"})
        .collect()
    )
    assert {row[0]: row[1] for row in answer} == dict(expected)


def test_timestamps_choose_what_was_stored_then_or_later(
    spark: SparkSession, cluster: Cluster, unique: Name
) -> None:
    topic = unique("times")
    cluster.admin.create_topic(topic, partitions=1)
    with cluster.producer(app=unique("app")) as producer:
        times = [producer.send(Message(topic, b"%d" % i)).result(30).timestamp for i in range(20)]
    moment = times[10]
    later = read(spark, subscribe=topic, startingTimestamp=str(moment)).collect()
    earlier = read(spark, subscribe=topic, endingTimestamp=str(moment)).collect()
    assert [r.offset for r in later] == [i for i, t in enumerate(times) if t >= moment]
    assert [r.offset for r in earlier] == [i for i, t in enumerate(times) if t < moment]


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("UnknownTopic: unknown topic 'no-such-topic'", {"subscribe": "no-such-topic"}),
        ("ConfigError: .*minPartitions", {"subscribe": "t", "minPartitions": "none"}),
        ("ClusterNotFound: .*'nowhere'", {"subscribe": "t", "escrowmq.namespace": "nowhere"}),
        (
            "ClusterNotFound: no Ray cluster at '127.0.0.1:1'",
            {"subscribe": "t", "escrowmq.address": "127.0.0.1:1"},
        ),
    ],
)
def test_mistakes_are_told_by_name(spark: SparkSession, said: str, options: dict[str, str]) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=said):
        read(spark, **options).count()


def test_a_schema_of_one_s_own_is_refused(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"cannot provide the schema .*a:int.*leave out"):
        spark.read.format("escrowmq").schema("a INT").option("subscribe", "t").load().count()


def test_a_second_session_is_refused_while_one_runs(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="already has a Spark session"):
        spark_session("second", mode="raydp")


LOCAL = """
import json, sys
from escrowmq.spark_integration import spark_session, stop_session
address, topic = sys.argv[1:]
spark = spark_session("local", mode="local", address=address, quick_start=True)
frame = spark.read.format("escrowmq").option("subscribe", topic).load()
print(json.dumps([bytes(row.value).decode() for row in frame.orderBy("offset").collect()]))
stop_session(spark)
"""


@pytest.mark.long
def test_local_spark_reads_too(cluster: Cluster, unique: Name) -> None:
    topic = unique("local")
    cluster.admin.create_topic(topic, partitions=1)
    with cluster.producer(app=unique("app")) as producer:
        for value in (b"a", b"b"):
            producer.send(Message(topic, value)).result(30)
    command: list[Any] = [sys.executable, "-c", LOCAL, cluster.address, topic]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1]) == ["a", "b"]


WITHOUT_JAVA = """
import os, sys, tempfile
from pathlib import Path
path, os.environ["PATH"] = os.environ["PATH"], tempfile.mkdtemp()
os.environ.pop("JAVA_HOME", None)
from escrowmq.cluster.ray_use import start_ray
from escrowmq.cluster.settings import RaySettings
from escrowmq.replication.errors import JavaNotFound
from escrowmq.spark_integration import spark_session
start_ray(RaySettings(num_cpus=2, temp_dir=Path(sys.argv[1])), "no-java")
os.environ["PATH"] = path
try:
    spark_session("no-java", mode="raydp")
except JavaNotFound as error:
    print(error)
"""


@pytest.mark.long
def test_a_ray_without_java_is_told_at_once_and_not_waited_for() -> None:
    with tempfile.TemporaryDirectory(prefix="emq-", dir="/tmp") as directory:
        command = [sys.executable, "-c", WITHOUT_JAVA, directory]
        run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "Ray reads PATH when it starts" in run.stdout, run.stderr[-3000:]
