"""A producer's asyncio interface in event loops with few threads, that end early, and that are many."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ProducerOf, open_transactions, values


@pytest.mark.parametrize("table", [False, True])
def test_callbacks_of_many_batches_may_use_the_loop_s_threads(
    brokers: Brokers, topic: str, producer_of: ProducerOf, table: bool
) -> None:
    """Each batch held one of them while its callback ran: as many batches as threads waited for ever."""
    producer = producer_of(brokers)

    async def store(prepared: Any) -> None:
        await asyncio.to_thread(lambda: None)  # its database has no asyncio driver

    def send() -> Any:
        if table:
            pyarrow = pytest.importorskip("pyarrow")
            return producer.aio.send_transactions_table(topic, pyarrow.table({"value": [b"a"]}), store)
        return producer.aio.send_transactions([Message(topic, b"a")], store)

    async def main() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with asyncio.timeout(20):
            return await asyncio.gather(*(send() for _ in range(4)))

    results = asyncio.run(main())
    assert [one.state for many in results for one in many] == [COMMITTED] * 4


def test_a_batch_whose_loop_ends_in_its_callback_is_left_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    loop = asyncio.new_event_loop()
    began = threading.Event()

    async def store(prepared: Any) -> None:
        began.set()
        loop.stop()
        await asyncio.sleep(60)

    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="stopped before"):
        loop.run_until_complete(producer.aio.send_transactions([Message(topic, b"a")], store))
    assert began.is_set()
    loop.close()
    for thread in threading.enumerate():
        if thread.name.startswith("escrowmq-send"):
            thread.join(10.0)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert left == []
    assert len(open_transactions(brokers, topic)) == 1 and values(brokers, topic) == []


def test_a_producer_forgets_event_loops_that_have_ended(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    loops = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await producer.aio.send(Message(topic, b"a"))

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1  # the last one, until there is another
