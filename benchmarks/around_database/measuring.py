"""What is measured of one way: rates, the relay's speed, and the time from the database's commit until a
consumer has the message.

Everything that was committed must be read, and nothing twice: a measurement in which that fails raises.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from benchmarks.around_database.ways import Way, number_of
from benchmarks.group import side_by_side
from benchmarks.measure import Latencies

#: For the relay's rest, and the consumer's.
CATCH_UP_S = 120.0
#: A reader waits while the other ways are measured. If it left its group, it would read again what it read.
IDLE_MAX_S = 86_400.0


class Reader:
    """One consumer of a way's topic. Notes when it got the message of each order."""

    def __init__(self, cluster: Any, topic: str, catch_up_s: float = CATCH_UP_S) -> None:
        self._consumer = cluster.consumer(
            f"bench-{topic}", [topic], auto_offset_reset="earliest", poll_interval_max_s=IDLE_MAX_S
        )
        self._topic, self._catch_up_s = topic, catch_up_s
        self.read: dict[int, float] = {}
        self.failed: BaseException | None = None

    def poll(self, timeout_s: float) -> None:
        """What is there now, or comes within that time."""
        records = self._consumer.poll(max_records=1000, timeout_s=timeout_s)
        now = time.perf_counter()
        for record in records:
            number = number_of(record.value)
            if number in self.read:
                raise AssertionError(f"{self._topic}: order {number} was sent twice")
            self.read[number] = now

    def catch_up(self, count: int) -> None:
        """Read until so many messages were read in all."""
        until = time.perf_counter() + self._catch_up_s
        while len(self.read) < count:
            if time.perf_counter() > until:
                raise AssertionError(f"{self._topic}: {len(self.read)} of {count} messages can be read")
            self.poll(0.2)

    def beside(self, work: Callable[[], int]) -> None:
        """Poll in a thread while ``work`` runs, which returns how many messages there are in all then."""
        ended = threading.Event()

        def run() -> None:
            try:
                while not ended.is_set():
                    self.poll(0.2)
            except BaseException as error:
                self.failed = error

        thread = threading.Thread(target=run, name="bench-reader")
        thread.start()
        try:
            count = work()
        finally:
            ended.set()
            thread.join()
        if self.failed is not None:
            raise self.failed
        self.catch_up(count)

    def close(self) -> None:
        self._consumer.close()


@dataclass
class Counted:
    """Messages that a way has committed since the beginning."""

    messages: int = 0


@dataclass(frozen=True)
class Rate:
    """Transactions a second, and which part of the messages the relay had not sent when they ended."""

    per_s: float
    behind: float


def rate(way: Way, reader: Reader | None, counted: Counted, threads: int, seconds: float) -> Rate:
    """Transactions from so many threads, each as soon as the one before is done, with the relay beside."""
    with way.relaying() as sent:
        before = sent() if sent else 0
        began = time.perf_counter()

        def one(_: int) -> int:
            count = 0
            while True:  # at least one, however busy the machine is
                way.commit()
                count += 1
                if time.perf_counter() - began >= seconds:
                    return count

        count = side_by_side(threads, one)
        took = time.perf_counter() - began
        behind = max(count - (sent() - before), 0) / count if sent else 0.0
        counted.messages += count if reader else 0
        if reader:
            reader.catch_up(counted.messages)
    return Rate(count / took, behind)


def relay_rate(way: Way, reader: Reader, counted: Counted, rows: int) -> float:
    """Rows a second that the relay sends of many that wait."""
    with way.relaying() as sent:
        before = sent()
        began = way.fill(rows)
        counted.messages += rows
        until = began + CATCH_UP_S
        while sent() - before < rows:
            if time.perf_counter() > until:
                raise AssertionError(f"{way.name}: the relay has sent {sent() - before} of {rows} rows")
            time.sleep(0.001)
        took = time.perf_counter() - began
        reader.catch_up(counted.messages)
    return rows / took


def delays(
    way: Way, reader: Reader, counted: Counted, per_s: float, threads: int, seconds: float, seed: int
) -> Latencies:
    """From the database's answer to COMMIT until ``poll`` has returned the message, of transactions that come
    at random times, so many a second in all if they can."""
    committed: dict[int, float] = {}

    def one(place: int) -> int:
        rng, count = random.Random(seed * 1000 + place), 0
        at = time.perf_counter()
        until = at + seconds
        while True:
            at = max(at + rng.expovariate(per_s / threads), time.perf_counter())
            if at > until:
                return count
            time.sleep(at - time.perf_counter() if at > time.perf_counter() else 0.0)
            number, when = way.commit()
            committed[number] = when
            count += 1

    def work() -> int:
        counted.messages += side_by_side(threads, one)
        _wait_for(lambda: reader.failed is not None or committed.keys() <= reader.read.keys())
        return counted.messages

    with way.relaying():
        reader.beside(work)
    found = Latencies()
    found.extend([reader.read[number] - when for number, when in committed.items()])
    return found


def _wait_for(done: Callable[[], bool]) -> None:
    until = time.perf_counter() + CATCH_UP_S
    while not done() and time.perf_counter() < until:
        time.sleep(0.01)


def statements(engine: sa.Engine, way: Way, counted: Counted, times: int = 20) -> tuple[float, float]:
    """Statements and commits of one transaction in the database, without the relay's."""
    seen = {"statements": 0, "commits": 0}

    def statement(*_: Any) -> None:
        seen["statements"] += 1

    def commit(*_: Any) -> None:
        seen["commits"] += 1

    way.commit()  # the first one may look whether the table is there
    sa.event.listen(engine, "before_cursor_execute", statement)
    sa.event.listen(engine, "commit", commit)
    try:
        for _ in range(times):
            way.commit()
    finally:
        sa.event.remove(engine, "before_cursor_execute", statement)
        sa.event.remove(engine, "commit", commit)
    counted.messages += times + 1
    return seen["statements"] / times, seen["commits"] / times
