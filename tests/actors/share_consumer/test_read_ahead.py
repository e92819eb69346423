"""What share consumers have ahead of their applications, in virtual time: what is begun soon, and no more.

The clusters in memory read nothing ahead, so the setting is put back here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from escrowmq import Message, ShareConsumer, ShareRecord
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.actors.share_consumer.session import AHEAD_S, Pace
from escrowmq.testing import InMemoryCluster

TOPIC, GROUP = "jobs", "workers"
STEP_S = 0.01
#: Promised: what has waited for so long goes to others.
WAITS_S = 1.0
AHEAD = ShareConsumerConfig().prefetch_records


@pytest.fixture
def ahead() -> int:
    return AHEAD


@pytest.fixture(params=[1, 3], ids=["one-group", "three-groups"])
def cluster(request: pytest.FixtureRequest, ahead: int) -> Iterator[InMemoryCluster]:
    class ReadingAhead(InMemoryCluster):
        _GROUPS, _PREFETCH_RECORDS = request.param, ahead

    with ReadingAhead() as made:
        made.admin.create_topic(TOPIC, partitions=3)
        yield made


def workers(cluster: InMemoryCluster, count: int) -> list[ShareConsumer]:
    return [cluster.share_consumer(GROUP, [TOPIC], auto_offset_reset="earliest") for _ in range(count)]


def send(cluster: InMemoryCluster, count: int) -> None:
    with cluster.producer("boss") as producer:
        for partition in range(3):
            values = [b"%d" % number for number in range(partition, count, 3)]
            producer.send_many(TOPIC, values, partition=partition).result(0)


class Office:
    """Workers with one job each at a time, which takes as long as its worker needs for it."""

    def __init__(self, cluster: InMemoryCluster, needs_s: Sequence[Callable[[], float]]) -> None:
        self._cluster, self._needs_s = cluster, needs_s
        self._workers = workers(cluster, len(needs_s))
        self._at: dict[int, tuple[float, ShareRecord]] = {}
        #: Jobs done by each worker, and how often each was begun.
        self.done: Counter[int] = Counter()
        self.attempts: list[int] = []

    def work(self, jobs: int, most_s: float, step_s: float = STEP_S) -> float:
        """How long so many more jobs take together."""
        begun, wanted = self._cluster.clock.time(), self.done.total() + jobs
        while self.done.total() < wanted:
            now = self._cluster.clock.time()
            assert now < begun + most_s, f"{self.done} after {most_s} s"
            for number, worker in enumerate(self._workers):
                self._turn(number, worker, now)
            self._cluster.clock.advance(step_s)
        return self._cluster.clock.time() - begun

    def _turn(self, number: int, worker: ShareConsumer, now: float) -> None:
        until, record = self._at.get(number, (0.0, None))
        if now < until:
            return
        if record is not None:
            del self._at[number]
            worker.ack(record)
            self.done[number] += 1
        for record in worker.poll(1, timeout_s=0):
            self._at[number] = now + self._needs_s[number](), record
            self.attempts.append(record.attempt)

    @property
    def buffered(self) -> list[int]:
        return [worker.statistics().buffered for worker in self._workers]


def seconds(each: float) -> Callable[[], float]:
    return lambda: each


def test_ten_workers_do_a_hundred_long_jobs_ten_times_as_fast_as_one(cluster: InMemoryCluster) -> None:
    office = Office(cluster, [seconds(20)] * 10)
    send(cluster, 100)
    assert office.work(100, 240.0, step_s=1.0) <= 220
    assert set(office.done.values()) == {10} and set(office.attempts) == {1}


def test_a_slow_worker_keeps_nothing_from_a_fast_one(cluster: InMemoryCluster) -> None:
    office = Office(cluster, [seconds(20), seconds(0.05)])
    send(cluster, 100)
    assert office.work(99, 30.0) <= 99 * (0.05 + 2 * STEP_S) + WAITS_S
    assert set(office.attempts) == {1}


def test_a_fast_worker_soon_has_many_ahead(cluster: InMemoryCluster) -> None:
    office = Office(cluster, [seconds(0.0)])
    send(cluster, 300)
    office.work(8, 10.0)
    few = office.buffered[0]
    office.work(92, 10.0)
    assert few < office.buffered[0] and office.buffered[0] > AHEAD_S / STEP_S / 2 - 1


def test_what_lies_before_a_job_that_takes_unusually_long_goes_to_others(cluster: InMemoryCluster) -> None:
    pace = [0.0]
    office = Office(cluster, [lambda: pace[0]])
    send(cluster, 400)
    office.work(200, 60.0)
    assert office.buffered[0] > 10
    pace[0] = 60.0
    cluster.clock.advance(WAITS_S / 2)
    office.work(1, 60.0)  # and begins a long one
    (other,) = workers(cluster, 1)
    cluster.clock.advance(WAITS_S)
    assert office.buffered == [0]
    found = [record for _ in range(400) for record in other.poll(timeout_s=0)]
    assert len(found) == 400 - office.done.total() - 1
    assert {record.attempt for record in found} == {1}, "given back, and no lease has ended"


def test_what_was_polled_for_in_vain_waits_for_the_next_poll(cluster: InMemoryCluster) -> None:
    (rare, other) = workers(cluster, 2)
    assert rare.poll(1, timeout_s=0) == []
    send(cluster, 1)
    for _ in range(5):  # it comes back after long pauses
        cluster.clock.advance(10 * WAITS_S)
        if records := rare.poll(1, timeout_s=0):
            break
    assert [record.value for record in records] == [b"0"] and other.poll(timeout_s=0) == []


def test_a_poll_that_waits_for_long_gets_what_comes(cluster: InMemoryCluster) -> None:
    (queue,) = workers(cluster, 1)
    with cluster.producer("boss") as producer:
        producer.send(Message(TOPIC, b"late", delay_s=25 * WAITS_S)).result(0)
    assert [record.value for record in queue.poll(1, timeout_s=60.0)] == [b"late"]


# ------------------------------------------------------------ run


#: Messages that handlers are done with at once; the next ones take long.
QUICK = 30


def assert_rest(other: ShareConsumer) -> None:
    rest = [record for _ in range(40) for record in other.poll(timeout_s=0)]
    assert len(rest) == 96 and {record.attempt for record in rest} == {1}


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.002)


@pytest.mark.parametrize("ahead", [0, AHEAD])
def test_threads_hold_what_they_are_at_and_others_get_the_rest(cluster: InMemoryCluster, ahead: int) -> None:
    (queue, other), go, stop = workers(cluster, 2), threading.Event(), threading.Event()
    begun: list[ShareRecord] = []

    def handle(record: ShareRecord) -> None:
        begun.append(record)
        if len(begun) > QUICK:
            go.wait(20)

    send(cluster, QUICK + 100)
    running = threading.Thread(target=partial(queue.run, handle, threads=4, stop=stop))
    running.start()
    try:
        _until(lambda: len(begun) == QUICK + 4)
        cluster.clock.advance(WAITS_S if ahead else 0)
        assert queue.statistics().held == 4
        assert_rest(other)
    finally:
        stop.set()
        go.set()
        running.join(20)


@pytest.mark.parametrize("ahead", [0, AHEAD])
def test_tasks_hold_what_they_are_at_and_others_get_the_rest(cluster: InMemoryCluster, ahead: int) -> None:
    queue, other = workers(cluster, 2)
    send(cluster, QUICK + 100)

    async def main() -> None:
        go, stop, all_begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
        begun: list[ShareRecord] = []

        async def handle(record: ShareRecord) -> None:
            begun.append(record)
            if len(begun) == QUICK + 4:
                all_begun.set()
            if len(begun) > QUICK:
                await go.wait()

        running = asyncio.create_task(queue.aio.run(handle, tasks=4, stop=stop))
        await asyncio.wait_for(all_begun.wait(), 20)
        cluster.clock.advance(WAITS_S if ahead else 0)
        assert queue.statistics().held == 4
        assert_rest(other)
        stop.set()
        go.set()
        await running

    asyncio.run(main())


# ------------------------------------------------------------ the measure


def paced(each_s: float, count: int) -> tuple[Pace, float]:
    """After so many messages, one by one."""
    pace, now = Pace(), 100.0
    pace.polled(now, 0, 0, 1)
    for done in range(1, count + 1):
        now += each_s
        pace.polled(now, done, 0, 1)
    return pace, now


def test_a_consumer_holds_what_is_done_in_half_a_second() -> None:
    assert Pace().holds(0.0, 0) == 2, "at first one beside the first"
    for each_s in (0.002, 0.01, 0.06, 0.4, 0.6, 20.0):
        pace, now = paced(each_s, 200)
        assert AHEAD_S / each_s * 0.95 - 1 <= pace.holds(now, 1) <= AHEAD_S / each_s


def test_a_message_that_takes_long_counts_while_it_is_not_done() -> None:
    pace, now = paced(0.01, 200)
    assert pace.holds(now, 1) == pytest.approx(50, abs=2)
    assert pace.holds(now + 20.0, 1) == 0
    pace.polled(now + 20.0, 201, 0, 1)
    assert pace.holds(now + 20.0, 1) == 0


def test_time_without_messages_is_no_work() -> None:
    for each_s in (0.001, 0.05):
        pace, now = paced(each_s, 200)
        pace.polled(now + each_s, 201, 0, 0)
        pace.polled(now + 3600.0, 201, 0, 1)
        assert pace.holds(now + 3600.0, 1) == pytest.approx(AHEAD_S / each_s, rel=0.1)


def test_jobs_that_end_together_are_no_fast_ones() -> None:
    """Sixty-four threads, and each job takes twenty seconds: one job in 0.3 s."""
    pace, now, done = Pace(), 0.0, 0
    pace.polled(now, 0, 0, 64)
    for _ in range(10):
        now += 20.0
        for _ in range(64):
            done += 1
            pace.polled(now, done, 63, 1)
            assert pace.holds(now, 64) < 10
