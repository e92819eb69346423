"""The measurements: batch reads, streaming reads, writes, and latency under a light load ("trickle")."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from benchmarks.measure import Latencies
from benchmarks.spark.limits import memory_rows, synced_copies
from benchmarks.spark.rounds import Contest
from escrowmq import Cluster, Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
KEYS = 1000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that a measurement needs. ``pids``: process ids of the brokers."""

    cluster: Cluster
    spark: SparkSession
    folder: Path
    pids: Mapping[str, int]
    rounds: int
    say: Say

    def source(self, topic: str, columns: str = "") -> DataFrame:
        """A topic as a DataFrame. ``columns``: the columns to deliver, separated by commas; all if empty."""
        reader = self.spark.read.format("escrowmq").option("subscribe", topic)
        reader = reader.option("columns", columns) if columns else reader
        return reader.option("startingOffsets", "earliest").load()


def _say(bench: Bench, name: str, text: str) -> None:
    bench.say(f"{name}: {text}")


def fill(bench: Bench, topic: str, rows: int, row_bytes: int) -> Path:
    """Write ``rows`` random messages with a thousand keys to a topic, and the same rows to Parquet files."""
    bench.cluster.admin.create_topic(topic, partitions=PARTITIONS)
    rng = random.Random(20)
    block = rng.randbytes(1 << 20)
    with bench.cluster.producer(app="bench") as producer:
        for number in range(rows):
            at = rng.randrange(len(block) - row_bytes)
            producer.send(Message(topic, block[at : at + row_bytes], key=b"k%03d" % (number % KEYS)))
            if number % 50_000 == 0:
                bench.say(f"{number:,} of {rows:,} rows of {row_bytes} B")
        producer.flush()
    path = bench.folder / f"{topic}.parquet"
    bench.source(topic).write.parquet(str(path))
    return path


def reading(bench: Bench, topic: str, rows: int, row_bytes: int, parquet: Path) -> dict[str, Any]:
    """Two queries over the same rows, read from the topic and from Parquet.

    From Parquet, Spark reads only the columns that a query needs, but from a Python source all columns. So
    one contender is told which columns are needed, and one is not.
    """
    files = bench.spark.read.parquet(str(parquet))

    def total(frame: DataFrame) -> Callable[[], None]:
        def run() -> None:
            answer = frame.agg(F.sum(F.length("value"))).collect()[0][0]
            assert answer == rows * row_bytes, f"{answer} of {rows * row_bytes} bytes were read"

        return run

    def groups(frame: DataFrame) -> Callable[[], None]:
        def run() -> None:
            answer = frame.groupBy("key").agg(F.sum(F.length("value")).alias("bytes")).collect()
            assert sum(row["bytes"] for row in answer) == rows * row_bytes and len(answer) == min(KEYS, rows)

        return run

    found: dict[str, Any] = {}
    for name, query, needed in (
        ("sum(length(value))", total, "value"),
        ("groupBy(key)", groups, "key,value"),
    ):
        contest = Contest(rows, row_bytes)
        contenders = {
            "escrowmq, all columns": query(bench.source(topic)),
            "escrowmq, columns of the query": query(bench.source(topic, needed)),
            "parquet": query(files),
            "Python source from memory": query(memory_rows(bench.spark, rows, row_bytes, PARTITIONS)),
        }
        contest.run(contenders, bench.rounds, bench.pids, partial(_say, bench, name))
        found[name] = contest.figures("parquet")
    return found


def streaming(bench: Bench, topic: str, rows: int, row_bytes: int) -> dict[str, Any]:
    """Read the topic as one streaming batch into a no-op sink; compared with Spark's rate source."""

    def run(frame: DataFrame, name: str) -> None:
        where = bench.folder / f"checkpoint-{name}-{time.monotonic_ns()}"
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(where))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        read = sum(progress.numInputRows for progress in query.recentProgress)
        assert read == rows, f"{name}: {read} rows of {rows}"
        shutil.rmtree(where, ignore_errors=True)

    reader = bench.spark.readStream.format("escrowmq").option("subscribe", topic)
    ours = reader.option("startingOffsets", "earliest").load()
    engine = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    values = engine.option("numPartitions", PARTITIONS).load().select(F.expr("cast(value as string)"))

    def rate() -> None:
        """One micro-batch: the rate source has no end, so the query is stopped after the first one."""
        where = bench.folder / f"checkpoint-rate-{time.monotonic_ns()}"
        done = threading.Event()

        def output(frame: DataFrame, epoch: int) -> None:
            frame.write.format("noop").mode("append").save()
            done.set()

        query = values.writeStream.foreachBatch(output).option("checkpointLocation", str(where)).start()
        assert done.wait(120), "the rate source made no batch"
        query.stop()
        shutil.rmtree(where, ignore_errors=True)

    contest = Contest(rows, row_bytes)
    contenders = {"escrowmq": lambda: run(ours, "escrowmq"), "rate source": rate}
    contest.run(contenders, bench.rounds, bench.pids, partial(_say, bench, "stream"))
    return contest.figures("rate source")


def writing(bench: Bench, topic: str, rows: int, row_bytes: int, parquet: Path) -> dict[str, Any]:
    """Write the same rows to a topic, as one transaction, and to Parquet files."""
    target = f"{topic}-copy"
    bench.cluster.admin.create_topic(target, partitions=PARTITIONS)
    frame = bench.spark.read.parquet(str(parquet)).select("key", "value")

    def files() -> None:
        where = bench.folder / "written.parquet"
        frame.write.mode("overwrite").parquet(str(where))

    def sink() -> None:
        frame.write.format("escrowmq").option("topic", target).mode("append").save()

    contest = Contest(rows, row_bytes)
    contenders = {
        "escrowmq": sink,
        "parquet": files,
        "three synced copies in plain files": lambda: synced_copies(bench.folder, rows * row_bytes),
    }
    contest.run(contenders, bench.rounds, bench.pids, partial(_say, bench, "write"))
    return contest.figures("parquet")


def trickle(bench: Bench, topic: str, count: int, every_s: float) -> dict[str, float]:
    """Seconds from the acknowledgement of a message to its row in ``foreachBatch``, with default triggers."""
    bench.cluster.admin.create_topic(topic, partitions=PARTITIONS)
    arrived: dict[str, float] = {}
    acknowledged: dict[str, float] = {}

    def output(frame: DataFrame, epoch: int) -> None:
        ids = [bytes(row.value).decode() for row in frame.select("value").collect()]
        now = time.perf_counter()
        arrived.update(dict.fromkeys(ids, now))

    source = bench.spark.readStream.format("escrowmq").option("subscribe", topic)
    query = source.option("startingOffsets", "earliest").load().writeStream.foreachBatch(output)
    running = query.option("checkpointLocation", str(bench.folder / f"checkpoint-{topic}")).start()
    try:
        with bench.cluster.producer(app="bench") as producer:
            for number in range(count + 5):  # the first five are a warm-up
                name = f"m{number}"
                producer.send(Message(topic, name.encode())).result(30)
                acknowledged[name] = time.perf_counter()
                time.sleep(every_s if number >= 5 else 1.0)
        deadline = time.monotonic() + 60
        while len(arrived) < len(acknowledged) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        running.stop()
    assert len(arrived) == len(acknowledged), f"{len(arrived)} of {len(acknowledged)} arrived"
    latency = Latencies()
    for number in range(5, count + 5):
        latency.add(arrived[f"m{number}"] - acknowledged[f"m{number}"])
    return latency.summary()
