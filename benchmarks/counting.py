"""The cost of a broker's counters: their CPU time, compared with that of the work that they count.

``python -m benchmarks.counting`` first lets one replica prepare and commit transactions as a busy producer
sends them, and then does only the counting for the same number of requests. The ratio of the two is the share
of a core that counting takes in a replica that keeps one core busy; it hardly depends on other load on the
machine. It also measures one report of all counters, which an exporter requests every five seconds, with many
topics.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.host.requests import RequestCounts
from escrowmq.replication.metrics import LATENCY_S, Counts, Histogram
from escrowmq.replication.state.index import PartitionIndex
from tests.support.broker_group import BrokerGroup
from tests.support.requests import prepare

EXPORT_EVERY_S = 5.0


def working(group: BrokerGroup, round_: int, requests: int, size: int) -> float:
    """CPU seconds of ``requests`` pairs of PREPARE and COMMIT with ``size`` transactions each."""
    ids = [[f"{round_}-{number}-{i}" for i in range(size)] for number in range(requests)]
    frames = [(prepare(names), ops.commit("app", names)) for names in ids]
    submit = group.leader().parts.requests.submit
    began = time.process_time()
    for first, second in frames:
        assert submit(first)[0] == submit(second)[0] == "ok"
    return time.process_time() - began


def counting(requests: int, size: int) -> float:
    """CPU seconds of counting alone, for the same number of requests.

    Counted are each request's latency, a sync of the disk, what was opened or decided, and the bytes of each
    run that is appended to a partition.
    """
    names = [f"x{i}" for i in range(size)]
    both = [decode_ops(prepare(names)), decode_ops(ops.commit("app", names))]
    cells, counts, fsync, index = RequestCounts(), Counts(), Histogram(LATENCY_S), PartitionIndex()
    began = time.process_time()
    for _ in range(requests):
        for parsed in both:
            begun = time.monotonic()
            cells.answered("ok", parsed, time.monotonic() - begun)
            fsync.observe(time.monotonic() - begun)
        counts.prepared += size
        counts.decide(1, "producer", size)
        index.bytes += 20
    return time.process_time() - began


def reporting(group: BrokerGroup, topics: int, apps: int) -> float:
    """CPU seconds of one report with this number of topics and apps."""
    for number in range(0, topics, 100):
        group.submit(*(ops.create_topic(f"t{number + i}", {"partitions": 4}) for i in range(100)))
    for number in range(0, apps, 100):
        group.submit(*(prepare(["x"], app=f"app{number + i}") for i in range(100)))
    took = []
    for _ in range(5):
        began = time.process_time()
        group.leader().parts.instruments.metrics()
        took.append(time.process_time() - began)
    return statistics.median(took)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--apps", type=int, default=1_000)
    chosen = parser.parse_args()
    print(f"{'transactions a request':>24}{'work, us':>12}{'counting, us':>14}{'share of a core':>18}")
    with tempfile.TemporaryDirectory() as path, BrokerGroup(Path(path), replicas=1) as group:
        group.topic()
        for size in (1, 64):
            pairs = [
                (
                    working(group, round_ + 1_000 * size, chosen.requests, size),
                    counting(chosen.requests, size),
                )
                for round_ in range(chosen.rounds)
            ]
            work, cost = (
                1e6 * statistics.median(column) / chosen.requests for column in zip(*pairs, strict=True)
            )
            ratio = statistics.median(counted / worked for worked, counted in pairs)
            print(f"{size:>24}{work:>12.1f}{cost:>14.2f}{ratio:>17.2%}")
        report = reporting(group, chosen.topics, chosen.apps)
    print(
        f"one report, {chosen.topics:,} topics of 4 partitions, {chosen.apps:,} apps: {1e3 * report:.1f} ms; "
        f"every {EXPORT_EVERY_S:g} s {report / EXPORT_EVERY_S:.2%} of a core"
    )


if __name__ == "__main__":
    main()
