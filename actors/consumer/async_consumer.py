"""The consumer for asyncio: the same core, awaited.

``poll`` takes what has been fetched without blocking, and between two attempts waits until the core has
something new; so a cancelled poll has taken nothing, and no record is lost. Calls that need a broker's answer
run in a thread; a cancelled one still takes effect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Self

from escrowmq.actors.client.background import LoopCondition
from escrowmq.actors.client.closing import AsyncClosing
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.group_work import GroupWork
from escrowmq.actors.client.pausing import HandlesOnce, PauseOn, once
from escrowmq.actors.client.pausing import pause_on as concerns_of
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.uncancellable import made, uncancellable
from escrowmq.actors.client.values import Deserializer
from escrowmq.actors.consumer import arguments as args
from escrowmq.actors.consumer.config import ConsumerConfig, RetryPolicy
from escrowmq.actors.consumer.core import ConsumerCore, T, Take
from escrowmq.actors.consumer.group_work import go_back, group_work
from escrowmq.actors.consumer.rebalance import Handler, Handlers
from escrowmq.actors.consumer.retries import Retries
from escrowmq.actors.consumer.running import run_async
from escrowmq.actors.consumer.statistics import ConsumerStatistics
from escrowmq.replication.errors import Closed
from escrowmq.replication.model import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa


class _Done:
    """To be awaited or not: it is done."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class AsyncConsumer(AsyncClosing):
    """``consumer.aio``, or created by ``await AsyncConsumer.create(...)``. An async context manager.

    Meaning and errors are those of :class:`Consumer`. Belongs to the event loop that polls it
    first, and when that loop is closed, to the next one; ``poll`` in another loop raises ConfigError.
    """

    def __init__(self, core: ConsumerCore) -> None:
        self._core, self._news = core, LoopCondition(core.condition, core.background)

    @classmethod
    async def create(
        cls,
        info: ClusterInfo,
        *,
        group: str | None = None,
        topics: Sequence[str] = (),
        auto_offset_reset: str | None = None,
        config: ConsumerConfig | None = None,
        on_assign: Handler | None = None,
        on_revoke: Handler | None = None,
        on_lost: Handler | None = None,
        instance_id: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        value_deserializer: Deserializer | None = None,
        tags: Collection[str] | None = None,
        retry: RetryPolicy | None = None,
    ) -> Self:
        """As ``Consumer(...)``, which calls the brokers if ``topics`` are given. If it is cancelled, the
        consumer is closed as soon as it is made."""
        core = await made(
            ConsumerCore,
            info,
            group=group,
            topics=topics,
            auto_offset_reset=auto_offset_reset,
            config=config,
            handlers=Handlers(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost),
            instance_id=instance_id,
            pattern=pattern,
            value_deserializer=value_deserializer,
            tags=tags,
            retry=retry,
        )
        return cls(core)

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[ConsumerRecord]:
        """As :meth:`Consumer.poll`; safe to cancel. Awaits handlers that are coroutine functions; cancelling
        ``poll`` cancels the handler that it awaits, and that one is not called again."""
        args.check_poll(max_records, timeout_s)
        return await self._poll(self._core.taking.records, max_records, timeout_s)

    async def poll_arrow(self, max_records: int = args.ARROW_RECORDS, timeout_s: float = 1.0) -> pa.Table:
        """As :meth:`Consumer.poll_arrow`; safe to cancel, as :meth:`poll`."""
        args.check_poll(max_records, timeout_s)
        table_of = args.check_arrow(self._core.taking.deserializes)
        return table_of(await self._poll(self._core.taking.batches, max_records, timeout_s))

    async def _poll(self, take: Take[T], max_records: int, timeout_s: float) -> list[T]:
        core = self._core
        if core.retries.has_waiting:
            await asyncio.to_thread(core.retries.settle_waiting)
        deadline, me = core.clock() + timeout_s, asyncio.current_task()
        while True:
            self._news.looking()
            found, look_again, call = core.take(take, max_records, me)
            if found:
                return found
            if call is not None:
                assert core.telling is not None
                await core.telling.call_async(call)
                continue
            now = core.clock()
            if now >= deadline:
                core.raise_trouble()
                return []
            until = min(deadline, look_again)
            if until <= now:
                await asyncio.sleep(0)
                continue
            await self._news.wait(until)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            try:
                records = await self.poll(1, 1.0)
            except Closed:
                return
            for record in records:
                yield record

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """As :meth:`Consumer.commit`."""
        await asyncio.to_thread(self._core.commit, offsets)

    def group_work(self) -> GroupWork:
        """As :meth:`Consumer.group_work`. Blocks: ``AsyncTransaction.send_offsets`` calls it in a thread."""
        return group_work(self._core)

    def no_group_work(self) -> None:
        """``group_work`` was not waited for: what ``poll`` has returned is polled again. Does not wait."""
        go_back(self._core)

    async def committed(self, topic: str, partition: int) -> int | None:
        """As :meth:`Consumer.committed`."""
        return await asyncio.to_thread(self._core.committed, topic, partition)

    async def position(self, topic: str, partition: int) -> int:
        """As :meth:`Consumer.position`."""
        return await asyncio.to_thread(self._core.position, topic, partition)

    async def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: Handler | None = None,
        on_revoke: Handler | None = None,
        on_lost: Handler | None = None,
    ) -> None:
        """As :meth:`Consumer.subscribe`; handlers may be coroutine functions."""
        handlers = Handlers(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        await asyncio.to_thread(self._core.subscribe, topics, handlers, pattern)

    async def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """As :meth:`Consumer.assign`."""
        await asyncio.to_thread(self._core.assign, partitions)

    async def seek_to_time(self, topic: str, partition: int, ts: int | datetime) -> int:
        """As :meth:`Consumer.seek_to_time`."""
        return await asyncio.to_thread(self._core.seek_to_time, topic, partition, ts)

    def statistics(self) -> ConsumerStatistics:
        """As :meth:`Consumer.statistics`; does not wait."""
        return self._core.statistics()

    def assignment(self) -> list[TopicPartition]:
        """As :meth:`Consumer.assignment`; does not wait."""
        return self._core.assignment()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """As :meth:`Consumer.seek`; does not wait."""
        self._core.seek(topic, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """As :meth:`Consumer.seek_to_beginning`; does not wait."""
        self._core.look_up(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """As :meth:`Consumer.seek_to_end`; does not wait."""
        self._core.look_up(partitions, "latest")

    def nack(self, record: ConsumerRecord, delay_s: float | None = None, reason: str = "") -> Awaitable[None]:
        """As :meth:`Consumer.nack`. With ``retry``, await it: it is durable then. Without, it is done when
        this returns."""
        retries = self._core.retries
        if isinstance(retries, Retries):
            return uncancellable(retries.nack, record, delay_s, reason)
        retries.nack(record, delay_s, reason)
        return _Done()

    async def reject(self, record: ConsumerRecord, reason: str = "") -> None:
        """As :meth:`Consumer.reject`."""
        await uncancellable(self._core.retries.reject, record, reason)

    async def run(
        self,
        handler: Callable[..., Awaitable[object]],
        *,
        ordered: bool | None = None,
        stop: asyncio.Event | None = None,
        inbox: HandlesOnce | None = None,
        pause_on: PauseOn = (),
    ) -> None:
        """As :meth:`Consumer.run`, with a coroutine. Cancelling it cancels the handler; its record was not
        handled, and ``poll`` returns it again. If a handler lets out the CancelledError of something that it
        awaited itself, it has failed. ``inbox``: an AsyncInbox."""
        handle = once(handler, inbox, self._core.group, awaited=True)
        await run_async(self, self._core, handle, ordered, stop, concerns_of(pause_on, inbox))

    def pause(self, *partitions: TopicPartition) -> None:
        """As :meth:`Consumer.pause`; does not wait."""
        self._core.set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """As :meth:`Consumer.resume`; does not wait."""
        self._core.set_paused(partitions, False)

    async def close(self) -> None:
        """As :meth:`Consumer.close`."""
        try:
            await self._say_goodbye()
        finally:
            await asyncio.to_thread(self._core.close)

    async def __aexit__(self, *exception: object) -> None:
        """As the end of a ``with`` block of :class:`Consumer`."""
        if not any(exception):
            await self.close()
        else:
            await asyncio.to_thread(self._core.close)

    async def _say_goodbye(self) -> None:
        telling = self._core.telling
        if telling is None:
            return
        call = await asyncio.to_thread(telling.leaving, asyncio.current_task())
        if call is not None:
            try:
                await telling.call_async(call)
            finally:
                await self._say_goodbye()
