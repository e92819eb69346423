"""Compares transactions over two broker groups with the same transactions in one group, in one cluster.

Each transaction has two messages, either both in partitions of one group or one in each group. The ratio
shows the cost of the second group: a PREPARE, a decision, and memory in the home group until the branch has
followed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import escrowmq
from benchmarks.group import GroupUnderTest, side_by_side
from benchmarks.measure import Latencies
from benchmarks.workload import BULK_THREADS, TX_BYTES, check_committed
from escrowmq import Message, TransactionState
from escrowmq.actors.producer.producer import Producer

TOPIC, GROUPS, PARTITIONS = "across", 2, 4
IN_FLIGHT = 1_024


@dataclass(frozen=True)
class AcrossFigure:
    """Transactions of two messages each: the rate per second in bulk, and the median time of a lone one."""

    one_group_per_s: float
    two_groups_per_s: float
    one_group_p50_ms: float
    two_groups_p50_ms: float

    @property
    def ratio(self) -> float:
        """The ratio of the rates in bulk; 1.0: the second group costs nothing."""
        return self.two_groups_per_s / self.one_group_per_s


def measure_across(folder: Path, seconds: float, repeat: int) -> AcrossFigure:
    """Measure a cluster of two groups in ``folder``. Both kinds are measured in turns; reports medians."""
    rates: dict[str, list[float]] = {"one": [], "two": []}
    times: dict[str, list[float]] = {"one": [], "two": []}
    with escrowmq.start_local(groups=GROUPS, replicas=3, data_dir=folder) as cluster:
        cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
        found = cluster.admin.describe_topic(TOPIC).partitions
        places = [[p.partition for p in found if p.group == gid] for gid in range(GROUPS)]
        kinds = {"one": tuple(places[0][:2]), "two": (places[0][0], places[1][0])}
        with GroupUnderTest(cluster).producer(app="bench-across") as producer:
            for partitions in kinds.values():
                _lone(producer, partitions, 0.5)  # warm-up
            for _ in range(repeat):
                for kind, partitions in kinds.items():
                    rates[kind].append(_bulk(producer, partitions, seconds))
                    times[kind].append(_lone(producer, partitions, seconds / 2))
    return AcrossFigure(
        median(rates["one"]), median(rates["two"]), median(times["one"]), median(times["two"])
    )


def _messages(partitions: tuple[int, ...]) -> list[Message]:
    return [Message(TOPIC, bytes(TX_BYTES), partition=partition) for partition in partitions]


def _lone(producer: Producer, partitions: tuple[int, ...], seconds: float) -> float:
    latency = Latencies()
    end = time.perf_counter() + seconds
    while (sent := time.perf_counter()) < end:
        producer.send_message_in_transaction(_messages(partitions), lambda: TransactionState.COMMITTED)
        latency.add(time.perf_counter() - sent)
    return latency.summary()["p50_ms"]


def _bulk(producer: Producer, partitions: tuple[int, ...], seconds: float) -> float:
    begin = time.perf_counter()

    def one(_: int) -> int:
        count = 0
        while time.perf_counter() - begin < seconds:
            batch = [(_messages(partitions), None) for _ in range(IN_FLIGHT // BULK_THREADS)]
            results = producer.send_transactions(batch)
            check_committed(results)
            count += len(results)
        return count

    count = side_by_side(BULK_THREADS, one)
    return count / (time.perf_counter() - begin)
