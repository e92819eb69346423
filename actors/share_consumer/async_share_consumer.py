"""The share consumer for asyncio: the same core, awaited.

``poll`` takes what is there without blocking, and between two attempts waits until the core has something
new; so a cancelled poll has taken nothing. Calls that need a broker's answer run in a thread; a cancelled one
still takes effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Self

from escrowmq.actors.client.background import LoopCondition
from escrowmq.actors.client.call_arguments import check_wait
from escrowmq.actors.client.closing import AsyncClosing
from escrowmq.actors.client.pausing import HandlesOnce, PauseOn, once
from escrowmq.actors.client.pausing import pause_on as concerns_of
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.uncancellable import made, uncancellable
from escrowmq.actors.client.values import Deserializer
from escrowmq.actors.consumer.arguments import check_poll
from escrowmq.actors.share_consumer.async_running import AsyncRunner
from escrowmq.actors.share_consumer.config import ShareConsumerConfig, check_threads
from escrowmq.actors.share_consumer.core import ShareConsumerCore
from escrowmq.actors.share_consumer.held_batches import ShareRecord
from escrowmq.actors.share_consumer.statistics import ShareConsumerStatistics
from escrowmq.replication.errors import Closed


class AsyncShareConsumer(AsyncClosing):
    """``share_consumer.aio``, or created by ``await AsyncShareConsumer.create(...)``. An async context
    manager.

    Meaning and errors are those of :class:`ShareConsumer`. Belongs to the event loop that polls it
    first, and when that loop is closed, to the next one; ``poll`` in another loop raises ConfigError.
    """

    def __init__(self, core: ShareConsumerCore) -> None:
        self._core, self._news = core, LoopCondition(core.condition, core.background)
        self._settling: set[asyncio.Future[None]] = set()

    @classmethod
    async def create(
        cls,
        info: ClusterInfo,
        *,
        group: str,
        topics: Sequence[str],
        config: ShareConsumerConfig | None = None,
        value_deserializer: Deserializer | None = None,
        tags: Collection[str] | None = None,
    ) -> Self:
        """As ``ShareConsumer(...)``, which calls the brokers. If it is cancelled, the consumer is closed as
        soon as it is made."""
        core = await made(
            ShareConsumerCore,
            info,
            group=group,
            topics=topics,
            config=config,
            value_deserializer=value_deserializer,
            tags=tags,
        )
        return cls(core)

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[ShareRecord]:
        """As :meth:`ShareConsumer.poll`; safe to cancel."""
        check_poll(max_records, timeout_s)
        core = self._core
        deadline = core.clock() + timeout_s
        while True:
            if core.must_begin:
                await asyncio.to_thread(core.begin_again)
            self._news.looking()
            records, unreadable = core.take(max_records)
            if unreadable:  # without waiting: a cancelled poll must not lose what was taken together with it
                task = asyncio.ensure_future(asyncio.to_thread(core.done_with, unreadable))
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)
            if records:
                return records
            if core.must_begin:
                continue
            if core.clock() >= deadline:
                core.raise_trouble()
                return []
            core.waits(max_records)
            try:
                await self._news.wait(deadline)
            finally:
                core.waits(-max_records)

    async def __aiter__(self) -> AsyncIterator[ShareRecord]:
        while True:
            try:
                records = await self.poll(1, 1.0)
            except Closed:
                return
            for record in records:
                yield record

    async def run(
        self,
        handler: Callable[..., Awaitable[object]],
        *,
        tasks: int = 64,
        stop: asyncio.Event | None = None,
        inbox: HandlesOnce | None = None,
        pause_on: PauseOn = (),
    ) -> None:
        """Awaits ``handler(record)`` in so many tasks, until ``stop`` is set, this consumer is closed, or
        ``run`` is cancelled, which cancels the handlers and gives their records back.

        As :meth:`ShareConsumer.run`; a handler that takes longer than ``lease_extend_max_s`` is cancelled,
        and its record nacked. ``inbox``: an AsyncInbox.
        """
        handle = once(handler, inbox, self._core.group, awaited=True)
        concerns = concerns_of(pause_on, inbox)
        await AsyncRunner(self, self._core, handle, check_threads(tasks, "tasks"), stop, concerns).run()

    def ack(self, record: ShareRecord) -> None:
        """As :meth:`ShareConsumer.ack`; does not wait."""
        self._core.ack(record)

    async def ack_with(self, record: ShareRecord, result: bytes) -> None:
        """As :meth:`ShareConsumer.ack` with a ``result``."""
        await uncancellable(self._core.ack, record, result)

    async def nack(self, record: ShareRecord, delay_s: float | None = None, reason: str = "") -> None:
        """As :meth:`ShareConsumer.nack`."""
        await uncancellable(self._core.nack, record, delay_s, reason)

    async def reject(self, record: ShareRecord, reason: str = "") -> None:
        """As :meth:`ShareConsumer.reject`."""
        await uncancellable(self._core.reject, record, reason)

    async def release(self, record: ShareRecord) -> None:
        """As :meth:`ShareConsumer.release`."""
        await uncancellable(self._core.release, record)

    async def extend(self, record: ShareRecord, lease_s: float) -> None:
        """As :meth:`ShareConsumer.extend`."""
        await uncancellable(self._core.extend, record, lease_s)

    async def flush(self, timeout_s: float | None = None) -> None:
        """As :meth:`ShareConsumer.flush`."""
        check_wait(timeout_s)
        wait_s = self._core.config.call_timeout_s if timeout_s is None else timeout_s
        await asyncio.to_thread(self._core.flush, wait_s)

    def statistics(self) -> ShareConsumerStatistics:
        """As :meth:`ShareConsumer.statistics`; does not wait."""
        return self._core.statistics()

    async def close(self) -> None:
        """As :meth:`ShareConsumer.close`."""
        await asyncio.to_thread(self._core.close)
