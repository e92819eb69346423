"""The workloads: transactions one by one, concurrently and in bulk, plain messages, reading.

Every function only returns figures. A transaction has one message of 256 bytes with a key, in one of four
partitions. The values are random, so nothing compresses them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.group import GroupUnderTest, Traffic, side_by_side
from benchmarks.measure import Latencies
from escrowmq import Message, TransactionState
from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.producer.results import TransactionResult

TX_BYTES = 256
PARTITIONS = 4
#: Threads that send bulk transactions, so that one's batch is in flight while the other's is built.
BULK_THREADS = 2
#: Rows of one table of plain messages: a few dozen requests.
TABLE_ROWS = 10_000
#: How often arrivals are checked; this adds half of it to the latency.
PACE_S = 0.001


@dataclass(frozen=True)
class Timed:
    """Traffic, and the latencies of single items (empty if single items have none)."""

    traffic: Traffic
    latency: dict[str, float]


def messages(topic: str, size: int, count: int = 1024) -> Iterator[Message]:
    """An endless sequence of messages. They are made beforehand, because making them is not measured."""
    ready = [Message(topic, os.urandom(size), key=b"%08d" % n) for n in range(count)]
    while True:
        yield from ready


def lone_transactions(group: GroupUnderTest, producer: Producer, topic: str, seconds: float) -> Timed:
    """Transactions one by one, each prepared and committed before the next."""
    source = messages(topic, TX_BYTES)
    latency = Latencies()

    def work() -> tuple[int, float]:
        count, begin = 0, time.perf_counter()
        while (sent := time.perf_counter()) - begin < seconds:
            producer.send_message_in_transaction(next(source), _commit)
            latency.add(time.perf_counter() - sent)
            count += 1
        return count, time.perf_counter() - begin

    return Timed(group.measure(work), latency.summary())


def _commit() -> TransactionState:
    return TransactionState.COMMITTED


def tasks(group: GroupUnderTest, producer: Producer, topic: str, in_flight: int, seconds: float) -> Timed:
    """Transactions of ``in_flight`` asyncio tasks, one at a time in each."""
    source = messages(topic, TX_BYTES)
    latency = Latencies()

    async def one(end: float) -> int:
        count = 0
        while (sent := time.perf_counter()) < end:
            await producer.aio.send_message_in_transaction(next(source), _commit)
            latency.add(time.perf_counter() - sent)
            count += 1
        return count

    async def all_of_them() -> int:
        end = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(one(end) for _ in range(in_flight))))

    def work() -> tuple[int, float]:
        begin = time.perf_counter()
        count = asyncio.run(all_of_them())
        return count, time.perf_counter() - begin

    return Timed(group.measure(work), latency.summary())


def paced_tasks(
    group: GroupUnderTest, producer: Producer, topic: str, rate_per_s: float, seconds: float
) -> Timed:
    """Transactions that arrive at a fixed rate (open loop); latency is measured from their arrival."""
    source = messages(topic, TX_BYTES)
    latency = Latencies()

    async def one(due: float) -> None:
        await producer.aio.send_message_in_transaction(next(source), _commit)
        latency.add(time.perf_counter() - due)

    async def all_of_them() -> int:
        begin = time.perf_counter()
        wanted, started = int(rate_per_s * seconds), 0
        running: set[asyncio.Task[None]] = set()
        while started < wanted:
            # Start all that have arrived by now. A timer for each would measure the timers.
            arrived = min(wanted, int((time.perf_counter() - begin) * rate_per_s) + 1)
            for number in range(started, arrived):
                task = asyncio.create_task(one(begin + number / rate_per_s))
                running.add(task)
                task.add_done_callback(running.discard)
            started = arrived
            await asyncio.sleep(PACE_S)
        await asyncio.gather(*running)
        return wanted

    def work() -> tuple[int, float]:
        begin = time.perf_counter()
        count = asyncio.run(all_of_them())
        return count, time.perf_counter() - begin

    return Timed(group.measure(work), latency.summary())


def bulk_transactions(
    group: GroupUnderTest, producer: Producer, topic: str, in_flight: int, seconds: float
) -> Timed:
    """``send_transactions`` in batches, by two threads with half of ``in_flight`` each."""
    workers = min(BULK_THREADS, in_flight)
    size = max(1, in_flight // workers)
    latency = Latencies()

    def work() -> tuple[int, float]:
        begin = time.perf_counter()

        def one(_: int) -> int:
            source = messages(topic, TX_BYTES)
            count = 0
            while (sent := time.perf_counter()) - begin < seconds:
                results = producer.send_transactions([(next(source), None) for _ in range(size)])
                latency.add(time.perf_counter() - sent)
                check_committed(results)
                count += size
            return count

        count = side_by_side(workers, one)
        return count, time.perf_counter() - begin

    return Timed(group.measure(work), latency.summary())


def table_transactions(
    group: GroupUnderTest, producer: Producer, topic: str, in_flight: int, seconds: float
) -> Timed:
    """The same with ``send_transactions_table``. Its tables are made beforehand."""
    workers = min(BULK_THREADS, in_flight)
    size = max(1, in_flight // workers)
    latency = Latencies()
    table = message_table(TX_BYTES, size)

    def work() -> tuple[int, float]:
        begin = time.perf_counter()

        def one(_: int) -> int:
            count = 0
            while (sent := time.perf_counter()) - begin < seconds:
                results = producer.send_transactions_table(topic, table, key="key")
                latency.add(time.perf_counter() - sent)
                if results.committed != size:
                    check_committed(results)
                count += size
            return count

        count = side_by_side(workers, one)
        return count, time.perf_counter() - begin

    return Timed(group.measure(work), latency.summary())


def message_table(size: int, count: int) -> Any:
    """``messages`` as an Arrow table."""
    import pyarrow as pa

    chosen = list(islice(messages("any", size), count))
    return pa.table({"value": [m.value for m in chosen], "key": [m.key for m in chosen]})


def check_committed(results: Sequence[TransactionResult]) -> None:
    """Raise RuntimeError unless all are committed: a failure must not count as work done."""
    wrong = [r for r in results if r.state is not TransactionState.COMMITTED]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {len(results)} transactions were not committed: {wrong[0]}")


def plain_messages(group: GroupUnderTest, producer: Producer, topic: str, size: int, seconds: float) -> Timed:
    """``send`` as fast as one thread can, waiting for the last answer at the end."""
    source = messages(topic, size)

    def work() -> tuple[int, float]:
        count, begin = 0, time.perf_counter()
        last = None
        while time.perf_counter() - begin < seconds:
            for _ in range(256):
                last = producer.send(next(source))
            count += 256
        producer.flush()
        assert last is not None
        last.result(timeout=30)
        return count, time.perf_counter() - begin

    return Timed(group.measure(work), {})


def plain_table(group: GroupUnderTest, producer: Producer, topic: str, size: int, seconds: float) -> Timed:
    """The same with ``send_table``, in tables of 10,000 rows."""
    table = message_table(size, TABLE_ROWS)

    def work() -> tuple[int, float]:
        count, begin = 0, time.perf_counter()
        sent = None
        while time.perf_counter() - begin < seconds:
            sent = producer.send_table(topic, table, key="key")
            count += TABLE_ROWS
        producer.flush()
        assert sent is not None
        sent.result(30)
        return count, time.perf_counter() - begin

    return Timed(group.measure(work), {})


def reading(group: GroupUnderTest, topic: str, limit_s: float) -> Traffic:
    """One consumer in a group reads the topic from its start and commits once per second."""
    with group.cluster.consumer(
        group=f"reading-{time.time_ns()}", topics=[topic], auto_offset_reset="earliest"
    ) as consumer:
        while not (first := consumer.poll(max_records=1, timeout_s=10.0)):
            pass

        def work() -> tuple[int, float]:
            count, begin = len(first), time.perf_counter()
            committed = begin
            while (now := time.perf_counter()) - begin < limit_s:
                records = consumer.poll(max_records=5000, timeout_s=1.0)
                if not records:
                    break
                count += len(records)
                if now - committed > 1:
                    consumer.commit()
                    committed = now
            return count, now - begin

        return group.measure(work)


def repeated(times: int, measure: Callable[[], Timed]) -> Timed:
    """The run with the median rate of several, since a single run on a shared machine says little."""
    return in_turns(times, {"": measure})[""]


def in_turns(times: int, measures: Mapping[str, Callable[[], Timed]]) -> dict[str, Timed]:
    """The same for what is compared: one run of each, then the next of each."""
    runs: dict[str, list[Timed]] = {name: [] for name in measures}
    for _ in range(times):
        for name, measure in measures.items():
            runs[name].append(measure())
    return {
        name: sorted(found, key=lambda run: run.traffic.per_s)[len(found) // 2]
        for name, found in runs.items()
    }
