"""Times longer than a lock of Python's can wait (292 years), of someone who wants no time-out at all."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.actors.client.statistics_timer import StatisticsTimer
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ProducerOf


@pytest.mark.parametrize("endless", [math.inf, 1e12])
@pytest.mark.parametrize("setting", ["delivery_timeout_s", "open_limit_wait_s", "buffer_wait_s"])
def test_a_producer_without_a_time_out_works(
    brokers: Brokers, topic: str, producer_of: ProducerOf, setting: str, endless: float
) -> None:
    """Every transaction failed with OverflowError, after it had been sent."""
    producer = producer_of(brokers, **{setting: endless})
    with producer.transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
    assert tx.state is COMMITTED
    (result,) = producer.send_transactions([Message(topic, b"b")], lambda prepared: None)
    assert result.state is COMMITTED and producer.flush(10.0)


def exits(_: Any) -> None:
    sys.exit(1)


@pytest.mark.parametrize(("callback", "interval_s"), [(exits, 0.1), (print, math.inf), (print, 1e300)])
def test_the_thread_of_statistics_lives_until_it_is_closed(
    callback: Callable[[Any], None], interval_s: float
) -> None:
    taken = threading.Semaphore(0)
    timer = StatisticsTimer(callback, interval_s, taken.release)
    if callback is exits:
        assert taken.acquire(timeout=10.0) and taken.acquire(timeout=10.0)
    timer._thread.join(0.2)
    assert timer._thread.is_alive()
    timer.close()
    assert not timer._thread.is_alive()
