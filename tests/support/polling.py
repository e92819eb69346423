"""Helpers for consumer tests: poll until something is the case, bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.model import ConsumerRecord


def read(consumer: Consumer, count: int, timeout_s: float = 30.0) -> list[ConsumerRecord]:
    """Exactly ``count`` records, or an assertion error with what came."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(max_records=count - len(records), timeout_s=0.2)
    assert len(records) == count, [record.value for record in records]
    return records


def settle(
    consumers: Sequence[Consumer], done: Callable[[], bool], timeout_s: float = 30.0
) -> list[ConsumerRecord]:
    """Polls all of them until ``done()``; what they returned."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, [c.assignment() for c in consumers]
        for consumer in consumers:
            records += consumer.poll(timeout_s=0.02)
    return records


def values(records: Sequence[ConsumerRecord]) -> list[bytes]:
    """What was in them."""
    return [record.value for record in records]


def numbered(start: int, stop: int) -> list[bytes]:
    """Values to send: numbers from ``start`` up to ``stop``."""
    return [b"%d" % i for i in range(start, stop)]
