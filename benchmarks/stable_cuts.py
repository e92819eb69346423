"""How long a stable cut through two broker groups takes: on an idle cluster, and while transactions over both
groups are committed at a given rate.

A cut is three rounds of requests to both groups (``actors/admin/stable_cut.py``), and begins again if a
commit came in between.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.measure import Latencies
from benchmarks.workload import TX_BYTES, check_committed
from escrowmq import Cluster, Message
from escrowmq.actors.producer.producer import Producer

TOPIC, GROUPS, PARTITIONS = "cuts", 2, 4
#: Commits over both groups that are aimed at, in batches of so many seconds, from so many threads.
COMMITS_PER_S, BATCH_S, THREADS = 5_000, 0.05, 4
#: Pause between two cuts: leaders hold commits for a fifth of the time at most.
PAUSE_S = 0.2


@dataclass(frozen=True)
class CutFigure:
    """Times of cuts in ms, as of ``Latencies.summary``, idle and beside so many commits a second."""

    idle: dict[str, float]
    busy: dict[str, float]
    commits_per_s: float


def measure_cuts(folder: Path, seconds: float) -> CutFigure:
    """Measure a cluster of two groups in ``folder``, twice for so long."""
    with escrowmq.start_local(groups=GROUPS, replicas=3, data_dir=folder) as cluster:
        cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
        _cuts(cluster, 0.5)  # warm-up
        idle = _cuts(cluster, seconds)
        with GroupUnderTest(cluster).producer(app="bench-cuts") as producer:
            _commits(producer, time.perf_counter() + 1.0)  # warm-up
            with ThreadPoolExecutor(THREADS) as threads:
                began = time.perf_counter()
                counts = [threads.submit(_commits, producer, began + seconds) for _ in range(THREADS)]
                busy = _cuts(cluster, seconds)
                committed = sum(count.result() for count in counts)
                took_s = time.perf_counter() - began
    return CutFigure(idle.summary(), busy.summary(), committed / took_s)


def _cuts(cluster: Cluster, seconds: float) -> Latencies:
    latency, end = Latencies(), time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        cluster.stable_cut([TOPIC])
        latency.add(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    return latency


def _commits(producer: Producer, end: float) -> int:
    """One thread's share of the rate until ``end``; how many were committed."""
    each, done = round(COMMITS_PER_S * BATCH_S / THREADS), 0
    at = time.perf_counter()
    while at < end:
        # A partition in each group: they take turns.
        batch = [
            ([Message(TOPIC, bytes(TX_BYTES), partition=partition) for partition in (0, 1)], None)
            for _ in range(each)
        ]
        results = producer.send_transactions(batch)
        check_committed(results)
        done += len(results)
        at = max(at + BATCH_S, time.perf_counter())  # who is late does not catch up
        time.sleep(max(0.0, at - time.perf_counter()))
    return done
