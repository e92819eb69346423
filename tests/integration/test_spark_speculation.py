"""Speculative task attempts, started by Spark: a slow attempt with prepared rows loses and leaves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.spark_integration import spark_session, stop_session
from escrowmq.spark_integration.sink.task import CHUNK_BYTES
from tests.integration.spark_sinking import PARTITIONS, Files, run
from tests.integration.two_hosts import two_hosts
from tests.spark_trials.target import Target, problems_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(400)]
Straggle = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

#: Enough for more than one chunk, so that the slow attempt has prepared one while it hangs.
ROWS, ROW_BYTES = 8_000, 2_000


@pytest.fixture(scope="module")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    configs = {
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    }
    with two_hosts(tmp_path_factory.mktemp("hosts")) as factory:
        session = spark_session(
            "speculation", mode=factory, executors=2, memory="512m", quick_start=True, configs=configs
        )
        yield session
        stop_session(session)


@pytest.fixture
def target(cluster: Cluster, unique: Callable[[str], str]) -> Iterator[Target]:
    topic = unique("speculation")
    cluster.admin.create_topic(topic, partitions=PARTITIONS)
    made = Target(cluster.info, topic, PARTITIONS)
    yield made
    made.close()


def straggling(attempts: Path) -> Straggle:
    """The first attempt of the first task hangs near its end; every attempt creates a file with its name."""
    attempts.mkdir()

    def straggle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        (attempts / f"{task}.{attempt}").touch()
        for number, batch in enumerate(batches):
            if task == attempt == 0 and number == 6 and not (attempts / "hung").exists():
                (attempts / "hung").touch()
                time.sleep(120)
            yield batch

    return straggle


def names(attempts: Path) -> set[str]:
    return {path.name for path in attempts.iterdir()}


def test_a_batch_write_with_a_twin_is_written_once_and_leaves_nothing(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    assert ROWS * ROW_BYTES > 3 * CHUNK_BYTES
    frame = spark.range(ROWS, numPartitions=2).selectExpr(
        f"concat(id, '-', repeat('x', {ROW_BYTES})) AS value"
    )
    began = time.monotonic()
    frame.mapInArrow(straggling(tmp_path / "attempts"), frame.schema).write.format("escrowmq").mode(
        "append"
    ).option("topic", target.topic).save()
    assert time.monotonic() - began < 110, "it waited for the straggler"
    assert {"0.0", "hung", "0.1", "1.0"} <= names(tmp_path / "attempts")
    found = sorted(int(row.value.split("-")[0]) for row in target.rows())
    assert found == list(range(ROWS)) and target.open_transactions() == []


def test_an_epoch_with_a_twin_is_written_once_and_the_next_clears_up(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in", 2, rows=ROWS)
    padding = "x" * ROW_BYTES
    frame = files.stream(spark).selectExpr("key", f"concat(value, '-{padding}') AS value", "partition")
    run(frame.mapInArrow(straggling(tmp_path / "attempts"), frame.schema), target, tmp_path / "check")
    assert {"0.0", "hung", "0.1", "1.0"} <= names(tmp_path / "attempts")
    epochs = {name: [f"{value}-{padding}" for value in values] for name, values in files.epochs.items()}
    assert problems_of(target.rows(), epochs) == [] and target.open_transactions() == []
