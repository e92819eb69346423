"""Do open transactions slow down others? Measures the same work with none open and with a million open.

They are opened with requests of a thousand each, as a producer's encoder would write them, with the app and
topic that the measured transactions use. That is the hardest case: one table and one counter.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import google_crc32c
import psutil

from benchmarks.group import GROUP, GroupUnderTest, Traffic
from benchmarks.workload import PARTITIONS, TX_BYTES, bulk_transactions, repeated
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.limits import NUMBER_MAX

PER_REQUEST = 1_000
REQUESTS_UNDER_WAY = 4
IN_FLIGHT = 1_024
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class OpenFigure:
    """Committed transactions per second with none and with ``opened`` transactions open."""

    opened: int
    per_s_without: float
    per_s_with: float
    opening_s: float
    leader_memory_mb: float
    cpu_us_without: dict[str, float]
    cpu_us_with: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.per_s_with / self.per_s_without


def measure_open(
    group: GroupUnderTest, producer: Producer, topic: str, opened: int, seconds: float, times: int
) -> OpenFigure:
    """Measure; this leaves the transactions open, so discard the cluster afterwards."""

    def run() -> Traffic:
        one = partial(bulk_transactions, group, producer, topic, IN_FLIGHT, seconds)
        return repeated(times, one).traffic

    run()  # warm-up
    without = run()
    before, begin = _leader_memory(group), time.perf_counter()
    open_many(group.cluster.info, producer.app, topic, opened)
    opening_s = time.perf_counter() - begin
    memory = _leader_memory(group) - before
    with_them = run()
    return OpenFigure(
        opened,
        without.per_s,
        with_them.per_s,
        opening_s,
        memory / 1e6,
        without.cpu.us_per_item(),
        with_them.cpu.us_per_item(),
    )


def open_many(
    info: ClusterInfo, app: str, topic: str, wanted: int, *, timeout_ms: int = HOUR_MS, prefix: str = "open-"
) -> None:
    """Leave ``wanted`` transactions of one message each open, as a producer that vanished would."""
    router = Router(info, name="bench-open")
    waiting: deque[Future[Any]] = deque()
    try:
        for first in range(0, wanted, PER_REQUEST):
            if len(waiting) >= REQUESTS_UNDER_WAY:
                _check(result_of(waiting.popleft(), 60.0))
            ids = [f"{prefix}{n}" for n in range(first, min(first + PER_REQUEST, wanted))]
            request = request_of(app, topic, ids, timeout_ms)
            waiting.append(router.submit(GROUP, request, 60.0))
        while waiting:
            _check(result_of(waiting.popleft(), 60.0))
    finally:
        router.close()


def request_of(app: str, topic: str, ids: list[str], timeout_ms: int) -> bytes:
    """PREPAREs of one message each."""
    rows = [encode_row(b"key", os.urandom(TX_BYTES), None, tx_id) for tx_id in ids]
    frames = []
    for partition in range(PARTITIONS):
        mine = list(range(partition, len(ids), PARTITIONS))
        if mine:
            sizes = [len(rows[n]) for n in mine]
            frames.append(ops.pre_message(topic, partition, mine, sizes, [rows[n] for n in mine]))
    digests = [google_crc32c.value(row) for row in rows]
    extra = ops.PrepareExtra(heard_ms=NUMBER_MAX)  # never late: the ids are new in each run
    prepare = ops.prepare(app, topic, ids, None, timeout_ms, 0, digests, -1, len(frames), extra)
    return prepare + b"".join(frames)


def _check(results: list[list[object]]) -> None:
    if any(result[0] for result in results):
        raise RuntimeError(f"opening transactions was refused: {results}")


def _leader_memory(group: GroupUnderTest) -> int:
    return int(psutil.Process(group.pids()["leader"]).memory_info().rss)
