"""Share groups on a cluster: how fast messages are handed out and acknowledged, and whom that slows down.

A part of ``make bench``. Share consumers are real ones. Readers beside a producer are processes of their own
(``python -m benchmarks.share_groups KIND ADDRESS TOPIC``), as they would be. The thousand members are calls
of one process: a thousand consumers in one process would measure its threads.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import escrowmq
from benchmarks.group import GroupUnderTest, Traffic
from benchmarks.measure import Latencies
from benchmarks.workload import PARTITIONS, TX_BYTES, plain_messages, plain_table
from escrowmq import Message
from escrowmq.actors.client.router import Router
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.calling.answers import AcquiredRow
from escrowmq.replication.format import share_ops

BATCH, HANDLERS, MEMBERS = 500, 64, 1_000
#: Of the thousand members: messages a second for all of them together, and how long one call waits.
TRICKLE_PER_S, WAIT_S = 500, 5.0
#: More than is taken in a second in any way.
PER_SECOND = {"batches": 250_000, "handlers": 50_000, "nacks": 20_000}
READERS = ("nobody", "stream", "share")
DAY_S = 86_400
#: Messages that readers get each second beside the producer that is measured: any reader keeps up with them.
PACED_PER_S, PACE_S = 20_000, 0.01


@dataclass(frozen=True)
class ShareFigure:
    """Messages a second. ``beside``: plain messages sent a second while others read them, by kind of reader;
    ``leader_us``: the leader's processor time for each of them, with its part of the reading.
    ``beside_paced``: sent to a topic that nobody reads, while 20,000 a second of another topic are read.
    ``members_*``: of a thousand members, the rate, the milliseconds until a message is handed out, and calls
    a second."""

    batches_per_s: float
    handlers_per_s: float
    nacks_per_s: float
    beside: dict[str, float]
    leader_us: dict[str, float]
    beside_paced: dict[str, float]
    members_per_s: float
    members_p50_ms: float
    members_p99_ms: float
    members_calls_per_s: float


def measure_shares(group: GroupUnderTest, seconds: float, times: int) -> ShareFigure:
    """All of it: about ten times ``seconds``, and as long again to send the messages."""
    with group.producer(app="bench-shares") as producer:
        return ShareFigure(
            batches_per_s=_settled(group, producer, "batches", seconds, _in_batches),
            handlers_per_s=_settled(group, producer, "handlers", seconds, _by_handlers),
            nacks_per_s=_settled(group, producer, "nacks", seconds, _nacked),
            **_beside(group, producer, seconds, times),
            beside_paced=_beside_paced(group, producer, seconds, times),
            **_thousand(group, producer, seconds),
        )


def _settled(
    group: GroupUnderTest,
    producer: Producer,
    way: str,
    seconds: float,
    settle: Callable[[escrowmq.ShareConsumer, float], int],
) -> float:
    """Messages settled a second, of more than there is time for."""
    topic = f"shares-{way}"
    group.cluster.admin.create_topic(topic, partitions=PARTITIONS)
    sent = 0
    while sent < PER_SECOND[way] * seconds:
        sent += plain_table(group, producer, topic, TX_BYTES, 0.2).traffic.items
    group.cluster.admin.set_group(topic, delays_s=[DAY_S])
    with group.cluster.share_consumer(
        topic, [topic], auto_offset_reset="earliest", prefetch_records=4 * BATCH
    ) as consumer:
        consumer.poll(1, 10.0)  # the group has begun
        begin = time.perf_counter()
        done = settle(consumer, begin + seconds)
        consumer.flush()
        return done / (time.perf_counter() - begin)


def _in_batches(consumer: escrowmq.ShareConsumer, end: float) -> int:
    done = 0
    while time.perf_counter() < end:
        records = consumer.poll(BATCH, 1.0)
        for record in records:
            consumer.ack(record)
        done += len(records)
    return done


def _by_handlers(consumer: escrowmq.ShareConsumer, end: float) -> int:
    done, stop = list[None](), threading.Event()
    threading.Timer(end - time.perf_counter(), stop.set).start()
    consumer.run(lambda record: done.append(None), threads=HANDLERS, stop=stop)
    return len(done)


def _nacked(consumer: escrowmq.ShareConsumer, end: float) -> int:
    """Each call returns when its nack is durable."""
    done, stop = list[None](), threading.Event()
    threading.Timer(end - time.perf_counter(), stop.set).start()

    def fail(record: escrowmq.ShareRecord) -> None:
        consumer.nack(record, reason="bench")
        done.append(None)

    consumer.run(fail, threads=HANDLERS, stop=stop)
    return len(done)


# ------------------------------------------------------------ beside a producer


def _beside(group: GroupUnderTest, producer: Producer, seconds: float, times: int) -> dict[str, Any]:
    runs: dict[str, list[Traffic]] = {kind: [] for kind in READERS}
    for number in range(times):
        for kind in READERS:
            topic = f"beside-{kind}-{number}"
            group.cluster.admin.create_topic(topic, partitions=PARTITIONS)
            with _reader(kind, group.cluster.address, topic):
                runs[kind].append(plain_messages(group, producer, topic, TX_BYTES, seconds).traffic)
    cost = {kind: [run.cpu.us_per_item()["leader"] for run in found] for kind, found in runs.items()}
    return {
        "beside": {kind: statistics.median(run.per_s for run in found) for kind, found in runs.items()},
        "leader_us": {kind: statistics.median(each) for kind, each in cost.items()},
    }


def _beside_paced(group: GroupUnderTest, producer: Producer, seconds: float, times: int) -> dict[str, float]:
    """A producer as fast as it can be leaves readers behind. These are given what they can keep up with."""
    rates: dict[str, list[float]] = {kind: [] for kind in READERS}
    group.cluster.admin.create_topic("beside-unread", partitions=PARTITIONS)
    for number in range(times):
        for kind in READERS:
            topic = f"paced-{kind}-{number}"
            group.cluster.admin.create_topic(topic, partitions=PARTITIONS)
            with _reader(kind, group.cluster.address, topic), _paced(group, topic):
                timed = plain_messages(group, producer, "beside-unread", TX_BYTES, seconds)
            rates[kind].append(timed.traffic.per_s)
    return {kind: statistics.median(each) for kind, each in rates.items()}


@contextmanager
def _paced(group: GroupUnderTest, topic: str) -> Iterator[None]:
    """Messages for the reader, at the same rate all the time."""
    ended = threading.Event()
    values = [os.urandom(TX_BYTES) for _ in range(round(PACED_PER_S * PACE_S))]

    def send() -> None:
        begin, sent = time.perf_counter(), 0
        with group.producer(app="bench-paced") as producer:
            while not ended.wait(PACE_S / 2):
                while sent * PACE_S < time.perf_counter() - begin:
                    producer.send_many(topic, values)
                    sent += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _reader(kind: str, address: str, topic: str) -> Iterator[None]:
    """A process that reads the topic, until the end of the block."""
    if kind == "nobody":
        yield
        return
    command = [sys.executable, "-m", "benchmarks.share_groups", kind, address, topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline().startswith("reading")
        yield
        process.stdin.close()
        print(f"{kind}: {process.stdout.readline().strip()}", flush=True)


def read(kind: str, address: str, topic: str) -> None:
    """The process of ``_reader``. Prints how many messages it has read, and by what they came late."""
    ended = threading.Event()

    def until_closed() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=until_closed, daemon=True).start()
    with escrowmq.connect(address) as cluster:
        if kind == "share":
            reader: Any = cluster.share_consumer(topic, [topic], prefetch_records=4 * BATCH)
        else:
            reader = cluster.consumer(topic, [topic])
        with reader:
            reader.poll(1, 5.0)
            print("reading", flush=True)
            count, late_ms, committed = 0, 0.0, time.monotonic()
            while not ended.is_set():
                records = reader.poll(BATCH if kind == "share" else 5_000, 0.1)
                count += len(records)
                if records:
                    late_ms = max(late_ms, time.time() * 1000 - records[-1].timestamp)
                if kind == "share":
                    for record in records:
                        reader.ack(record)
                elif time.monotonic() > committed + 1:
                    reader.commit()
                    committed = time.monotonic()
            print(f"read {count:,}, at most {late_ms:,.0f} ms late", flush=True)


# ------------------------------------------------------------ a thousand members


def _thousand(group: GroupUnderTest, producer: Producer, seconds: float) -> dict[str, Any]:
    topic = "shares-members"
    group.cluster.admin.create_topic(topic, partitions=PARTITIONS)
    with group.cluster.share_consumer(topic, [topic]):  # the group begins
        pass
    router = Router(group.cluster.info, name="bench-members")
    try:
        with ThreadPoolExecutor(1) as sender:
            sent = sender.submit(_trickle, producer, topic, 2 * seconds)
            members = Members(router, topic, 2 * seconds)
            asyncio.run(members.run())
            count = sent.result()
    finally:
        router.close()
    if members.taken < 0.9 * count:
        print(f"a thousand members took only {members.taken:,} of {count:,} messages", flush=True)
    late = members.late.summary()
    return {
        "members_per_s": members.taken / (2 * seconds),
        "members_p50_ms": late["p50_ms"],
        "members_p99_ms": late["p99_ms"],
        "members_calls_per_s": members.calls / (2 * seconds),
    }


def _trickle(producer: Producer, topic: str, seconds: float) -> int:
    begin, count, value = time.perf_counter(), 0, os.urandom(TX_BYTES)
    while (now := time.perf_counter() - begin) < seconds:
        while count < now * TRICKLE_PER_S:
            producer.send(Message(topic, value, key=b"%d" % count))
            count += 1
        time.sleep(0.002)
    producer.flush()
    return count


class Members:
    """A thousand members of one group: each asks, acknowledges what it gets, and asks again."""

    def __init__(self, router: Router, topic: str, seconds: float) -> None:
        self._router, self._topic = router, topic
        self._end = time.monotonic() + seconds
        self.taken = self.calls = 0
        self.late = Latencies()

    async def run(self) -> None:
        await asyncio.gather(*(self._one(uuid.uuid4().hex) for _ in range(MEMBERS)))

    async def _one(self, member: str) -> None:
        while (left := self._end - time.monotonic()) > 0:
            asked = self._topic, member, [self._topic], 10, 1 << 20, 30.0, min(left, WAIT_S)
            self.calls += 1
            status, rows, *rest = await asyncio.wrap_future(
                self._router.leader_call(0, "share_acquire", *asked, patience_s=WAIT_S)
            )
            assert status == "ok", (status, rows)
            for row in map(AcquiredRow._make, rows):
                ranges = [bound for at in range(0, len(row.leased), 3) for bound in row.leased[at : at + 2]]
                ack = share_ops.share_ack(self._topic, row.topic, row.partition, ranges, row.topic_id)
                now_ms = time.time() * 1000
                for base, count, ts_ms, _ in row.runs:
                    taken = sum(
                        max(0, min(last, base + count - 1) - max(first, base) + 1)
                        for first, last in zip(ranges[::2], ranges[1::2], strict=True)
                    )
                    self.taken += taken
                    self.late.extend([max(now_ms - ts_ms, 0.0) / 1000] * taken)
                await asyncio.wrap_future(self._router.submit(0, ack))
            if not rows and rest[1]:
                await asyncio.sleep(rest[1] * random.uniform(0.5, 1.5))


if __name__ == "__main__":
    read(*sys.argv[1:])
