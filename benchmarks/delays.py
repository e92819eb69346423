"""Delayed messages on a cluster: scheduling, how late they come, a million at once beside commits.

A part of ``make bench``. Delayed and plain messages are sent in turns by the same code, so that their ratio
is of one minute of a shared machine. Lateness is what a consumer sees: from the time that a message was given
until ``poll`` returns it, with the same clock on both sides.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

from benchmarks.group import GROUP, GroupUnderTest
from benchmarks.measure import Latencies
from benchmarks.workload import (
    PARTITIONS,
    TX_BYTES,
    Timed,
    message_table,
    messages,
    plain_messages,
    plain_table,
    streamed,
    tasks,
)
from escrowmq import Message
from escrowmq.actors.producer.producer import Producer

TABLE_ROWS, SENT_AT_ONCE = 10_000, 256
#: Of what is only scheduled: it becomes due long after the run.
DAY_S = 86_400
#: Messages that become due in each second, and for how long before they are all scheduled.
DUE_PER_S, AHEAD_S = 5_000, 3.0
MILLION = 1_000_000
#: A million messages are scheduled within this time, on a slow machine, too.
SCHEDULED_WITHIN_S = 20.0
COMMITS, COMMITTING = "delays-commits", 64
SLICE_S, DRAINED_WITHIN_S = 0.25, 180.0
#: Times to compare before and after the million; how often to ask whether it is readable.
BESIDE_S, ASK_S = 4.0, 0.25


@dataclass(frozen=True)
class Drained:
    """``per_s``: messages that become readable. The others: transactions a second of 64 asyncio tasks before,
    beside and after."""

    per_s: float
    before: float
    beside: float
    after: float


@dataclass(frozen=True)
class DelayFigure:
    """``plain``, ``scheduled``: messages a second, by way of sending; ``ratios``: of the runs that followed
    each other. ``late_ms``: p50, p99 and max until they are read. ``drained``: of ``million`` that are
    due in one second, by their order."""

    plain: dict[str, float]
    scheduled: dict[str, float]
    ratios: dict[str, list[float]]
    late_ms: dict[str, float]
    due_per_s: float
    million: int
    drained: dict[str, Drained]


def measure_delays(group: GroupUnderTest, seconds: float, times: int, million: int = MILLION) -> DelayFigure:
    """All of it: about ``8 * times + 3`` times ``seconds``, and three minutes for two millions."""
    with group.producer(app="bench-delays") as producer:
        return DelayFigure(
            **_scheduling(group, producer, seconds, times),
            late_ms=_lateness(group, producer, 3 * seconds),
            due_per_s=DUE_PER_S,
            million=million,
            drained=_millions(group, producer, million),
        )


# ------------------------------------------------------------ scheduling


def _scheduling(group: GroupUnderTest, producer: Producer, seconds: float, times: int) -> dict[str, Any]:
    ways: dict[str, tuple[Callable[..., Timed], Callable[..., Timed]]] = {
        "send": (plain_messages, _scheduled_messages),
        "send_table": (plain_table, _scheduled_table),
    }
    found: dict[str, Any] = {"plain": {}, "scheduled": {}, "ratios": {}}
    for way, (plain, scheduled) in ways.items():
        topic = f"delays-{way.replace('_', '-')}"
        group.cluster.admin.create_topic(topic, partitions=PARTITIONS)
        rates: dict[str, list[float]] = {"plain": [], "scheduled": []}
        for number in range(times + 1):
            pair = {"plain": plain, "scheduled": scheduled}
            for kind in pair if number % 2 else reversed(pair):
                run = pair[kind](group, producer, topic, TX_BYTES, seconds if number else 0.3)
                if number:  # the first one is a warm-up
                    rates[kind].append(run.traffic.per_s)
        for kind, each in rates.items():
            found[kind][way] = statistics.median(each)
        found["ratios"][way] = [b / a for a, b in zip(rates["plain"], rates["scheduled"], strict=True)]
    return found


def _scheduled_messages(
    group: GroupUnderTest, producer: Producer, topic: str, size: int, seconds: float
) -> Timed:
    made = islice(messages(topic, size), 1_024)
    source = cycle([Message(topic, one.value, key=one.key, delay_s=DAY_S) for one in made])

    def call() -> Any:
        for _ in range(SENT_AT_ONCE - 1):
            producer.send(next(source))
        return producer.send(next(source))

    return streamed(group, producer, call, SENT_AT_ONCE, seconds)


def _scheduled_table(
    group: GroupUnderTest, producer: Producer, topic: str, size: int, seconds: float
) -> Timed:
    table = message_table(size, TABLE_ROWS)
    send = partial(producer.send_table, topic, table, key="key", delay_s=DAY_S)
    return streamed(group, producer, send, TABLE_ROWS, seconds)


# ------------------------------------------------------------ lateness


def _lateness(group: GroupUnderTest, producer: Producer, seconds: float) -> dict[str, float]:
    """Of messages that are due evenly, ``DUE_PER_S`` a second, in the order of their times."""
    topic, count, value = "delays-late", int(DUE_PER_S * seconds), b"x" * (TX_BYTES - 13)
    group.cluster.admin.create_topic(topic, partitions=PARTITIONS)
    late = Latencies()
    with group.cluster.consumer(topic, [topic], auto_offset_reset="earliest") as consumer:
        consumer.poll(1, 2.0)  # it has its partitions
        begin_ms = round(1000 * (time.time() + AHEAD_S + count / 50_000))
        due = [begin_ms + 1000 * n // DUE_PER_S for n in range(count)]
        values = [b"%013d" % time_ms + value for time_ms in due]
        producer.send_many(topic, values, deliver_at=due).result(60)
        if time.time() * 1000 > begin_ms:
            print("the messages were scheduled too late to be on time", flush=True)
        got, deadline = 0, time.monotonic() + AHEAD_S + count / 50_000 + 2 * seconds + 20
        while got < count and time.monotonic() < deadline:
            records = consumer.poll(5_000, 1.0)
            now_ms = time.time() * 1000
            late.extend([(now_ms - int(record.value[:13])) / 1000 for record in records])
            got += len(records)
    if got != count:
        raise RuntimeError(f"{got:,} of {count:,} delayed messages were read")
    return late.summary()


# ------------------------------------------------------------ a million in one second


class _Commits:
    """Transactions of 64 tasks in a thread: how many were done by when."""

    def __init__(self, group: GroupUnderTest, producer: Producer) -> None:
        self._ended = threading.Event()
        self.done = list[tuple[float, float, int]]()  # begin, end, transactions
        self._work = partial(tasks, group, producer, COMMITS, COMMITTING, SLICE_S)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            begin = time.time()
            count = self._work().traffic.items
            self.done.append((begin, time.time(), count))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def per_s(self, begin: float, end: float) -> float:
        """Of the slices that are within these times."""
        within = [slice for slice in self.done if begin <= slice[0] and slice[1] <= end]
        return sum(count for *_, count in within) / max(sum(e - b for b, e, _ in within), 1e-9)


def _millions(group: GroupUnderTest, producer: Producer, million: int) -> dict[str, Any]:
    """Due in the order in which they were sent, as when all of a campaign are given one time: then bodies are
    read in long pieces. And in another order, when each is read from a place of its own."""
    group.cluster.admin.create_topic(COMMITS, partitions=PARTITIONS)
    spread: dict[str, Callable[[int], int]] = {
        "in order": lambda n: 1_000 * n // million,
        "shuffled": lambda n: n * 7_919 % 1_000,
    }
    return {name: _drained(group, producer, million, name, after_ms) for name, after_ms in spread.items()}


def _drained(
    group: GroupUnderTest, producer: Producer, million: int, name: str, after_ms: Callable[[int], int]
) -> Drained:
    topic = f"delays-{name.replace(' ', '-')}"
    group.cluster.admin.create_topic(topic, partitions=PARTITIONS)
    due = time.time() + SCHEDULED_WITHIN_S * million / MILLION + BESIDE_S + AHEAD_S
    first_ms = round(1000 * due)
    values = [bytes([n % 256]) * TX_BYTES for n in range(TABLE_ROWS)]
    for number in range(0, million, TABLE_ROWS):
        times = [first_ms + after_ms(number + n) for n in range(TABLE_ROWS)]
        last = producer.send_many(topic, values, deliver_at=times)
    last.result(60)
    producer.flush()
    if time.time() > due - BESIDE_S - 1:
        raise RuntimeError("a million messages could not be scheduled in time")
    waited_for = _waiting(group) - million
    time.sleep(max(due - BESIDE_S - 1 - time.time(), 0.0))
    commits = _Commits(group, producer)
    try:
        # To ask costs replicas something, too, so it is done before and after as well.
        while _waiting(group) > waited_for or time.time() < due:
            if time.time() > due + DRAINED_WITHIN_S:
                raise RuntimeError(f"a million messages were not readable {DRAINED_WITHIN_S:g} s late")
            time.sleep(ASK_S)
        drained = time.time()
        for _ in range(round(BESIDE_S / ASK_S)):
            _waiting(group)
            time.sleep(ASK_S)
    finally:
        commits.end()
    return Drained(
        per_s=million / (drained - due),
        before=commits.per_s(due - BESIDE_S, due),
        beside=commits.per_s(due, drained),
        after=commits.per_s(drained, time.time()),
    )


def _waiting(group: GroupUnderTest) -> int:
    """Delayed messages that cannot be read yet."""
    timers = group.cluster.admin.status(wait_s=10.0).groups[GROUP].timers
    assert timers is not None
    return timers.waiting
