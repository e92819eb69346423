"""A producer is closed while transactions wait until fewer are open: nothing else would ever wake them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq.replication.errors import Closed, EscrowMQError
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import ProducerOf, Unique, never


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One open transaction per app and topic, which is open."""
    running = Brokers(tmp_path_factory.mktemp("closed"), replicas=1, open_transactions_max=1)
    yield running
    running.close()


@pytest.fixture
def full(narrow: Brokers, unique: Unique, producer_of: ProducerOf) -> str:
    """A topic in which no more transactions may be opened."""
    name = unique("full")
    narrow.topic(name)
    with producer_of(narrow).transaction() as tx:
        tx.send(Message(name, b"first"))
        tx.prepare()
        tx.unknown()
    return name


def test_a_coroutine_is_told(narrow: Brokers, full: str, producer_of: ProducerOf) -> None:
    producer = producer_of(narrow, open_limit_wait_s=60.0)

    async def main() -> None:
        call = asyncio.ensure_future(producer.aio.send_message_in_transaction(Message(full, b"a"), never))
        await asyncio.sleep(0.5)
        assert not call.done()
        await producer.aio.close()
        async with asyncio.timeout(10.0):
            await call

    with pytest.raises(Closed):
        asyncio.run(main())


@pytest.mark.parametrize("many", [False, True])
def test_a_thread_is_told(narrow: Brokers, full: str, producer_of: ProducerOf, many: bool) -> None:
    producer = producer_of(narrow, open_limit_wait_s=60.0)
    ended: list[Any] = []

    def call() -> None:
        try:
            if many:
                ended.append(producer.send_transactions([Message(full, b"a")], lambda prepared: None))
            else:
                producer.send_message_in_transaction(Message(full, b"a"), never)
        except EscrowMQError as error:
            ended.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    time.sleep(0.5)
    assert not ended
    producer.close()
    thread.join(10.0)
    (error,) = [result.error for result in ended[0]] if many else ended
    assert isinstance(error, Closed)
