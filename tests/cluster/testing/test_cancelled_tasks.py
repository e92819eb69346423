"""Consumers in an event loop whose tasks are cancelled at a bad moment: nothing is lost, nothing goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from escrowmq import AsyncConsumer, Consumer, Message, RetryPolicy
from escrowmq.testing import InMemoryCluster

ORDERS = pytest.mark.parametrize("order", ["concurrent", "ordered"])


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        with made.producer("shop") as producer:
            for value in (b"bad", b"good"):
                producer.send(Message("orders", value)).result(0)
        yield made


def consumer_of(cluster: InMemoryCluster, order: str) -> Consumer:
    retry = RetryPolicy(order=order)
    return cluster.consumer("mail", ["orders"], auto_offset_reset="earliest", retry=retry)


class BusyThreads:
    """The event loop has one thread, which is busy until ``free`` is called."""

    def __init__(self) -> None:
        loop, self._end = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, self._end.wait)

    async def free(self) -> None:
        """And what waited for it is done."""
        self._end.set()
        await asyncio.to_thread(int)


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def by_run(consumer: AsyncConsumer) -> None:
    """The handler fails, and the task is cancelled before the nack has got a thread."""
    failed = asyncio.Event()
    threads: list[BusyThreads] = []

    async def handler(record: Any) -> None:
        threads.append(BusyThreads())
        failed.set()
        raise ValueError("no")

    running = asyncio.create_task(consumer.run(handler))
    await failed.wait()
    await cancelled(running)
    await threads[0].free()


async def by_hand(consumer: AsyncConsumer) -> None:
    (record,) = await consumer.poll(1)
    threads = BusyThreads()

    async def nack() -> None:
        await consumer.nack(record)

    waiting = asyncio.create_task(nack())
    await asyncio.sleep(0)
    await cancelled(waiting)
    await threads.free()


async def by_rejecting(consumer: AsyncConsumer) -> None:
    (record,) = await consumer.poll(1)
    threads = BusyThreads()
    waiting = asyncio.create_task(consumer.reject(record, "no"))
    await asyncio.sleep(0)
    await cancelled(waiting)
    await threads.free()


@ORDERS
@pytest.mark.parametrize("fail", [by_run, by_hand, by_rejecting])
def test_a_failure_counts_though_its_task_was_cancelled(
    cluster: InMemoryCluster, order: str, fail: Callable[[AsyncConsumer], Awaitable[None]]
) -> None:
    consumer = consumer_of(cluster, order)

    async def main() -> None:
        await fail(consumer.aio)
        await consumer.aio.poll(timeout_s=0.1)
        await consumer.aio.commit()

    asyncio.run(main())
    dead = [letter.value for letter in cluster.admin.dead_letters("mail")]
    cluster.clock.advance(5)
    again = [record.value for record in consumer.poll()]
    assert b"bad" in dead + again, "the commit has passed it"


def test_a_share_consumer_is_cancelled_while_it_waits_for_its_last_handlers(cluster: InMemoryCluster) -> None:
    cut_off: list[bytes] = []

    async def handler(record: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut_off.append(record.value)
            raise

    async def main() -> None:
        queue = cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest")
        stop = asyncio.Event()
        running = asyncio.create_task(queue.aio.run(handler, tasks=3, stop=stop))
        while queue.statistics().records < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.sleep(0.7)
        assert not running.done() and not cut_off
        await cancelled(running)
        assert sorted(cut_off) == [b"bad", b"good"]
        await queue.aio.close()
        other = cluster.share_consumer("mail", ["orders"]).aio
        records = [record for _ in range(2) for record in await other.poll(timeout_s=1)]
        assert [record.attempt for record in records] == [1, 1], "they were given back"

    asyncio.run(main())
