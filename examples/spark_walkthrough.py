# %% [markdown]
# # A shop's day: from transactions to a picture
#
# A walk through EscrowMQ with Spark, in cells. Open it as a notebook (VS Code, PyCharm, Jupyter with
# jupytext), or run it as a script, which takes about a minute: `python examples/spark_walkthrough.py`.
# It needs `pip install '.[spark]' matplotlib`. Environment variables: `SPARK_MODE` (default: auto), and
# `PICTURE`, the file to draw into (default: walkthrough.svg).

# %% A cluster and a topic. Find Java before Ray starts: Ray's workers inherit the environment at that moment.
from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
from typing import Any

import matplotlib

import escrowmq
from escrowmq import Message

if "ipykernel" not in sys.modules:  # a script writes a file and opens no window
    matplotlib.use("Agg")
import matplotlib.pyplot as plt

escrowmq.spark.provide_java()
cluster = escrowmq.start_local()
cluster.admin.create_topic("baskets", partitions=4)

# %% A day of baskets. A basket is a transaction with one message for each item; one in eight is abandoned at
# the till and rolled back. The random numbers are seeded, so each run gives the same day.
PRICES = {"bread": 3.2, "coffee": 4.1, "cake": 5.5}
BUSY_AT = {"bread": 8.0, "coffee": 10.5, "cake": 15.5}
chance = random.Random(2026)


def draw_basket() -> list[dict[str, Any]]:
    """One customer's items: more bread in the morning, more cake in the afternoon."""
    hour = chance.choice([chance.triangular(7, 19, 10), chance.triangular(7, 19, 15)])
    nearness = {thing: math.exp(-(((hour - at) / 2.5) ** 2)) + 0.05 for thing, at in BUSY_AT.items()}
    things = chance.choices(list(nearness), weights=list(nearness.values()), k=chance.randrange(1, 5))
    return [
        {"hour": hour, "thing": thing, "euros": round(PRICES[thing] * chance.uniform(0.8, 1.4), 2)}
        for thing in things
    ]


abandoned = 0
with cluster.producer(app="till") as producer:
    for number in range(1200):
        with producer.transaction() as tx:
            for item in draw_basket():
                tx.send(Message("baskets", json.dumps(item).encode(), key=b"%d" % number))
            tx.prepare()
            if number % 8 == 0:
                tx.rollback()
                abandoned += 1
print(f"{1200 - abandoned} baskets sold, {abandoned} abandoned")

# %% Spark, and the topic as a table. `tx_id` is the message's transaction, which is the basket.
mode = os.environ.get("SPARK_MODE", "auto")
spark = escrowmq.spark_session("walkthrough", mode=mode, quick_start=True)
spark.sparkContext.setLogLevel("ERROR")
messages = spark.read.format("escrowmq").option("subscribe", "baskets").load()
messages.selectExpr(
    "tx_id", "from_json(CAST(value AS STRING), 'hour DOUBLE, thing STRING, euros DOUBLE') AS item"
).select("tx_id", "item.*").createOrReplaceTempView("items")

# %% Abandoned baskets are missing: messages of rolled-back transactions are never read.
baskets = spark.sql("SELECT tx_id, min(hour) AS hour, sum(euros) AS euros FROM items GROUP BY tx_id")
baskets.createOrReplaceTempView("baskets")
assert baskets.count() == 1200 - abandoned
worth: Any = spark.sql(
    """
    SELECT floor(hour) + 0.5 AS hour, percentile(euros, 0.25) AS low, median(euros) AS middle,
           percentile(euros, 0.75) AS high
    FROM baskets GROUP BY 1 ORDER BY 1
    """
).toPandas()
print(worth.round(2).to_string(index=False))

# %% Revenue by half hour and item.
revenue: Any = spark.sql(
    "SELECT floor(hour * 2) / 2 AS half_hour, thing, sum(euros) AS euros FROM items GROUP BY 1, 2"
).toPandas()
by_thing = revenue.pivot(index="half_hour", columns="thing", values="euros").fillna(0.0)[list(PRICES)]
print(by_thing.sum().round(2).to_string())

# %% The same as a stream: it starts at the beginning, reads what exists, and ends. Spark keeps the sums as
# its state; started again with the same checkpoint, the stream would continue where it ended.
stream = (
    spark.readStream.format("escrowmq")
    .option("subscribe", "baskets")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "1000")
    .load()
)
sums = stream.selectExpr("from_json(CAST(value AS STRING), 'thing STRING, euros DOUBLE') AS item").groupBy(
    "item.thing"
)
with tempfile.TemporaryDirectory() as checkpoint:
    query = (
        sums.agg({"item.euros": "sum"})
        .toDF("thing", "euros")
        .writeStream.format("memory")
        .queryName("streamed")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
streamed = {row.thing: round(row.euros, 2) for row in spark.table("streamed").collect()}
assert streamed == by_thing.sum().round(2).to_dict()
print(f"the stream arrives at the same, in {query.lastProgress['batchId'] + 1} batches")  # type: ignore[index]

# %% The picture.
COLOURS = {"bread": "#c9a227", "coffee": "#6b4423", "cake": "#c2476b"}
plt.rcParams |= {"svg.hashsalt": "escrowmq", "axes.titlelocation": "left", "axes.axisbelow": True}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=[3, 2], layout="constrained")
under = 0.0 * by_thing["bread"]
for thing, euros in by_thing.items():
    left.bar(by_thing.index + 0.25, euros, 0.44, bottom=under, label=thing, color=COLOURS[str(thing)])
    under = under + euros
left.set(title="Revenue by half hour", xlabel="hour of the day", ylabel="EUR")
left.legend(frameon=False)
right.fill_between(worth.hour, worth.low, worth.high, color="#4a6fa5", alpha=0.25, linewidth=0)
right.plot(worth.hour, worth.middle, color="#4a6fa5", marker="o")
right.set(title="A basket: median and quartiles", xlabel="hour of the day", ylabel="EUR", ylim=(0, None))
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
picture = os.environ.get("PICTURE", "walkthrough.svg")
nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # an SVG without any is the same every time
figure.savefig(picture, metadata=nothing if picture.endswith(".svg") else None, dpi=110)
print(f"see {picture}")

# %% The end.
escrowmq.stop_session(spark)
cluster.close()
