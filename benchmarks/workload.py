"""The workloads: transactions one by one, concurrently and in bulk, plain messages, reading.

Every function only returns figures. A transaction has one message of 256 bytes with a key, in one of four
partitions. The values are random, so nothing compresses them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.group import GroupUnderTest, Traffic, side_by_side
from benchmarks.measure import Latencies
from escrowmq import Message, RecordMetadata, TransactionState
from escrowmq.actors.producer.bulk.sent_many import SentMany
from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.producer.transactions.results import TransactionResult

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
    """An endless sequence of messages, made as they are taken, as by an application. Keys and values are made
    beforehand."""
    ready = [(b"%08d" % n, os.urandom(size)) for n in range(count)]
    while True:
        for key, value in ready:
            yield Message(topic, value, key=key)


def timed(group: GroupUnderTest, work: Callable[[Latencies], int]) -> Timed:
    """Measures ``work``, which returns how many items it has done."""
    latency = Latencies()

    def run() -> tuple[int, float]:
        begin = time.perf_counter()
        count = work(latency)
        return count, time.perf_counter() - begin

    return Timed(group.measure(run), latency.summary())


def one_by_one(call: Callable[[], object], seconds: float, latency: Latencies, items: int = 1) -> int:
    """Calls for so long, one after the other; each does ``items`` items."""
    count, begin = 0, time.perf_counter()
    while (sent := time.perf_counter()) - begin < seconds:
        call()
        latency.add(time.perf_counter() - sent)
        count += items
    return count


def in_tasks(
    producer: Producer, topic: str, in_flight: int, seconds: float, latency: Latencies, messages_each: int = 1
) -> int:
    """Transactions of ``in_flight`` asyncio tasks, one at a time in each; counts their messages."""
    source = messages(topic, TX_BYTES)

    async def one(end: float) -> int:
        count = 0
        while (sent := time.perf_counter()) < end:
            sending = next(source) if messages_each == 1 else list(islice(source, messages_each))
            await producer.aio.send_message_in_transaction(sending, commit)
            latency.add(time.perf_counter() - sent)
            count += messages_each
        return count

    async def all_of_them() -> int:
        end = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(one(end) for _ in range(in_flight))))

    return asyncio.run(all_of_them())


def commit() -> TransactionState:
    """A local transaction that has nothing to do."""
    return TransactionState.COMMITTED


def lone_transactions(group: GroupUnderTest, producer: Producer, topic: str, seconds: float) -> Timed:
    """Transactions one by one, each prepared and committed before the next."""
    source = messages(topic, TX_BYTES)

    def call() -> None:
        producer.send_message_in_transaction(next(source), commit)

    return timed(group, lambda latency: one_by_one(call, seconds, latency))


def tasks(
    group: GroupUnderTest,
    producer: Producer,
    topic: str,
    in_flight: int,
    seconds: float,
    messages_each: int = 1,
) -> Timed:
    """See :func:`in_tasks`."""
    return timed(group, lambda latency: in_tasks(producer, topic, in_flight, seconds, latency, messages_each))


def paced_tasks(
    group: GroupUnderTest, producer: Producer, topic: str, rate_per_s: float, seconds: float
) -> Timed:
    """Transactions that arrive at a fixed rate (open loop); latency is measured from their arrival."""
    source = messages(topic, TX_BYTES)

    async def one(due: float, latency: Latencies) -> None:
        await producer.aio.send_message_in_transaction(next(source), commit)
        latency.add(time.perf_counter() - due)

    async def all_of_them(latency: Latencies) -> int:
        begin = time.perf_counter()
        wanted, started = int(rate_per_s * seconds), 0
        running: set[asyncio.Task[None]] = set()
        while started < wanted:
            # Start all that have arrived by now. A timer for each would measure the timers.
            arrived = min(wanted, int((time.perf_counter() - begin) * rate_per_s) + 1)
            for number in range(started, arrived):
                task = asyncio.create_task(one(begin + number / rate_per_s, latency))
                running.add(task)
                task.add_done_callback(running.discard)
            started = arrived
            await asyncio.sleep(PACE_S)
        await asyncio.gather(*running)
        return wanted

    return timed(group, lambda latency: asyncio.run(all_of_them(latency)))


def bulk_transactions(
    group: GroupUnderTest, producer: Producer, topic: str, in_flight: int, seconds: float
) -> Timed:
    """``send_transactions`` in batches, by two threads with half of ``in_flight`` each."""
    size = _bulk_size(in_flight)

    def call_of_a_thread() -> Callable[[], None]:
        source = messages(topic, TX_BYTES)
        return lambda: check_committed(
            producer.send_transactions([(next(source), None) for _ in range(size)])
        )

    return _in_bulk(group, call_of_a_thread, in_flight, seconds)


def table_transactions(
    group: GroupUnderTest, producer: Producer, topic: str, in_flight: int, seconds: float
) -> Timed:
    """The same with ``send_transactions_table``. Its tables are made beforehand."""
    size = _bulk_size(in_flight)
    table = message_table(TX_BYTES, size)

    def call() -> None:
        results = producer.send_transactions_table(topic, table, key="key")
        if results.committed != size:
            check_committed(results)

    return _in_bulk(group, lambda: call, in_flight, seconds)


def _bulk_size(in_flight: int) -> int:
    return max(1, in_flight // min(BULK_THREADS, in_flight))


def _in_bulk(
    group: GroupUnderTest, call_of_a_thread: Callable[[], Callable[[], None]], in_flight: int, seconds: float
) -> Timed:
    size = _bulk_size(in_flight)

    def work(latency: Latencies) -> int:
        return side_by_side(
            min(BULK_THREADS, in_flight),
            lambda _: one_by_one(call_of_a_thread(), seconds, latency, items=size),
        )

    return timed(group, work)


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

    def call() -> Future[RecordMetadata]:
        for _ in range(255):
            producer.send(next(source))
        return producer.send(next(source))

    return streamed(group, producer, call, 256, seconds)


def plain_table(group: GroupUnderTest, producer: Producer, topic: str, size: int, seconds: float) -> Timed:
    """The same with ``send_table``, in tables of 10,000 rows."""
    table = message_table(size, TABLE_ROWS)
    return streamed(
        group, producer, lambda: producer.send_table(topic, table, key="key"), TABLE_ROWS, seconds
    )


def streamed(
    group: GroupUnderTest,
    producer: Producer,
    call: Callable[[], Future[RecordMetadata] | SentMany],
    items: int,
    seconds: float,
) -> Timed:
    """``call`` again and again, each sends ``items`` messages; then waits for the last answer."""

    def work(_: Latencies) -> int:
        count, begin, last = 0, time.perf_counter(), None
        while time.perf_counter() - begin < seconds:
            last = call()
            count += items
        producer.flush()
        assert last is not None
        last.result(30)
        return count

    return timed(group, work)


def lone_messages(group: GroupUnderTest, producer: Producer, topic: str, seconds: float) -> Timed:
    """``send`` one by one, each answered before the next."""
    source = messages(topic, TX_BYTES)

    def call() -> None:
        producer.send(next(source)).result(timeout=30)

    return timed(group, lambda latency: one_by_one(call, seconds, latency))


def reading(group: GroupUnderTest, topic: str, limit_s: float, *, tables: bool = False) -> Traffic:
    """One consumer in a group reads the topic from its start and commits once per second. ``tables``: with
    ``poll_arrow``."""
    with group.cluster.consumer(
        group=f"reading-{time.time_ns()}", topics=[topic], auto_offset_reset="earliest"
    ) as consumer:
        while not (first := consumer.poll(max_records=1, timeout_s=10.0)):
            pass

        def poll() -> int:
            if tables:
                return int(consumer.poll_arrow(timeout_s=1.0).num_rows)
            return len(consumer.poll(max_records=5000, timeout_s=1.0))

        def work() -> tuple[int, float]:
            count, begin = len(first), time.perf_counter()
            committed = begin
            while (now := time.perf_counter()) - begin < limit_s:
                found = poll()
                if not found:
                    break
                count += found
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
