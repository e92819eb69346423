"""The asyncio service, with ``AsyncFence``: ``python -m tests.fence_trials.aio_service JSON...``.

As ``service``. Some blocks of a producer give up in time, some wait so for a thread with ``Fence``, some fail
with a group because of a sibling, some hide what the fence raises.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import escrowmq
from escrowmq import AsyncProducer, Message
from escrowmq.integrations import AsyncFence, Fence
from tests.fence_trials.service import (
    DRIVERS,
    FAILS,
    GIVEN,
    HOLD_S,
    PAUSE_S,
    SLOW,
    THREADS,
    TIMEOUT_S,
    TRIES,
    Refused,
    Service,
    leaves,
    store,
)

#: Shares of orders whose producer's block behaves so.
TIMES_OUT, WAITS_FOR_A_THREAD, GROUPS, HIDES = 0.15, 0.1, 0.15, 0.1


class Taking:
    """Of one database."""

    def __init__(self, told: Service) -> None:
        self.told = told
        url, clock = sa.make_url(told.url), lambda: time.time() + told.ahead_s
        options = {} if told.url.startswith("sqlite") else {"pool_size": 6, "max_overflow": 4}
        driver = DRIVERS.get(url.drivername, url.drivername)
        self.fence = AsyncFence(
            create_async_engine(url.set(drivername=driver), **options), app=told.app, clock=clock
        )
        self._blocking = Fence(sa.create_engine(url), app=told.app, clock=clock)

    async def orders(self, producer: AsyncProducer, task: int) -> None:
        rng = random.Random(f"{self.told.name}/{task}")
        for number in range(1_000_000):
            order = f"{self.told.name}-{task}-{number}"
            given = rng.random() < GIVEN
            for _ in range(TRIES if given else 1):
                try:
                    await self._order(producer, order, given, rng)
                except Exception as error:
                    if not all(map(_is_expected, leaves(error))):
                        raise
                    await asyncio.sleep(PAUSE_S * rng.random())
                _forget_cancellations()
            await asyncio.sleep(PAUSE_S * rng.random())

    async def _order(self, producer: AsyncProducer, order: str, given: bool, rng: random.Random) -> None:
        message, shape = Message(self.told.topic, order.encode(), key=order.encode()), rng.random()
        hold_s = HOLD_S * rng.random() if rng.random() < SLOW else 0.0
        fails, limit_s, tx_id = rng.random() < FAILS, HOLD_S * rng.random(), order if given else None
        if shape >= TIMES_OUT + WAITS_FOR_A_THREAD + GROUPS + HIDES:
            async with self.fence.transaction(
                producer, message, query_id=order, tx_id=tx_id, transaction_timeout_s=TIMEOUT_S
            ) as (_, db):
                await _business(order, hold_s, fails, db)
            return
        async with producer.transaction(order, tx_id, transaction_timeout_s=TIMEOUT_S) as tx:
            await tx.send(message)
            await tx.prepare()

            async def locally() -> None:
                async with self.fence.local(tx) as db:
                    await _business(order, hold_s, fails, db)

            def in_a_thread() -> None:
                with self._blocking.local(tx) as db:
                    store(order, hold_s, fails, db)

            if shape < TIMES_OUT:
                async with asyncio.timeout(limit_s):
                    await locally()
            elif shape < TIMES_OUT + WAITS_FOR_A_THREAD:
                await asyncio.wait_for(asyncio.to_thread(in_a_thread), limit_s)
            elif shape < TIMES_OUT + WAITS_FOR_A_THREAD + GROUPS:
                async with asyncio.TaskGroup() as group:
                    group.create_task(locally())
                    group.create_task(_sibling(limit_s, rng.random() < FAILS * 3))
            else:
                await _hidden(locally)


def _forget_cancellations() -> None:
    """Nobody cancels these tasks. Up to Python 3.12 a TaskGroup that has failed leaves one counted, and
    asyncio.timeout of 3.11.2 then lets out CancelledError: tasks would end so, one after the other."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _is_expected(error: BaseException) -> bool:
    return isinstance(error, escrowmq.EscrowMQError | sa.exc.SQLAlchemyError | Refused | TimeoutError)


async def _business(order: str, hold_s: float, fails: bool, db: AsyncConnection) -> None:
    await db.execute(sa.text("insert into orders values (:id)"), {"id": order})
    await asyncio.sleep(hold_s)
    if fails:
        raise Refused(order)


async def _sibling(after_s: float, fails: bool) -> None:
    await asyncio.sleep(after_s)
    if fails:
        raise Refused


async def _hidden(locally: Callable[[], Awaitable[None]]) -> None:
    """What is raised says only that something was."""
    try:
        await locally()
    except Exception:
        failed = True
    else:
        failed = False
    if failed:
        raise Refused


async def _run(address: str, namespace: str, services: list[Taking]) -> None:
    with escrowmq.connect(address, namespace) as cluster:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for taking in services:
                producer = cluster.producer(app=taking.told.app, tx_status_querier=taking.fence).aio
                await stack.enter_async_context(producer)
                for task in range(THREADS):
                    group.create_task(taking.orders(producer, task))


def main() -> None:
    services = [Taking(Service.decode(told)) for told in sys.argv[1:]]
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    asyncio.run(_run(services[0].told.address, services[0].told.namespace, services))


def _end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
