"""Queries of the sink's tests: a stream of text files, each of which is one epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
        hidden.rename(self.directory / name)

    def stream(self, spark: SparkSession) -> DataFrame:
        """``key``, ``value``, and ``partition`` in turn: every epoch adds as much to each partition."""
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.directory))
        number = "CAST(split(value, '/')[1] AS INT)"
        return lines.repartition(2, "value").selectExpr(
            "value AS key", "value", f"{number} % {PARTITIONS} AS partition"
        )


def start(frame: DataFrame, target: Target, checkpoint: Path, mode: str = "append") -> StreamingQuery:
    """The query over what is there now."""
    return (
        frame.writeStream.format("escrowmq")
        .outputMode(mode)
        .options(topic=target.topic, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def run(frame: DataFrame, target: Target, checkpoint: Path, mode: str = "append") -> None:
    """The same, to its end."""
    assert start(frame, target, checkpoint, mode).awaitTermination(120), "the query does not end"


def forget_last_commit(checkpoint: Path) -> int:
    """As if the driver had died after our commit and before Spark's."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    return last
