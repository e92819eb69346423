"""Runs a handler for each record of a consumer with retries: nacks what it could not handle, and commits.

Records are taken one by one. So after a nack nothing of its partition is in hand that would have to be left
out, and a commit covers exactly what was handled or nacked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from escrowmq.actors.client.call_arguments import reason_of
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.pausing import PAUSES, TELL_S, Concerns, check_returned
from escrowmq.actors.client.uncancellable import cancellations, uncancellable
from escrowmq.actors.consumer.core import ConsumerCore
from escrowmq.actors.consumer.ordered_retries import OrderedRetries
from escrowmq.actors.consumer.retries import AGAIN_S, NEEDS_RETRY, Retries
from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    DamagedValue,
    EscrowMQError,
    InvalidMessage,
    MemberFenced,
    NotDeserializable,
    Overloaded,
    StaleMember,
)
from escrowmq.replication.model import ConsumerRecord

# ------------------------------------------------------------------------------------------------------------
# Records that a handler could not handle now, or whose failure could not be kept: they come again, and no
# commit passes them.


def put_off(core: ConsumerCore, record: ConsumerRecord, pause_s: float, why: str) -> None:
    """The record cannot be handled now: its partition waits, and goes on with it."""
    with core.condition:
        state = core.positions.get((record.topic, record.partition))
        if state is None or state.position is None or state.position <= record.offset:
            return  # it comes again anyway, here or elsewhere
        until = core.clock() + pause_s
        try:
            core.redelivery.add(record, until)
        except Overloaded:
            go_back_to(core, record)
        core.positions.suspend(state, until)
        state.put_off = why
        core.counted.pauses += 1
        core.condition.notify_all()


def goes_on(core: ConsumerCore, record: ConsumerRecord) -> None:
    """A record of a partition that was put off has been handled, or has failed by itself."""
    with core.condition:
        if (state := core.positions.get((record.topic, record.partition))) is not None:
            state.put_off = ""


def read_again(core: ConsumerCore, record: ConsumerRecord) -> bool:
    """Whether an open transaction has it, and the application has gone back to it since: it is to be handled
    once more, whatever becomes of the transaction."""
    with core.condition:
        state = core.positions.get((record.topic, record.partition))
        return state is not None and state.done <= record.offset < state.held


def go_back_to(core: ConsumerCore, record: ConsumerRecord) -> None:
    """It was not handled. Before it in its partition there may be others that wait for redelivery, which
    ``seek`` forgets: reading goes back to the first of them. Raises StaleMember."""
    tp = record.topic, record.partition
    with core.condition:
        waiting = core.redelivery.floor(tp)
        core.seek(*tp, record.offset if waiting is None else min(waiting, record.offset))


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

    def __init__(self, core: ConsumerCore, ordered: bool | None, concerns: Concerns) -> None:
        retries = core.retries
        if not isinstance(retries, Retries):
            raise ConfigError(f"run {NEEDS_RETRY}")
        if ordered is not None and ordered != isinstance(retries, OrderedRetries):
            raise ConfigError(f"ordered={ordered!r} contradicts the consumer's RetryPolicy; leave it out")
        core.check_open()
        self.core, self._retries = core, retries
        self._handled, self._committed_at = 0, core.clock()
        self._concerns = concerns
        #: How often in a row partitions were put off, and when the log has said so last.
        self._pauses: dict[TopicPartition, int] = {}
        self._told_at = float("-inf")

    @contextlib.contextmanager
    def one_by_one(self) -> Iterator[None]:
        """In the block, what lies before a record that is nacked was handled."""
        self._retries.one_by_one = True
        try:
            yield
        finally:
            self._retries.one_by_one = False

    def handled(self, record: ConsumerRecord) -> None:
        """The handler has returned, or has failed because of this record."""
        if self._pauses.pop((record.topic, record.partition), 0):
            goes_on(self.core, record)
            log.info("%s/%d goes on at offset %d", record.topic, record.partition, record.offset)

    def _put_off(self, record: ConsumerRecord, failure: BaseException) -> None:
        """Nothing is wrong with the record. Its partition waits, and no attempt is counted."""
        tp, why, now = (record.topic, record.partition), reason_of(failure), self.core.clock()
        pauses = self._pauses.get(tp, 0)
        self._pauses[tp] = pauses + 1
        pause_s = PAUSES.pause_s(pauses)
        if now >= self._told_at + TELL_S:
            self._told_at = now
            log.warning(
                "%s/%d waits at offset %d for %g s, and longer each time, without counting an attempt: %s",
                *tp, record.offset, pause_s, why,
            )  # fmt: skip
        put_off(self.core, record, pause_s, why)

    def failed(self, record: ConsumerRecord, failure: BaseException) -> None:
        """The handler raised."""
        message = record.topic, record.partition, record.offset
        log.info("the handler failed at %s/%d, offset %d", *message, exc_info=failure)
        if self._retries.last is record:  # the handler has nacked it itself
            return
        if self._concerns(failure):
            self._put_off(record, failure)
            return
        self.handled(record)
        try:
            self._retries.nack(record, None, reason_of(failure))
        except Closed:
            raise
        except Overloaded as error:  # too many wait here: this one is read again
            log.warning("%s/%d, offset %d, could not be nacked: %s", *message, error)
            with contextlib.suppress(StaleMember):
                go_back_to(self.core, record)
        except EscrowMQError as error:  # it comes again, here or at the partition's next reader
            log.warning("%s/%d, offset %d, could not be nacked: %s", *message, error)
            if isinstance(error, InvalidMessage) and read_again(self.core, record):
                put_off(self.core, record, AGAIN_S, reason_of(error))

    def stopped(self, record: ConsumerRecord) -> None:
        """The handler was left by a signal, a cancellation, or another exception that is no ``Exception``:
        nothing is known against the record, so it comes again as the same attempt."""
        if self._retries.last is not record:  # otherwise the handler has nacked it itself
            with contextlib.suppress(StaleMember, Closed):
                go_back_to(self.core, record)

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
        """Makes the offsets durable, or says why not: the next commit covers it."""
        try:
            self.core.commit(None)
        except (Closed, MemberFenced):
            raise
        except EscrowMQError as error:
            log.warning("the offsets of group %s could not be committed: %s", self.core.group, error)
        self._handled, self._committed_at = 0, self.core.clock()


def run(
    core: ConsumerCore,
    handler: Callable[[ConsumerRecord], object],
    ordered: bool | None,
    stop: threading.Event | None,
    concerns: Concerns,
) -> None:
    """See :meth:`Consumer.run`."""
    work = _Run(core, ordered, concerns)
    with work.one_by_one(), contextlib.suppress(Closed):
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
                    work.handled(record)
                except (Exception, asyncio.CancelledError) as failure:  # of a loop of the handler's own
                    work.failed(record, failure)
                except BaseException:
                    work.stopped(record)
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
    concerns: Concerns,
) -> None:
    """See :meth:`AsyncConsumer.run`."""
    work = _Run(core, ordered, concerns)
    with work.one_by_one(), contextlib.suppress(Closed):
        while stop is None or not stop.is_set():
            try:
                records = await consumer.poll(1, LOOK_S)
            except EscrowMQError as error:
                if isinstance(error, Closed) or not await asyncio.to_thread(work.troubled, error):
                    raise
                continue
            for record in records:
                before = cancellations()
                try:
                    await handler(record)
                    work.handled(record)
                except (Exception, asyncio.CancelledError) as failure:
                    if isinstance(failure, asyncio.CancelledError) and cancellations() > before:
                        work.stopped(record)
                        raise
                    await uncancellable(work.failed, record, failure)
                except BaseException:
                    work.stopped(record)
                    await uncancellable(work.commit)
                    raise
            if work.commit_due(len(records)):
                await asyncio.to_thread(work.commit)
        await asyncio.to_thread(core.commit, None)
