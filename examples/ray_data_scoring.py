"""Ray Data scores a topic in micro-batches: reads what is new, applies a model, writes scores exactly once.

The model is a logistic regression in numpy, so nothing is downloaded. A micro-batch reads the committed
messages between two sets of offsets; the scores of a micro-batch become readable together, in another topic.
The offsets are kept in memory here. A service that must continue after a restart stores them with the id of
the write, for instance in a database.

Needs the extra: ``pip install '.[ray-data]'``. Run it: ``python examples/ray_data_scoring.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import escrowmq
from escrowmq import Cluster, Message, ray_data

FEATURES = 4
WEIGHTS, BIAS = np.array([0.5, -1.0, 0.25, 2.0], np.float32), np.float32(-0.5)


def score(batch: dict[str, Any]) -> dict[str, Any]:
    """The probability for each message: its value has the features as 32-bit numbers."""
    features = np.frombuffer(b"".join(batch["value"]), np.float32).reshape(-1, FEATURES)
    scores = 1 / (1 + np.exp(-(features @ WEIGHTS + BIAS)))
    return {"key": batch["key"], "value": np.array([b"%.6f" % each for each in scores], object)}


def send(cluster: Cluster, topic: str, first: int, count: int) -> dict[str, float]:
    """Sends numbered messages; every tenth transaction rolls back. Returns the scores of the others."""
    rng = np.random.default_rng(first)
    sent: dict[str, bytes] = {}
    with cluster.producer(app="clicks") as producer:
        for number in range(first, first + count):
            value = rng.normal(size=FEATURES).astype(np.float32).tobytes()
            with producer.transaction() as tx:
                tx.send(Message(topic, value, key=b"click-%d" % number))
                tx.prepare()
                if number % 10 == 9:
                    tx.rollback()
                else:
                    sent[f"click-{number}"] = value
    scored = score({"key": [*sent], "value": [*sent.values()]})
    return {key: float(value) for key, value in zip(scored["key"], scored["value"], strict=True)}


def run(
    cluster: Cluster, topic: str = "clicks", scores: str = "scores", micro_batches: int = 3
) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """The expected scores, and those that were written to the topic ``scores``."""
    cluster.admin.create_topic(topic, partitions=2)
    cluster.admin.create_topic(scores, partitions=2)
    expected: dict[str, float] = {}
    start = ray_data.offsets(topic, "earliest", cluster=cluster)
    for number in range(micro_batches):
        expected |= send(cluster, topic, number * 50, 50)
        end = ray_data.offsets(topic, cluster=cluster)
        if end == start:
            continue
        clicks = ray_data.read(
            topic, cluster=cluster, start=start, end=end, columns=["key", "value"], parallelism=2
        )
        written = ray_data.write(
            clicks.map_batches(score, batch_format="numpy"), scores, key="key", cluster=cluster
        )
        print(f"micro-batch {number}: {written.messages} scores, {written.write_id}")
        start = end
    found: list[tuple[str, float]] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(scores, partition) for partition in range(2)])
        while table := consumer.poll_arrow(timeout_s=2.0):
            keys, values = table["key"].to_pylist(), table["value"].to_pylist()
            found += [(key.decode(), float(value)) for key, value in zip(keys, values, strict=True)]
    return expected, found


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        expected, found = run(cluster)
        print(f"{len(found)} scores of {len(expected)} committed clicks")
