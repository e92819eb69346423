"""EscrowMQ: one broker group of three replicas on Ray, as ``make bench`` runs it, synced on a majority."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import escrowmq
from benchmarks import workload
from benchmarks.group import GroupUnderTest, Traffic
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
from benchmarks.peers.system import System
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.producer import Producer

TRANSACTIONS = "transactions"


class Ours(System):
    """With the defaults. Lone plain messages do not linger; one-way commit is a row of its own."""

    name = "escrowmq"
    rows = (
        *(PLAIN_256, TABLE_256, PLAIN_1K, TABLE_1K, READING, READING_TABLES),
        *(LONE_PLAIN, LONE_TX, TX_64, TX_64_ONE_WAY, TX_OF_100, TX_TASKS, TX_BULK),
    )

    def __init__(self) -> None:
        self._cluster: escrowmq.Cluster | None = None
        self._producers: list[Producer] = []
        self._run: dict[str, Callable[[float], Figure]] = {}

    def start(self, folder: Path) -> None:
        """Start Ray, the group and the producers."""
        self._cluster = cluster = escrowmq.start_local(groups=1, replicas=3, data_dir=folder)
        for topic in (PLAIN_256, TABLE_256, PLAIN_1K, TABLE_1K, TRANSACTIONS):
            cluster.admin.create_topic(topic, partitions=workload.PARTITIONS)
        group = GroupUnderTest(cluster)
        usual, one_way = (
            group.producer(),
            group.producer(ProducerConfig(one_way_commit=True), app="bench-one-way"),
        )
        at_once = group.producer(ProducerConfig(linger_ms=0.0))
        self._producers = [usual, one_way, at_once]

        def timed(
            measure: Callable[..., workload.Timed], *arguments: object, **named: object
        ) -> Callable[[float], Figure]:
            return lambda seconds: figure(measure(group, *arguments, seconds, **named))

        self._run = {
            PLAIN_256: timed(workload.plain_messages, usual, PLAIN_256, 256),
            PLAIN_1K: timed(workload.plain_messages, usual, PLAIN_1K, 1024),
            TABLE_256: timed(workload.plain_table, usual, TABLE_256, 256),
            TABLE_1K: timed(workload.plain_table, usual, TABLE_1K, 1024),
            READING: partial(_reading, group),
            READING_TABLES: partial(_reading, group, tables=True),
            LONE_PLAIN: timed(workload.lone_messages, at_once, PLAIN_256),
            LONE_TX: timed(workload.lone_transactions, usual, TRANSACTIONS),
            TX_64: timed(workload.tasks, usual, TRANSACTIONS, 64),
            TX_64_ONE_WAY: timed(workload.tasks, one_way, TRANSACTIONS, 64),
            TX_OF_100: timed(workload.tasks, usual, TRANSACTIONS, 8, messages_each=100),
            TX_TASKS: timed(workload.tasks, usual, TRANSACTIONS, 1024),
            TX_BULK: timed(workload.bulk_transactions, usual, TRANSACTIONS, 1024),
        }

    def measure(self, row: str, seconds: float) -> Figure:
        try:
            return self._run[row](seconds)
        except Exception as error:  # as a load program answers: one row that fails must not end the others
            return Figure(error=f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        for producer in self._producers:
            producer.close()
        if self._cluster is not None:
            self._cluster.close()
        self._producers, self._cluster = [], None


def _reading(group: GroupUnderTest, seconds: float, *, tables: bool = False) -> Figure:
    return figure(workload.reading(group, PLAIN_256, seconds, tables=tables))


def figure(measured: workload.Timed | Traffic) -> Figure:
    """What the peers' load programs report, too."""
    traffic = measured if isinstance(measured, Traffic) else measured.traffic
    latency = {} if isinstance(measured, Traffic) else measured.latency
    p50 = latency["p50_ms"] if latency.get("samples") else None
    return Figure(traffic.items, traffic.seconds, p50)
