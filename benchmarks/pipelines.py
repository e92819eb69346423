"""What consume, transform, produce costs: ``python -m benchmarks.pipelines``.

One member polls, and sends as many messages as it has polled, in transactions that move its group's place:
100 records each, and single ones. Beside it the same without ``send_offsets``, whose place is committed by
``consumer.commit()`` after each transaction: what many do today, and what counts some records twice after a
crash. Both take turns, on one cluster of three replicas on this machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import escrowmq
from escrowmq import Message
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.producer.producer import Producer

SOURCE, TARGET, PARTITIONS = "bench-in", "bench-out", 4
BYTES, BATCH = 100, 100


def transform(consumer: Consumer, producer: Producer, most: int, *, together: bool) -> int:
    """One transaction; how many records it had."""
    records = consumer.poll(max_records=most, timeout_s=5.0)
    with producer.transaction(local=False) as tx:
        if together:
            tx.send_offsets(consumer)
        for record in records:
            tx.send(Message(TARGET, record.value, key=record.key))
    if not together:
        consumer.commit()
    return len(records)


def rate(consumer: Consumer, producer: Producer, seconds: float, *, together: bool) -> float:
    """Records a second, in transactions of BATCH."""
    began, count = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        count += transform(consumer, producer, BATCH, together=together)
    return count / took


def lone_ms(consumer: Consumer, producer: Producer, seconds: float, *, together: bool) -> float:
    """Median time of a transaction of one record that is there already."""
    taken, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        transform(consumer, producer, 1, together=together)
        taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


def measure(folder: Path, groups: int, seconds: float, rounds: int) -> str:
    """The line for a cluster of so many broker groups."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    lone: dict[bool, list[float]] = {True: [], False: []}
    with escrowmq.start_local(groups=groups, replicas=3, data_dir=folder) as cluster:
        for topic in (SOURCE, TARGET):
            cluster.admin.create_topic(topic, partitions=PARTITIONS)
        with cluster.producer(app="bench-pipeline") as producer:
            load = int(2 * (rounds + 1) * seconds * 60_000)
            for _ in range(0, load, 100_000):
                producer.send_many(SOURCE, [bytes(BYTES)] * 100_000).result()
            members = {
                together: cluster.consumer(f"bench-{together}", [SOURCE], auto_offset_reset="earliest")
                for together in (True, False)
            }
            for together, consumer in members.items():
                rate(consumer, producer, 1.0, together=together)  # warm-up
            for _ in range(rounds):
                for together, consumer in members.items():
                    rates[together].append(rate(consumer, producer, seconds, together=together))
                    lone[together].append(lone_ms(consumer, producer, seconds / 2, together=together))
            for consumer in members.values():
                consumer.close()
    with_, without = median(rates[True]), median(rates[False])
    return (
        f"| {groups} | {with_:,.0f}/s | {without:,.0f}/s | {median(lone[True]):.1f} ms | "
        f"{median(lone[False]):.1f} ms |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2])
    chosen = parser.parse_args()
    print("| groups | in transactions of 100 | with commit() | a lone one | with commit() |")
    print("|---|---|---|---|---|")
    for groups in chosen.groups:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(Path(folder), groups, chosen.seconds, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
