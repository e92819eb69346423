"""Reads that end at a stable cut have transactions over two broker groups as a whole, while these go on."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from escrowmq.replication.model import Message
from tests.integration.spark_modes import MODES, shared
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(240)]
Name = Callable[[str], str]
WRITERS = 4


@pytest.fixture(scope="module", params=MODES)
def spark(request: pytest.FixtureRequest, cluster: Cluster) -> SparkSession:
    return shared(request.param)


@pytest.fixture(scope="module")
def wide(ray_local: str) -> Iterator[Cluster]:
    """Two broker groups of one replica each."""
    import escrowmq

    with escrowmq.start_local(groups=2, replicas=1, namespace="spark-cut") as running:
        yield running


@pytest.fixture
def topic(wide: Cluster, unique: Name) -> str:
    """A partition in each group."""
    name = unique("halves")
    wide.admin.create_topic(name, partitions=2)
    return name


def options(wide: Cluster, topic: str) -> dict[str, str]:
    at = {"escrowmq.address": wide.address, "escrowmq.namespace": wide.info.namespace}
    return {"subscribe": topic, "startingOffsets": "earliest", "isolation": "cut", **at}


@contextmanager
def writing(wide: Cluster, topic: str, app: str) -> Iterator[list[str]]:
    """Transactions of one message in each group, one after the other in each of several threads; their names
    once they are committed."""
    committed, stop = list[str](), threading.Event()

    def write(number: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            name = f"{number}.{count}"
            with producer.transaction() as tx:
                tx.send(*(Message(topic, name.encode(), partition=partition) for partition in (0, 1)))
            committed.append(name)

    with wide.producer(app=app) as producer:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield committed
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def has_more(names: list[str], count: int) -> bool:
    return len(names) > count


def halves(frame: DataFrame) -> tuple[set[str], set[str]]:
    """The transactions whose message in the first and in the second group is there."""
    found: dict[int, set[str]] = defaultdict(set)
    for row in frame.selectExpr("partition", "CAST(value AS STRING) AS name").collect():
        found[row.partition].add(row.name)
    return found[0], found[1]


def test_a_batch_has_each_transaction_as_a_whole(
    spark: SparkSession, wide: Cluster, topic: str, unique: Name
) -> None:
    def read() -> tuple[set[str], set[str]]:
        return halves(spark.read.format("escrowmq").options(**options(wide, topic)).load())

    with writing(wide, topic, unique("app")) as committed:
        for _ in range(5):
            before = [*committed]
            first, second = read()
            assert first == second and first >= {*before}, "nothing that was committed before is missing"
            enough = len(first) + 20
            wait_until(partial(has_more, committed, enough), 30.0, "further transactions")
    assert read() == ({*committed}, {*committed})


def test_each_micro_batch_of_a_stream_has_each_transaction_as_a_whole(
    spark: SparkSession, wide: Cluster, topic: str, unique: Name, tmp_path: Path
) -> None:
    batches: dict[int, tuple[set[str], set[str]]] = {}

    def note(frame: DataFrame, number: int) -> None:
        batches[number] = halves(frame)

    frame = spark.readStream.format("escrowmq").options(**options(wide, topic)).load()
    query = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path)).start()
    try:
        with writing(wide, topic, unique("app")) as committed:
            wait_until(lambda: len(batches) >= 8 or query.exception(), 120.0, "eight micro-batches", 0.05)
        deadline = time.monotonic() + 60.0
        while sum(len(first) for first, _ in batches.values()) < len(committed):
            assert query.exception() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        query.stop()
    for number, (first, second) in batches.items():
        assert first == second, f"micro-batch {number} has a part of {first ^ second}"
    assert set[str]().union(*(first for first, _ in batches.values())) == {*committed}
