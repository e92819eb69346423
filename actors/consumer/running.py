"""Runs a handler for each record of a consumer with retries: nacks what it could not handle, and commits.

Records are taken one by one. So after a nack nothing of its partition is in hand that would have to be left
out, and a commit covers exactly what was handled or nacked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol

from escrowmq.actors.client.failure_arguments import reason_of
from escrowmq.actors.client.handler_check import check_returned
from escrowmq.actors.client.surely import surely
from escrowmq.actors.consumer.core import ConsumerCore
from escrowmq.actors.consumer.ordered_retries import OrderedRetries
from escrowmq.actors.consumer.retries import NEEDS_RETRY, Retries
from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    DamagedValue,
    EscrowMQError,
    MemberFenced,
    NotDeserializable,
    StaleMember,
)
from escrowmq.replication.model import ConsumerRecord

log = logging.getLogger(__name__)

#: How long a runner waits for a record before it looks whether it is to end.
LOOK_S = 0.5
#: A commit is one write of the log: so many records or so much time share one.
COMMIT_RECORDS, COMMIT_S = 500, 1.0


class Polls(Protocol):
    """The part of the asyncio interface that is needed here."""

    async def poll(self, max_records: int, timeout_s: float) -> list[ConsumerRecord]: ...


class _Run:
    """What both ways to run share: what becomes of a failure, and when to commit."""

    def __init__(self, core: ConsumerCore, ordered: bool | None) -> None:
        retries = core.retries
        if not isinstance(retries, Retries):
            raise ConfigError(f"run {NEEDS_RETRY}")
        if ordered is not None and ordered != isinstance(retries, OrderedRetries):
            raise ConfigError(f"ordered={ordered!r} contradicts the consumer's RetryPolicy; leave it out")
        core.check_open()
        self.core, self._retries = core, retries
        self._handled, self._committed_at = 0, core.clock()

    def failed(self, record: ConsumerRecord, failure: BaseException) -> None:
        """The handler raised."""
        place = record.topic, record.partition, record.offset
        log.info("the handler failed at %s/%d, offset %d", *place, exc_info=failure)
        if self._retries.last is record:  # the handler has nacked it itself
            return
        try:
            self._retries.nack(record, None, reason_of(failure))
        except Closed:
            raise
        except EscrowMQError as error:  # it comes again, here or at the partition's next reader
            log.warning("%s/%d, offset %d, could not be nacked: %s", *place, error)

    def troubled(self, error: EscrowMQError) -> bool:
        """``poll`` raised. False: it is no use to go on."""
        if isinstance(error, NotDeserializable | DamagedValue):
            try:
                self._retries.unreadable(error)
            except Closed:
                raise
            except EscrowMQError as again:
                log.warning("%s; it could not be nacked: %s", error, again)
            return True
        if not hasattr(error, "retry_after_s"):
            return False
        log.warning("no messages: %s", error)
        return True

    def commit_due(self, records: int) -> bool:
        """So many more were handled. Whether to commit now: also before other members read on."""
        self._handled += records
        if not self._handled:
            return False
        member, now = self.core.membership, self.core.clock()
        moves = member is not None and member.offer is not None
        full = self._handled >= COMMIT_RECORDS or now >= self._committed_at + COMMIT_S
        return moves or full or not records

    def commit(self) -> None:
        """Makes the place durable, or says why not: the next commit covers it."""
        try:
            self.core.commit(None)
        except (Closed, MemberFenced):
            raise
        except EscrowMQError as error:
            log.warning("the place of group %s could not be committed: %s", self.core.group, error)
        self._handled, self._committed_at = 0, self.core.clock()


def run(
    core: ConsumerCore,
    handler: Callable[[ConsumerRecord], object],
    ordered: bool | None,
    stop: threading.Event | None,
) -> None:
    """See :meth:`Consumer.run`."""
    work = _Run(core, ordered)
    with contextlib.suppress(Closed):
        while stop is None or not stop.is_set():
            try:
                records = core.poll(core.taking.records, 1, LOOK_S)
            except EscrowMQError as error:
                if isinstance(error, Closed) or not work.troubled(error):
                    raise
                continue
            for record in records:
                try:
                    check_returned(handler(record))
                except Exception as failure:
                    work.failed(record, failure)
                except BaseException as failure:
                    work.failed(record, failure)
                    work.commit()
                    raise
            if work.commit_due(len(records)):
                work.commit()
        core.commit(None)


async def run_async(
    consumer: Polls,
    core: ConsumerCore,
    handler: Callable[[ConsumerRecord], Awaitable[object]],
    ordered: bool | None,
    stop: asyncio.Event | None,
) -> None:
    """See :meth:`AsyncConsumer.run`."""
    work = _Run(core, ordered)
    with contextlib.suppress(Closed):
        while stop is None or not stop.is_set():
            try:
                records = await consumer.poll(1, LOOK_S)
            except EscrowMQError as error:
                if isinstance(error, Closed) or not await asyncio.to_thread(work.troubled, error):
                    raise
                continue
            for record in records:
                try:
                    await handler(record)
                except asyncio.CancelledError:
                    with contextlib.suppress(StaleMember, Closed):
                        _go_back_to(core, record)
                    raise
                except Exception as failure:
                    await surely(work.failed, record, failure)
            if work.commit_due(len(records)):
                await asyncio.to_thread(work.commit)
        await asyncio.to_thread(core.commit, None)


def _go_back_to(core: ConsumerCore, record: ConsumerRecord) -> None:
    """It was not handled. Before it in its partition there may be others that wait for redelivery, which
    ``seek`` forgets: reading goes back to the first of them."""
    tp = record.topic, record.partition
    with core.condition:
        waiting = core.redelivery.floor(tp)
        core.seek(*tp, record.offset if waiting is None else min(waiting, record.offset))
