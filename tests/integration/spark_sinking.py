"""Queries for the sink's tests: a stream of text files, each of which is one epoch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.spark_integration.sink.intents import Attempt, IntentStore, app_of, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink
from escrowmq.spark_integration.sink.task import attempt_name, write_batches
from tests.spark_trials.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 4


class Files:
    """A stream of text files: each is one epoch."""

    def __init__(self, directory: Path, count: int = 0, rows: int = 40) -> None:
        self.directory, self.rows = directory, rows
        self.epochs: dict[str, list[str]] = {}
        directory.mkdir()
        for _ in range(count):
            self.add()

    def add(self) -> None:
        name = f"file-{len(self.epochs)}"
        self.epochs[name] = [f"{name}/{i}" for i in range(self.rows)]
        hidden = self.directory / f".{name}"
        hidden.write_text("\n".join(self.epochs[name]) + "\n")
        moment = time.time() - 1_000 + len(self.epochs)  # Spark reads files in the order of their times
        os.utime(hidden, (moment, moment))
        hidden.rename(self.directory / name)

    def stream(self, spark: SparkSession) -> DataFrame:
        """``key``, ``value`` and ``partition``, in turn: every epoch adds the same amount to each
        partition."""
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.directory))
        number = "CAST(split(value, '/')[1] AS INT)"
        return lines.repartition(2, "value").selectExpr(
            "value AS key", "value", f"{number} % {PARTITIONS} AS partition"
        )


def start(frame: DataFrame, target: Target, checkpoint: Path, mode: str = "append") -> StreamingQuery:
    """Start a query over the files that exist now."""
    return (
        frame.writeStream.format("escrowmq")
        .outputMode(mode)
        .options(topic=target.topic, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def run(frame: DataFrame, target: Target, checkpoint: Path, mode: str = "append") -> None:
    """Start a query, and wait until it ends."""
    assert start(frame, target, checkpoint, mode).awaitTermination(120), "the query does not end"


def forget_last_commit(checkpoint: Path, log: str = "commits") -> int:
    """Remove Spark's last commit, as if the driver had died after our commit and before Spark's. ``log``
    names another of Spark's logs."""
    last = max(int(path.name) for path in (checkpoint / log).iterdir() if path.name.isdigit())
    (checkpoint / log / str(last)).unlink()
    (checkpoint / log / f".{last}.crc").unlink()
    return last


def prepare_as_a_dead_driver(
    target: Target, checkpoint: Path, epoch: int, values: list[str], timeout_ms: int = 60_000
) -> Attempt:
    """Prepare transactions as a driver's tasks do before the driver dies."""
    query_id = IntentStore(str(checkpoint)).query_id()
    link = SinkLink(target.router, app_of(query_id))
    attempt, _ = write_batches(
        [pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])],
        lambda: (link, TopicCatalog(target.router).partitions),
        epoch_id=epoch_id_of(query_id, epoch),
        attempt=attempt_name(0, 0),
        topic=target.topic,
        message_bytes_max=1 << 20,
        timeout_ms=timeout_ms,
    )
    return attempt
