"""EscrowMQ's load program: ``python -m benchmarks.peers.ours_load FOLDER``. It starts Ray and a group."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import escrowmq
from benchmarks import workload
from benchmarks.group import GroupUnderTest, Traffic
from benchmarks.peers.load_loop import serve
from benchmarks.peers.ours import Ours
from benchmarks.peers.rows import (
    LONE_PLAIN,
    LONE_TX,
    PLAIN_1K,
    PLAIN_256,
    READING,
    READING_TABLES,
    TABLE_1K,
    TABLE_256,
    TX_64,
    TX_64_ONE_WAY,
    TX_BULK,
    TX_OF_100,
    TX_TASKS,
    Figure,
)
from escrowmq.actors.producer.config import ProducerConfig

TRANSACTIONS = "transactions"
Row = Callable[[float], dict[str, Any]]


def rows(group: GroupUnderTest) -> dict[str, Row]:
    """What it can run."""
    usual = group.producer()
    one_way = group.producer(ProducerConfig(one_way_commit=True), app="bench-one-way")
    at_once = group.producer(ProducerConfig(linger_ms=0.0))

    def timed(measure: Callable[..., workload.Timed | Traffic], *arguments: object, **named: object) -> Row:
        return lambda seconds: figure(measure(group, *arguments, seconds, **named)).plain()

    return {
        PLAIN_256: timed(workload.plain_messages, usual, PLAIN_256, 256),
        PLAIN_1K: timed(workload.plain_messages, usual, PLAIN_1K, 1024),
        TABLE_256: timed(workload.plain_table, usual, TABLE_256, 256),
        TABLE_1K: timed(workload.plain_table, usual, TABLE_1K, 1024),
        READING: timed(workload.reading, PLAIN_256),
        READING_TABLES: timed(workload.reading, PLAIN_256, tables=True),
        LONE_PLAIN: timed(workload.lone_messages, at_once, PLAIN_256),
        LONE_TX: timed(workload.lone_transactions, usual, TRANSACTIONS),
        TX_64: timed(workload.tasks, usual, TRANSACTIONS, 64),
        TX_64_ONE_WAY: timed(workload.tasks, one_way, TRANSACTIONS, 64),
        TX_OF_100: timed(workload.tasks, usual, TRANSACTIONS, 8, messages_each=100),
        TX_TASKS: timed(workload.tasks, usual, TRANSACTIONS, 1024),
        TX_BULK: timed(workload.bulk_transactions, usual, TRANSACTIONS, 1024),
    }


def figure(measured: workload.Timed | Traffic) -> Figure:
    """What the peers' load programs report, too."""
    traffic = measured if isinstance(measured, Traffic) else measured.traffic
    latency = {} if isinstance(measured, Traffic) else measured.latency
    p50 = latency["p50_ms"] if latency.get("samples") else None
    return Figure(traffic.items, traffic.seconds, p50)


def main() -> None:
    with escrowmq.start_local(groups=1, replicas=3, data_dir=Path(sys.argv[1])) as cluster:
        for topic in (PLAIN_256, TABLE_256, PLAIN_1K, TABLE_1K, TRANSACTIONS):
            cluster.admin.create_topic(topic, partitions=workload.PARTITIONS)
        known = rows(GroupUnderTest(cluster))
        assert set(known) == set(Ours.rows)
        serve(known)


if __name__ == "__main__":
    main()
