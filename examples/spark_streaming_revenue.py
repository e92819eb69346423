"""Revenue by minute, as a stream: sales arrive in transactions, totals go to another topic, each once.

Each sale carries the time at which it was made. Spark adds the sales up by minute, and writes a minute's
total when no more sales for it are expected: they may be up to 30 seconds late (the watermark). The totals of
a micro-batch become readable together, and none of them twice, even through failures and restarts.

Needs the extra: ``pip install '.[spark]'``. Run it: ``python examples/spark_streaming_revenue.py``
(``--help`` for more); it takes about a minute and ends with a table and a comparison.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import escrowmq
from escrowmq import Cluster, Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OPENING = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
MINUTES, SALES_PER_MINUTE = 8, 30
Revenue = dict[str, tuple[int, float]]  # minute -> sales, euros


def start_query(spark: SparkSession, sales: str, revenue: str, checkpoint: str) -> StreamingQuery:
    """Starts the query from topic ``sales`` to ``revenue``; ``checkpoint`` is a directory."""
    made = (
        spark.readStream.format("escrowmq")
        .option("subscribe", sales)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("from_json(CAST(value AS STRING), 'made_at TIMESTAMP, euros DOUBLE') AS sale")
        .select("sale.*")
    )
    made.withWatermark("made_at", "30 seconds").createOrReplaceTempView("made")
    totals = spark.sql(
        """
        SELECT date_format(window.start, 'HH:mm') AS minute, count(*) AS sales, round(sum(euros), 2) AS euros
        FROM made GROUP BY window(made_at, '1 minute')
        """
    )
    return (
        totals.selectExpr("minute AS key", "to_json(struct(minute, sales, euros)) AS value")
        .writeStream.format("escrowmq")
        .option("topic", revenue)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(processingTime="1 second")
        .start()
    )


def sell(cluster: Cluster, topic: str, seed: int = 7) -> Revenue:
    """Sells for eight virtual minutes; every seventh sale is rolled back. Returns the expected totals."""
    chance = random.Random(seed)
    expected: dict[str, list[float]] = defaultdict(list)
    with cluster.producer(app="till") as producer:
        for number in range(MINUTES * SALES_PER_MINUTE):
            now = OPENING + timedelta(minutes=number / SALES_PER_MINUTE)
            made_at = max(OPENING, now - timedelta(seconds=chance.randrange(25)))  # some arrive late
            euros = chance.randrange(100, 10000) / 100
            sale = json.dumps({"made_at": made_at.isoformat(), "euros": euros})
            with producer.transaction() as tx:
                tx.send(Message(topic, sale.encode()))
                tx.prepare()
                if number % 7 == 0:
                    tx.rollback()
                else:
                    expected[f"{made_at:%H:%M}"].append(euros)
            time.sleep(0.02)
        # This closes the last minute: the watermark moves when a later sale is seen.
        closing = OPENING + timedelta(minutes=MINUTES + 2)
        producer.send(Message(topic, json.dumps({"made_at": closing.isoformat(), "euros": 0.0}).encode()))
    return {minute: (len(found), round(sum(found), 2)) for minute, found in expected.items()}


def read_revenue(cluster: Cluster, topic: str, minutes: int, patience_s: float) -> Revenue:
    """The totals as any consumer sees them. Raises if a minute comes twice."""
    found: Revenue = {}
    deadline = time.monotonic() + patience_s
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < minutes and time.monotonic() < deadline:
            for record in consumer.poll(timeout_s=1.0):
                total = json.loads(record.value)
                if total["minute"] in found:
                    raise RuntimeError(f"the total of {total['minute']} came twice")
                found[total["minute"]] = total["sales"], total["euros"]
                print(f"  {total['minute']}  {total['sales']:3} sales  {total['euros']:9.2f} EUR", flush=True)
    return found


def run(cluster: Cluster, spark: SparkSession, sales: str = "sales", revenue: str = "revenue") -> bool:
    """Whether the stream computed the expected totals."""
    cluster.admin.create_topic(sales, partitions=4)
    cluster.admin.create_topic(revenue, partitions=1)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = start_query(spark, sales, revenue, checkpoint)
        try:
            print("selling ...", flush=True)
            expected = sell(cluster, sales)
            found = read_revenue(cluster, revenue, len(expected), patience_s=90)
            query.processAllAvailable()  # so that it stops between two batches
        finally:
            query.stop()
    print("the same as the sum over the sales themselves" if found == expected else f"expected: {expected}")
    return found == expected


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description="Revenue by minute, as a stream over two topics.")
    parser.add_argument("--mode", default="auto", choices=["auto", "raydp", "standalone", "local"])
    mode = parser.parse_args().mode
    escrowmq.spark.provide_java()  # before Ray starts: its workers inherit the environment at that moment
    with escrowmq.start_local() as cluster:
        spark = escrowmq.spark_session("revenue", mode=mode, quick_start=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            return 0 if run(cluster, spark) else 1
        finally:
            escrowmq.stop_session(spark)


if __name__ == "__main__":
    raise SystemExit(main())
