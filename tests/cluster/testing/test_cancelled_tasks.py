"""Consumers in an event loop whose tasks are cancelled at a bad moment: nothing is lost, nothing goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from escrowmq import AsyncConsumer, Consumer, EscrowMQError, Message, RetryPolicy
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


async def _a_group_that_fails() -> None:
    """A TaskGroup whose child fails while the group waits for the others. Up to Python 3.12 it leaves a
    cancellation of its task counted for good; ``asyncio.timeout`` of 3.11.2 then lets out CancelledError."""

    async def fail() -> None:
        raise ZeroDivisionError

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(5))
            group.create_task(fail())


@pytest.mark.parametrize("order", ["concurrent", "ordered", "share"])
def test_a_consumer_goes_on_after_a_group_of_tasks_has_failed(cluster: InMemoryCluster, order: str) -> None:
    """Nobody has cancelled ``run``, whose polls find nothing for a while."""
    seen = list[tuple[bytes, int]]()
    stop = asyncio.Event()

    async def handle(record: Any) -> None:
        await _a_group_that_fails()
        seen.append((record.value, record.attempt))
        if record.value == b"late":
            stop.set()

    async def main() -> None:
        await _a_group_that_fails()
        client: Any
        if order == "share":
            client = cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest")
        else:
            client = consumer_of(cluster, order)
        running = asyncio.create_task(client.aio.run(handle, stop=stop))
        while len(seen) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)  # polls find nothing
        assert not running.done()
        with cluster.producer("shop") as producer:
            producer.send(Message("orders", b"late")).result(0)
        await asyncio.wait([running], timeout=30)
        assert running.done() and not running.cancelled() and running.exception() is None
        await client.aio.close()

    asyncio.run(main())
    assert sorted(seen) == [(b"bad", 1), (b"good", 1), (b"late", 1)]


def test_a_handler_that_takes_too_long_has_failed_though_a_group_of_its_tasks_had(
    cluster: InMemoryCluster,
) -> None:
    """It is not taken for a handler whose ``run`` is cancelled."""
    cluster.admin.set_group("mail", max_attempts=1)

    async def handle(record: Any) -> None:
        await _a_group_that_fails()
        await asyncio.sleep(60)

    async def main() -> None:
        queue = cluster.share_consumer(
            "mail", ["orders"], auto_offset_reset="earliest", lease_s=1, lease_extend_max_s=1
        )
        stop = asyncio.Event()
        running = asyncio.create_task(queue.aio.run(handle, tasks=2, stop=stop))
        async with asyncio.timeout(30):
            while len(list(cluster.admin.dead_letters("mail"))) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        stop.set()
        await running
        await queue.aio.close()

    asyncio.run(main())
    reasons = {letter.reason for letter in cluster.admin.dead_letters("mail")}
    assert reasons == {"the handler did not return within 1 s"}


@pytest.mark.parametrize("aio", [True, False])
@pytest.mark.parametrize("order", ["concurrent", "ordered", "share"])
def test_a_handler_that_lets_out_a_cancellation_of_its_own_has_failed(
    cluster: InMemoryCluster, order: str, aio: bool
) -> None:
    """Nobody has cancelled ``run``, which goes on."""
    cluster.admin.set_group("mail", delays_s=[0])
    seen = list[tuple[bytes, int]]()
    wanted = {(b"bad", 1), (b"bad", 2), (b"good", 1)}
    stop: Any = asyncio.Event() if aio else threading.Event()

    async def handle(record: Any) -> None:
        seen.append((record.value, record.attempt))
        if wanted <= set(seen) or len(seen) > 10:
            stop.set()
        if record.value == b"bad" and record.attempt == 1:
            library = asyncio.get_running_loop().create_future()
            library.cancel("of a library's task")
            await library

    client: Any
    if order == "share":
        client = cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest")
        threads = {"handler": lambda record: asyncio.run(handle(record)), "threads": 1}
    else:
        client = consumer_of(cluster, order)
        threads = {"handler": lambda record: asyncio.run(handle(record))}

    async def run() -> None:
        await _a_group_that_fails()  # no business of the handler's
        await client.aio.run(handle, stop=stop)

    async def main() -> bool:
        running = asyncio.create_task(run())
        await asyncio.wait([running], timeout=30)
        return running.done() and not running.cancelled() and running.exception() is None

    if aio:
        assert asyncio.run(main())
    else:
        client.run(**threads, stop=stop)
    assert set(seen) == wanted
    if order == "ordered":
        assert seen == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
    client.close()


def test_a_handler_of_an_assignment_that_lets_out_a_cancellation_is_told(cluster: InMemoryCluster) -> None:
    async def on_assign(partitions: Any) -> None:
        raise asyncio.CancelledError

    async def run(consumer: Consumer) -> None:
        await _a_group_that_fails()
        await consumer.aio.run(ignored)

    async def main() -> None:
        consumer = cluster.consumer(
            "mail", ["orders"], on_assign=on_assign, retry=RetryPolicy(order="ordered")
        )
        running = asyncio.create_task(run(consumer))
        await asyncio.wait([running], timeout=30)
        with pytest.raises(EscrowMQError, match="on_assign raised the cancellation"):
            await running
        assert await consumer.aio.poll(timeout_s=1) == [], "it is not called again"
        await consumer.aio.close()

    async def ignored(record: Any) -> None: ...

    asyncio.run(main())
