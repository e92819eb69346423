"""Spark's side of the demo: ``python -m escrowmq.spark_integration.demo_answers SETTINGS``.

Starts Spark on Ray, says "ready", waits for a line on standard input, answers the demo's questions over the
committed messages of both topics, writes the answers as JSON and says "done".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.cluster.demo.options import LINEITEMS, ORDERS
from escrowmq.cluster.demo.queries import QUESTIONS, TABLES, QueryAnswer, cell, typed_view
from escrowmq.spark_integration.session.spark_session import spark_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPICS = {"orders": ORDERS, "lineitem": LINEITEMS}


def answers(spark: SparkSession) -> dict[str, QueryAnswer]:
    """Every question's answer by title."""
    for table, (columns, source) in TABLES.items():
        # Decimals and dates come as text and are cast by the typed view, as in the database's own answer.
        fields = ", ".join(
            f"{name} {'BIGINT' if kind == 'BIGINT' else 'STRING'}" for name, kind in columns.items()
        )
        messages = spark.read.format("escrowmq").option("subscribe", _TOPICS[table]).load()
        rows = messages.selectExpr(
            f"from_json(CAST(value AS STRING), '{fields}', map('mode', 'FAILFAST')) AS message"
        )
        rows.select("message.*").createOrReplaceTempView(source)
        spark.sql(typed_view(table))
    found: dict[str, QueryAnswer] = {}
    for title, (_, query) in QUESTIONS.items():
        frame = spark.sql(query)
        found[title] = frame.columns, [[cell(value) for value in row] for row in frame.collect()]
    return found


def main() -> int:
    """Run as a process; see the module."""
    settings = json.loads(sys.argv[1])
    spark = spark_session(
        "escrowmq-demo",
        mode="raydp",
        address=settings["address"],
        namespace=settings["namespace"],
        quick_start=True,
    )
    print("ready", flush=True)
    if sys.stdin.readline():  # an end of input means that the demo is gone
        Path(settings["output"]).write_text(json.dumps(answers(spark)))
        print("done", flush=True)
    stop_session(spark)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
