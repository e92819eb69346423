"""A client for asyncio whose creation is cancelled is closed: nobody else could."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from escrowmq.actors.consumer import async_consumer
from escrowmq.actors.consumer.async_consumer import AsyncConsumer
from escrowmq.actors.share_consumer import async_share_consumer
from escrowmq.actors.share_consumer.async_share_consumer import AsyncShareConsumer

INFO: Any = None
LONG_S = 20.0


class SlowCore:
    """Is made only when the test lets it: a broker does not answer."""

    condition = background = None

    def __init__(self, info: object, **arguments: object) -> None:
        MADE.append(self)
        self.closed = threading.Event()
        self.begun.set()
        assert self.let.wait(LONG_S)

    def close(self) -> None:
        self.closed.set()

    begun, let = threading.Event(), threading.Event()


MADE: list[SlowCore] = []


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    SlowCore.begun, SlowCore.let = threading.Event(), threading.Event()
    monkeypatch.setattr(async_consumer, "ConsumerCore", SlowCore)
    monkeypatch.setattr(async_share_consumer, "ShareConsumerCore", SlowCore)


KINDS = [
    lambda: AsyncConsumer.create(INFO, group="g", topics=["orders"]),
    lambda: AsyncShareConsumer.create(INFO, group="g", topics=["orders"]),
]


@pytest.mark.parametrize("create", KINDS)
@pytest.mark.parametrize("first", [True, False], ids=["cancelled-first", "made-first"])
def test_a_cancelled_creation_leaves_no_client(create: Any, first: bool) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(create())
        assert await asyncio.to_thread(SlowCore.begun.wait, LONG_S)
        if first:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            SlowCore.let.set()
        else:
            SlowCore.let.set()
            threading.Event().wait(0.2)  # the loop does not notice yet
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    (core,) = MADE
    assert core.closed.wait(LONG_S)


@pytest.mark.parametrize("create", KINDS)
def test_a_creation_that_is_awaited_stays_open(create: Any) -> None:
    async def awaited() -> None:
        SlowCore.let.set()
        await create()

    asyncio.run(awaited())
    (core,) = MADE
    assert not core.closed.is_set()
