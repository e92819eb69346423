"""The clock of the cluster in memory: who waits for it, and what follows it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from escrowmq import ConfigError, Message, OffsetOutOfRange, UnknownTopic
from escrowmq.testing import InMemoryCluster


def test_time_stands_still_until_somebody_moves_it() -> None:
    start = datetime(2031, 5, 4, 12, 0, tzinfo=UTC)
    with InMemoryCluster(start=start) as cluster:
        cluster.admin.create_topic("orders")
        producer, consumer = cluster.producer("shop"), cluster.consumer("g", ["orders"])
        for _ in range(20):
            producer.send(Message("orders", b"x")).result(0)
        assert cluster.clock.now() == start
        assert consumer.poll(timeout_s=0) == [] or cluster.clock.now() == start
        cluster.clock.advance(1.5)
        sent = producer.send(Message("orders", b"y")).result(0)
        assert sent.timestamp == int(start.timestamp() * 1000) + 1_500
        while consumer.poll(timeout_s=0):
            pass
        before = cluster.clock.time()
        assert consumer.poll(timeout_s=2.5) == []
        assert cluster.clock.time() == pytest.approx(before + 2.5)
    for wrong in (-1, float("nan"), "1", True):
        with pytest.raises(ConfigError, match="number of seconds"):
            cluster.clock.advance(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="time zone"):
        InMemoryCluster(start=datetime(2031, 5, 4))


def test_another_thread_waits_in_earnest(cluster: InMemoryCluster) -> None:
    """Else a worker that polls all the time would make hours pass in a second."""
    took: list[float] = []

    def poll() -> None:
        with cluster.consumer("g", ["orders"]) as consumer:
            consumer.poll(timeout_s=0)
            began = time.monotonic()
            consumer.poll(timeout_s=0.2)
            took.append(time.monotonic() - began)

    before = cluster.clock.time()
    thread = threading.Thread(target=poll)
    thread.start()
    thread.join(10)
    assert took and took[0] >= 0.2
    assert cluster.clock.time() - before == pytest.approx(0.2, abs=0.01)


def test_a_thread_that_waits_is_woken_by_the_clock(cluster: InMemoryCluster) -> None:
    began, waiting = time.monotonic(), threading.Event()

    def poll() -> None:
        with cluster.consumer("g", ["orders"]) as consumer:
            consumer.poll(timeout_s=0)
            waiting.set()
            consumer.poll(timeout_s=60)

    thread = threading.Thread(target=poll)
    thread.start()
    assert waiting.wait(10)
    while thread.is_alive() and time.monotonic() - began < 10:
        cluster.clock.advance(61)
        thread.join(0.01)
    assert not thread.is_alive() and time.monotonic() - began < 10


def test_what_a_real_consumer_believes_after_some_seconds(cluster: InMemoryCluster) -> None:
    """For some seconds, it believes that a replica lags if its position or its topic is missing."""
    cluster.producer("shop").send(Message("orders", b"x")).result(0)
    with cluster.consumer("g", ["orders"], auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetOutOfRange):
            consumer.poll()
        consumer.seek("orders", 0, 0)
        assert len(consumer.poll()) == 1
        consumer.seek("orders", 0, 77)
        with pytest.raises(OffsetOutOfRange, match="77"):
            consumer.poll(timeout_s=20)
        consumer.seek("orders", 0, 1)
        assert consumer.poll(timeout_s=1) == []
        cluster.admin.delete_topic("orders")
        with pytest.raises(UnknownTopic, match="was deleted while it was read"):
            for _ in range(5):
                consumer.poll(timeout_s=5)


def test_retention_follows_the_clock(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("short", retention_ms=60_000)
    producer = cluster.producer("shop")
    producer.send(Message("short", b"old")).result(0)
    cluster.clock.advance(50)
    producer.send(Message("short", b"new")).result(0)
    cluster.clock.advance(25)
    (partition,) = cluster.admin.describe_topic("short").partitions
    assert (partition.start, partition.end) == (1, 2)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1, True, "1"])
def test_time_goes_on_by_a_number(cluster: InMemoryCluster, seconds: Any) -> None:
    with pytest.raises(ConfigError, match="advance needs a number of seconds"):
        cluster.clock.advance(seconds)
