"""A DataFrame used more than once: a filter in one query must not change what another query reads.

Spark keeps one reader for a DataFrame and all its views and copies, and a reader that takes filters keeps the
last ones. So filters are left to Spark unless a read asks for them with ``pushFilters``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from escrowmq.replication.model import Message
from tests.integration.spark_modes import MODES, shared

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(240)]
Name = Callable[[str], str]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module", params=MODES)
def spark(request: pytest.FixtureRequest, cluster: Cluster) -> SparkSession:
    return shared(request.param)


@pytest.fixture
def topic(cluster: Cluster, unique: Name) -> str:
    """Two partitions with 50 messages each."""
    topic = unique("again")
    cluster.admin.create_topic(topic, partitions=2)
    send(cluster, topic, 50)
    return topic


def send(cluster: Cluster, topic: str, each: int) -> None:
    with cluster.producer(app="again") as producer:
        for i in range(each):
            for partition in (0, 1):
                producer.send(Message(topic, b"%d" % i, partition=partition))


def read(spark: SparkSession, topic: str, **options: str) -> DataFrame:
    return spark.read.format("escrowmq").options(subscribe=topic, **options).load()


def test_a_filter_changes_no_other_use_of_the_same_dataframe(spark: SparkSession, topic: str) -> None:
    frame = read(spark, topic)
    assert frame.count() == 100
    assert frame.where("offset < 3").count() == 6
    assert frame.count() == 100
    assert frame.where("partition = 1 AND offset >= 40").count() == 10
    assert frame.where("offset < 3").count() == 6


def test_sub_queries_of_one_query_each_have_their_own_filter(spark: SparkSession, topic: str) -> None:
    read(spark, topic).createOrReplaceTempView("again")
    found = spark.sql(
        "SELECT (SELECT count(*) FROM again WHERE offset < 3) AS low, "
        "(SELECT count(*) FROM again WHERE offset >= 3) AS high, (SELECT count(*) FROM again) AS all"
    ).first()
    assert tuple(found) == (6, 94, 100)  # type: ignore[arg-type]


def test_a_view_reads_the_same_whatever_was_asked_of_it(spark: SparkSession, topic: str) -> None:
    read(spark, topic).createOrReplaceTempView("viewed")
    counts = [
        spark.sql(f"SELECT count(*) FROM viewed {where}").first()[0]  # type: ignore[index]
        for where in ("", "WHERE partition = 0", "WHERE topic = 'nothing'", "", "WHERE offset = 7")
    ]
    assert counts == [100, 50, 0, 100, 2]


def test_unions_and_differences_see_both_their_sides(spark: SparkSession, topic: str) -> None:
    frame = read(spark, topic).select("partition", "offset")
    low, high = frame.where("offset < 3"), frame.where("offset >= 3")
    assert low.union(high).count() == 100
    assert low.union(frame).count() == 106
    assert frame.exceptAll(low).count() == 94
    assert frame.exceptAll(high).count() == 6
    assert low.intersect(high).count() == 0
    assert frame.join(low, ["partition", "offset"], "left_anti").count() == 94


def test_a_stream_and_its_filtered_twin_each_read_their_own(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    frame = spark.readStream.format("escrowmq").options(subscribe=topic, startingOffsets="earliest").load()
    both = frame.where("offset < 3").select("offset").union(frame.select("offset"))
    for name, stream in (
        ("all", frame),
        ("low", frame.where("offset < 3")),
        ("both", both),
        ("again", frame),
    ):
        query = (
            stream.writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
    counts = [spark.table(name).count() for name in ("all", "low", "both", "again")]
    assert counts == [100, 6, 106, 100]


def test_the_session_s_own_setting_is_left_alone(spark: SparkSession, cluster: Cluster) -> None:
    from escrowmq.spark_integration.data_source import register

    was = spark.conf.get(PUSHDOWN)
    register(spark, address=cluster.address)
    assert spark.conf.get(PUSHDOWN) == was == "false"


def test_what_a_dataframe_reads_is_settled_by_its_first_query(
    spark: SparkSession, cluster: Cluster, topic: str
) -> None:
    frame = read(spark, topic)
    assert frame.count() == 100
    send(cluster, topic, 1)
    again = [frame.count(), frame.where("offset >= 0").count(), frame.select("value").count()]
    assert again == [100, 100, 100], "with a filter or without, a DataFrame keeps its first plan"
    assert read(spark, topic).count() == 102
