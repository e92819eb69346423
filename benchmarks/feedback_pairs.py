"""The cost of feedback for many apps and topics: memory per pair of app and topic, and CPU time when idle.

``python -m benchmarks.feedback_pairs``: ten thousand pairs in as many feedback shards as production would
have, all in this process, with broker groups in memory and without Ray. ``--ray 300``: 300 topics of one app
on a real cluster of one group; it measures how long after their time-out all transactions are settled, and
the memory and CPU time of the processes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

import escrowmq
from benchmarks.load.series import own_megabytes
from benchmarks.measure import CpuMeter
from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.states import TransactionState, TxStatusQuerier, shard_name
from tests.support.clock import until
from tests.support.feedback_producers import AppPort, Producer, always
from tests.support.memory_groups import BrokersDouble

APPS = 10
#: Longer than any measurement, so that no pair is given up.
STAY_S = 86_400.0
TIMEOUT_S = 6.0


class Committed(TxStatusQuerier):
    """An application whose local transactions have all been committed."""

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        return TransactionState.COMMITTED


async def hosted(pairs: int, seconds: float) -> dict[str, Any]:
    """Memory of ``pairs`` pairs, each of which was checked once, and their CPU time when nothing is due."""
    config = FeedbackConfig(idle_exit_s=STAY_S)
    brokers = BrokersDouble(1)
    (group,) = brokers.groups
    topics = [f"topic-{n}" for n in range(pairs // APPS)]
    for topic in topics:
        group.topic(topic)
        for n in range(APPS):
            group.prepare(f"{topic}-{n}", app=f"app-{n}", topic=topic, timeout_ms=1)
    gc.collect()
    before = own_megabytes(os.getpid()) or 0.0
    shards = [
        FeedbackShard(n, config.shards, 1, 3, brokers, config, random.Random(n)) for n in range(config.shards)
    ]
    begin = time.monotonic()
    for shard in shards:
        shard.start()
    producers = [
        Producer(AppPort(shard, f"app-{n}"), f"app-{n}", always("COMMITTED"))
        for shard in shards
        for n in range(APPS)
    ]
    await until(lambda: not any(len(group.state.transactions.app(f"app-{n}").open) for n in range(APPS)), 300)
    settled_s = time.monotonic() - begin
    await asyncio.sleep(2.0)
    gc.collect()
    here = sum(shard.status("none")["pairs_here"] for shard in shards)
    memory = (own_megabytes(os.getpid()) or 0.0) - before
    busy, began = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cores = (time.process_time() - busy) / (time.monotonic() - began)
    for producer in producers:
        producer.die()
    for shard in shards:
        await shard.close()
    return {
        "pairs": here,
        "shards": len(shards),
        "settled_after_s": round(settled_s, 1),
        "kb_per_pair": round(1000 * memory / here, 1),
        "mb_of_pairs": round(memory),
        "idle_cores": round(cores, 4),
    }


def on_ray(folder: Path, topics: int, seconds: float) -> dict[str, Any]:
    """Measure open transactions of one app in ``topics`` topics, left by a producer that answers checks."""
    with escrowmq.start_local(groups=1, replicas=3, data_dir=folder, namespace="pairs") as cluster:
        names = [f"topic-{n}" for n in range(topics)]
        for name in names:
            cluster.admin.create_topic(name, partitions=1)
        with cluster.producer(app="shop", tx_status_querier=Committed()) as producer:
            begin = time.monotonic()
            last = _leave_open(producer, names)
            figures = _await_settled(cluster, begin, last)
            handles = [
                ray.get_actor(shard_name(n), namespace=cluster.info.namespace)
                for n in range(cluster.config.feedback.shards)
            ]
            statuses: list[dict[str, Any]] = ray.get([handle.status.remote("none") for handle in handles])
            pids = {f"process {n}": status["pid"] for n, status in enumerate(statuses)}
            time.sleep(10.0)
            meter = CpuMeter(pids)
            time.sleep(seconds)
            busy = meter.stop(1).busy()
            figures |= {
                "topics": topics,
                "pairs": sum(status["pairs_here"] for status in statuses),
                "mb": {name: round(own_megabytes(pid) or 0.0) for name, pid in pids.items()},
                "idle_cores": {name: round(busy[name], 4) for name in pids},
                "load": [round(n, 1) for n in os.getloadavg()],
            }
    return figures


def _leave_open(producer: escrowmq.Producer, names: list[str]) -> float:
    for name in names:
        with producer.transaction(transaction_timeout_s=TIMEOUT_S) as tx:
            tx.send(escrowmq.Message(name, b"left open"))
            tx.prepare()
            tx.unknown()
    return time.monotonic()


def _await_settled(cluster: Any, begin: float, last: float) -> dict[str, Any]:
    opened, first_at = -1, 0.0
    most = len(cluster.admin.list_transactions(app="shop"))
    while opened and time.monotonic() - last < 120:
        time.sleep(0.2)
        opened = len(cluster.admin.list_transactions(app="shop"))
        if opened < most and not first_at:
            first_at = time.monotonic()
    return {
        "undecided": opened,
        "left_open_within_s": round(last - begin, 1),
        "first_settled_s_after_the_first_was_left": round(first_at - begin, 1),
        "settled_s_after_the_last_time_out": round(time.monotonic() - last - TIMEOUT_S, 1),
    }


def main() -> None:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--ray", type=int, default=0, help="instead: this many topics on a real cluster")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the idle phase")
    arguments = parser.parse_args()
    if arguments.ray:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(on_ray(Path(folder), arguments.ray, arguments.seconds)))
        return
    print(json.dumps(asyncio.run(hosted(arguments.pairs, arguments.seconds))))


if __name__ == "__main__":
    main()
