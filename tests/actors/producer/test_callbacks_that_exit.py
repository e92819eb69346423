"""A callback of a sent message runs in the producer's thread, which must outlive it."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from typing import Any

import pytest

from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import ProducerOf, values


def exits(_: Future[Any]) -> None:
    sys.exit(3)


def cancels(_: Future[Any]) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("callback", [exits, cancels])
def test_whatever_a_callback_raises_the_producer_goes_on(
    brokers: Brokers, topic: str, producer_of: ProducerOf, callback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    producer = producer_of(brokers)
    sent = producer.send(Message(topic, b"0"))
    sent.add_done_callback(callback)
    sent.result(10.0)
    producer.send(Message(topic, b"1")).result(10.0)
    assert values(brokers, topic) == [b"0", b"1"]
    assert "exception calling callback" in caplog.text
