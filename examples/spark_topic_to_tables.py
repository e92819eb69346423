"""Topics to Parquet tables, continuously and exactly once: every committed message is one row, never two.

One stream for each topic decodes its messages and appends them to a table of files, partitioned by day.
Spark's file sink records in the table which files belong to it, batch by batch, and the checkpoint records
the offsets of each batch. An interrupted batch is therefore repeated with the same messages, and files that
its first attempt left behind belong to no table. (``foreachBatch`` promises only "at least once".) For tables
that also change, Delta's sink has the same guarantee; its newest release, 4.4.1, supports Spark up to 4.2.0.

The example stops the streams half-way, while messages keep arriving, and starts them again.

Needs the extra: ``pip install '.[spark]'``. Run it: ``python examples/spark_topic_to_tables.py``
(``--help`` for more); it takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import escrowmq
from escrowmq import Cluster, Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Topic -> the columns of its messages, as a schema of Spark.
TABLES = {
    "orders": "number INT, customer STRING, euros DOUBLE",
    "payments": "number INT, euros DOUBLE, method STRING",
}
ORDERS = 400
KEPT = {number for number in range(ORDERS) if number % 10}
PATIENCE_S = 90.0


def start_table(spark: SparkSession, topic: str, columns: str, directory: Path) -> StreamingQuery:
    """Append committed messages of ``topic`` to the table ``directory/topic``, one batch a second."""
    messages = (
        spark.readStream.format("escrowmq")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = messages.selectExpr(
        f"from_json(CAST(value AS STRING), '{columns}', map('mode', 'FAILFAST')) AS message",
        "to_date(timestamp) AS day",
        "partition",
        "offset",
    )
    return (
        rows.select("message.*", "day", "partition", "offset")
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", str(directory / topic))
        .option("checkpointLocation", str(directory / "checkpoints" / topic))
        .trigger(processingTime="1 second")
        .start()
    )


def send_orders(cluster: Cluster, prefix: str, enough: threading.Event) -> None:
    """Sends orders and their payments, both in one transaction; every tenth is rolled back."""
    with cluster.producer(app="shop") as producer:
        for number in range(ORDERS):
            order = {"number": number, "customer": f"c{number % 7}", "euros": number / 4}
            payment = {"number": number, "euros": number / 4, "method": "card" if number % 3 else "cash"}
            with producer.transaction() as tx:
                tx.send(Message(f"{prefix}orders", json.dumps(order).encode()))
                tx.send(Message(f"{prefix}payments", json.dumps(payment).encode()))
                tx.prepare()
                if number not in KEPT:
                    tx.rollback()
            if enough.wait(0.03):
                return


def table(spark: SparkSession, directory: Path, topic: str, columns: str) -> DataFrame:
    """A table in its present state; a reader sees whole batches only."""
    schema = f"{columns}, partition INT, offset BIGINT, day DATE"
    return spark.read.schema(schema).parquet(str(directory / topic))


def follow(spark: SparkSession, directory: Path, prefix: str, rows: int) -> None:
    """Run both streams until each table has ``rows`` rows, and stop them."""
    queries = [start_table(spark, prefix + topic, columns, directory) for topic, columns in TABLES.items()]
    try:
        deadline = time.monotonic() + PATIENCE_S
        counts = dict.fromkeys(TABLES, 0)
        while min(counts.values()) < rows and time.monotonic() < deadline:
            time.sleep(1)
            before = dict(counts)
            for topic, columns in TABLES.items():
                if (directory / (prefix + topic) / "_spark_metadata" / "0").exists():
                    counts[topic] = table(spark, directory, prefix + topic, columns).count()
            if counts != before:
                print(
                    "  " + ", ".join(f"{topic}: {count} rows" for topic, count in counts.items()), flush=True
                )
    finally:
        for query in queries:
            query.stop()


def run(cluster: Cluster, spark: SparkSession, directory: Path, prefix: str = "") -> bool:
    """Whether the tables hold every committed order once. ``prefix`` begins the topics' names."""
    for topic in TABLES:
        cluster.admin.create_topic(prefix + topic, partitions=2)
    enough = threading.Event()
    shop = threading.Thread(target=send_orders, args=(cluster, prefix, enough))
    shop.start()
    try:
        print("streams started")
        follow(spark, directory, prefix, rows=ORDERS // 10)
        print("streams stopped; orders go on coming" if shop.is_alive() else "streams stopped")
        time.sleep(2)
        print("streams started again")
        follow(spark, directory, prefix, rows=len(KEPT))
    finally:
        enough.set()
        shop.join()
    return check(spark, directory, prefix)


def check(spark: SparkSession, directory: Path, prefix: str) -> bool:
    """Compare the tables with what was sent, and with each other: a transaction is in both or in none."""
    for topic, columns in TABLES.items():
        table(spark, directory, prefix + topic, columns).createOrReplaceTempView(topic)
    found = spark.sql(
        """
        SELECT count(*) AS pairs, count(DISTINCT number) AS numbers, sum(o.euros) AS ordered,
               sum(p.euros) AS paid, count_if(o.number IS NULL OR p.number IS NULL) AS halves
        FROM orders o FULL JOIN payments p USING (number)
        """
    ).first()
    print(f"orders with their payments: {found.asDict() if found else None}")
    return found is not None and tuple(found) == (len(KEPT), len(KEPT), sum(KEPT) / 4, sum(KEPT) / 4, 0)


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description="Topics to Parquet tables, exactly once.")
    parser.add_argument("--mode", default="auto", choices=["auto", "raydp", "standalone", "local"])
    parser.add_argument("--directory", type=Path, help="where to keep the tables (default: not at all)")
    options = parser.parse_args()
    escrowmq.spark.provide_java()  # before Ray starts: its workers inherit the environment at that moment
    with tempfile.TemporaryDirectory() as temporary, escrowmq.start_local() as cluster:
        spark = escrowmq.spark_session("tables", mode=options.mode, cores=2, quick_start=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            good = run(cluster, spark, (options.directory or Path(temporary)).absolute())
        finally:
            escrowmq.stop_session(spark)
    print("every committed order is in both tables, once" if good else "the tables are wrong")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
