"""Runs a handler in tasks of an event loop: acks what it has done, nacks what it could not, in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from escrowmq.actors.client.call_arguments import reason_of
from escrowmq.actors.client.pausing import Concerns, Gate
from escrowmq.actors.client.uncancellable import cancellations, uncancellable
from escrowmq.actors.share_consumer.core import ShareConsumerCore
from escrowmq.actors.share_consumer.held_batches import ShareRecord
from escrowmq.actors.share_consumer.running import go_on, put_off
from escrowmq.replication.errors import Closed, EscrowMQError, RecordNotHeld

log = logging.getLogger(__name__)

#: How long it waits for messages before it looks whether it is to end.
LOOK_S = 0.5


class Polls(Protocol):
    """The part of the asyncio interface that is needed here."""

    async def poll(self, max_records: int, timeout_s: float) -> list[ShareRecord]: ...


class AsyncRunner:
    """See the module's text. One ``run``."""

    def __init__(
        self,
        consumer: Polls,
        core: ShareConsumerCore,
        handler: Callable[[ShareRecord], Awaitable[object]],
        tasks: int,
        stop: asyncio.Event | None,
        concerns: Concerns,
    ) -> None:
        self._concerns, self._gate = concerns, Gate()
        self._consumer, self._core, self._handler = consumer, core, handler
        self._tasks, self._stop = tasks, stop or asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._fatal: BaseException | None = None

    async def run(self) -> None:
        """See :meth:`AsyncShareConsumer.run`."""
        self._core.check_open()
        try:
            await self._dispatch()
        except asyncio.CancelledError:
            self._cancel_handlers()
            raise
        finally:
            await self._all_ended()
        if not self._core.closed:
            await asyncio.to_thread(self._core.flush, self._core.config.call_timeout_s)
        if self._fatal is not None:
            raise self._fatal

    async def _all_ended(self) -> None:
        """Waits for handlers under way. If that is cancelled, so are they."""
        try:
            await self._wait()
        except asyncio.CancelledError:
            self._cancel_handlers()
            await self._wait()
            raise

    async def _wait(self) -> None:
        if self._running:
            await asyncio.wait(self._running)

    def _cancel_handlers(self) -> None:
        for task in self._running:
            task.cancel()

    async def _dispatch(self) -> None:
        while not self._stop.is_set() and self._fatal is None:
            free = self._tasks - len(self._running)
            if not free:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                continue
            if left_s := self._gate.left_s(self._core.clock()):
                await asyncio.to_thread(self._core.pause, min(left_s, LOOK_S))
                continue
            try:
                records = await self._consumer.poll(free, LOOK_S)
            except Closed:
                return
            except EscrowMQError as error:
                if not hasattr(error, "retry_after_s"):
                    raise
                log.warning("no messages: %s", error)
                await asyncio.sleep(LOOK_S)
                continue
            for record in records:
                task = asyncio.create_task(self._handle(record))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _handle(self, record: ShareRecord) -> None:
        patience_s = self._core.config.lease_extend_max_s
        limit, before = asyncio.timeout(patience_s), cancellations()
        try:
            async with limit:
                await self._handler(record)
        except (Exception, asyncio.CancelledError) as error:
            cancelled = isinstance(error, asyncio.CancelledError) and cancellations() > before
            if cancelled and not limit.expired():
                await asyncio.shield(self._say(record, self._core.release))
                raise
            reason = reason_of(error)
            if limit.expired():
                reason = f"the handler did not return within {patience_s:g} s"
            log.info("the handler failed at %s/%d, offset %d", *_address(record), exc_info=error)
            if not limit.expired() and self._concerns(error):
                put_off(self._gate, self._core, record, reason)
                await self._say(record, self._core.release)
            else:
                go_on(self._gate, self._core)
                await self._say(record, self._core.nack, None, reason)
        except BaseException as error:  # a signal, or another stop: ``run`` raises it, and ends the loop so
            self._fatal = error
            await self._say(record, self._core.release)
        else:
            go_on(self._gate, self._core)
            try:
                self._core.ack(record)
            except (RecordNotHeld, Closed):  # settled by the handler itself; or it comes again
                pass

    async def _say(self, record: ShareRecord, what: Callable[..., None], *about: object) -> None:
        try:
            await uncancellable(what, record, *about)
        except (RecordNotHeld, Closed):
            pass
        except EscrowMQError as error:  # the lease ends, and the message comes again
            log.warning("%s/%d, offset %d, could not be settled: %s", *_address(record), error)


def _address(record: ShareRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
