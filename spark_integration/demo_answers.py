"""Spark's part of the demo: ``python -m escrowmq.spark_integration.demo_answers SETTINGS``.

It starts Spark on Ray, prints "ready", waits for a line on standard input, answers the demo's questions from
the committed messages of both topics, writes the answers as JSON, and prints "done".
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
    """The answer to every question, by title."""
    for table, (columns, source) in TABLES.items():
        # Decimals and dates are read as text and cast by the typed view, as for the database's answers.
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
    """Run as a process; see the module's docstring."""
    settings = json.loads(sys.argv[1])
    spark = spark_session(
        "escrowmq-demo",
        mode="raydp",
        address=settings["address"],
        namespace=settings["namespace"],
        quick_start=True,
    )
    print("ready", flush=True)
    if sys.stdin.readline():  # end of input: the demo has ended
        Path(settings["output"]).write_text(json.dumps(answers(spark)))
        print("done", flush=True)
    stop_session(spark)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
