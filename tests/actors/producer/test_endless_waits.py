"""Times longer than a lock of Python's can wait (292 years), of someone who wants no time-out at all."""

from __future__ import annotations

import math

import pytest

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
