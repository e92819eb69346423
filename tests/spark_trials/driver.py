"""The driver process of kill trials: ``python -m tests.spark_trials.driver PLAN.pickle DIRECTORY``.

Runs the trials one after the other, each until its query has had all files. A trial that is over is marked,
so a driver that was killed is simply started again and goes on where the dead one was.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.spark_integration import spark_session, stop_session
from tests.spark_trials.plan import Trial
from tests.spark_trials.striking import Trap, TrialSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Restarts of one query inside a living driver: more than there are strikes in a trial.
RESTARTS_MAX = 4
QUERY_S = 240.0
KEYS = 7


@dataclass(frozen=True, slots=True)
class Work:
    """Where a trial lives."""

    trial: Trial
    namespace: str
    topic: str
    directory: Path

    @property
    def files(self) -> Path:
        return self.directory / "in"

    @property
    def source(self) -> str:
        """The topic that is read, where one is."""
        return f"{self.topic}-source"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def markers(self) -> Path:
        return self.directory / "markers"

    @property
    def done(self) -> Path:
        return self.directory / "done"


def frame_of(spark: SparkSession, work: Work) -> DataFrame:
    """Lines of files, one file an epoch; or totals by key of what stands in a topic, so far."""
    if not work.trial.totals:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(work.files))
        return lines.repartition(2).selectExpr("value AS key", "value")
    messages = spark.readStream.format("escrowmq").options(
        subscribe=work.source, startingOffsets="earliest", maxOffsetsPerTrigger=work.trial.rows[0]
    )
    keys = messages.load().selectExpr(f"CAST(split(CAST(value AS STRING), '/')[1] AS INT) % {KEYS} AS k")
    totals = keys.groupBy("k").agg({"*": "count"})
    return totals.selectExpr("CAST(k AS STRING) AS key", "concat(k, '=', `count(1)`) AS value")


def run(spark: SparkSession, address: str, work: Work) -> None:
    """One trial's query, to the end of its files."""
    trap = Trap(work.trial.strikes, str(work.markers), os.getpgid(0))
    settings = {"default_address": address, "default_namespace": work.namespace, "trap": trap}
    spark.dataSource.register(
        type("TrialSource", (TrialSource,), {**settings, "__module__": "escrowmq_session"})
    )
    for attempt in range(RESTARTS_MAX + 1):
        query = (
            frame_of(spark, work)
            .writeStream.format("escrowmq")
            .outputMode("complete" if work.trial.totals else "append")
            .options(topic=work.topic, checkpointLocation=str(work.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            ended = query.awaitTermination(QUERY_S)
        except Exception as error:
            print(f"trial {work.trial.number}: {str(error)[:300]!r}", flush=True)
            if attempt == RESTARTS_MAX:
                raise
            time.sleep(0.2)
            continue
        assert ended, f"trial {work.trial.number}: the query does not end"
        work.done.touch()
        return


def main() -> None:
    """Run what is not done yet."""
    address, works = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - written by the same run
    spark = spark_session(
        "trials",
        mode="local",
        address=address,
        quick_start=True,
        configs={"spark.master": "local[2,4]", "spark.sql.shuffle.partitions": "2"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    for work in works:
        if not work.done.exists():
            run(spark, address, work)
    stop_session(spark)


if __name__ == "__main__":
    main()
