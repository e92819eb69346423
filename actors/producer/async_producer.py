"""The producer's asyncio interface: the same core, the same meaning, ``await`` instead of blocking.

A thousand coroutines may run their transactions at once; they share calls as threads do, at a tenth of a
thread's cost. Nothing here blocks the event loop, except what the application's own callbacks do. A topic
seen for the first time is looked up without blocking the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from escrowmq.actors.client.call_arguments import check_wait
from escrowmq.actors.client.cancelling import TOPICS_MAX, Cancellation, ScheduleId
from escrowmq.actors.client.closing import AsyncClosing
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.group_work import Reader, Span
from escrowmq.actors.client.router import LoopBridge
from escrowmq.actors.producer import cancelling
from escrowmq.actors.producer.bulk import bulk, sent_many
from escrowmq.actors.producer.bulk.sent_many import SentMany
from escrowmq.actors.producer.bulk.table_calls import transactions_of_table
from escrowmq.actors.producer.config import ProducerStatistics
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.encoder import as_messages
from escrowmq.actors.producer.encoding.many import Delivery, Headers
from escrowmq.actors.producer.fence_name import FenceName, too_late
from escrowmq.actors.producer.transactions.local_transaction import (
    LocalBatch,
    Requested,
    TransactionColumns,
    call_local,
    check_callable,
)
from escrowmq.actors.producer.transactions.results import (
    TransactionResult,
    TransactionResults,
    settled_before,
)
from escrowmq.actors.producer.transactions.transaction_base import Phase, TransactionBase, unconfirmed
from escrowmq.replication.errors import (
    OutcomeUnknown,
    TransactionConflict,
    TransactionSettled,
    UnknownTopic,
)
from escrowmq.replication.model import Message, RecordMetadata, TransactionState

T = TypeVar("T")
DeliverAt = datetime | int
#: Pause between two attempts while the producer's buffer is full.
ROOM_POLL_S = 0.005
#: How often the thread of a callback looks whether its event loop still exists.
LOOP_LOOK_S = 1.0


class AsyncProducer(AsyncClosing):
    """``producer.aio``. Usable from any event loop, even several at once. Errors are those of Producer."""

    def __init__(
        self,
        core: ProducerCore,
        close: Callable[[float | None], None],
    ) -> None:
        """``close(timeout_s)`` closes the producer."""
        self.core, self._close = core, close
        self._bridges: dict[asyncio.AbstractEventLoop, LoopBridge] = {}

    @property
    def app(self) -> str:
        """The app that this producer's transactions belong to."""
        return self.core.app

    def _bridge(self) -> LoopBridge:
        loop = asyncio.get_running_loop()
        bridge = self._bridges.get(loop)
        if bridge is None:
            # A bridge holds its loop, so weak references would never end: ``asyncio.run`` makes new ones.
            for ended in [one for one in list(self._bridges) if one.is_closed()]:
                self._bridges.pop(ended, None)
            bridge = self._bridges[loop] = LoopBridge(loop)
        return bridge

    async def send(self, message: Message) -> RecordMetadata:
        """Sends a plain message and waits until it is stored; see ``Producer.send``."""
        return await (await self.send_nowait(message))

    async def send_nowait(self, message: Message) -> asyncio.Future[RecordMetadata]:
        """Hands over a plain message; ``await`` the returned future for its metadata.

        Messages handed over one after the other keep their order.
        """
        await self._learn((message,))
        core = self.core
        partition, row = core.encoder.plain(message)
        if message.delay_s is not None or message.deliver_at is not None:
            return await self._send_later(message, partition, row)
        sent = core.send(message.topic, partition, row)
        if sent is None:
            sent = await self._until(lambda: core.send(message.topic, partition, row))
        return sent.asyncio_future(self._bridge())

    async def _send_later(
        self, message: Message, partition: int | None, row: bytes
    ) -> asyncio.Future[RecordMetadata]:
        core, topic = self.core, message.topic
        time_ms = core.delays.time_of(message)
        sent = await self._until(lambda: core.send_later(topic, partition, row, time_ms))
        return sent.asyncio_future(self._bridge())

    async def cancel(self, schedule_id: str) -> bool:
        """Cancels a delayed message; see ``Producer.cancel``."""
        core = self.core
        core.check_open()
        wanted = Cancellation(ScheduleId.parse(schedule_id, core.info.cluster_id))
        for _ in range(TOPICS_MAX):
            await self._learn_topics({wanted.message.topic})
            answer = await asyncio.wrap_future(cancelling.cancel(core, wanted))
            if (done := cancelling.is_cancelled(core, wanted, answer)) is not None:
                return done
        return False

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[bytes | None] | None = None,
        headers: Headers | Iterable[Headers] = None,
        partition: int | None = None,
        *,
        delay_s: float | Sequence[float | None] | None = None,
        deliver_at: DeliverAt | Sequence[DeliverAt | None] | None = None,
    ) -> SentMany:
        """As ``Producer.send_many``, in a helper thread; returns when each row has an offset or an error. If
        the task is cancelled, the rows that were not handed over yet are not sent; the others may be."""
        delivery = Delivery(delay_s, deliver_at)
        return await self._ended(sent_many.send_many, topic, values, keys, headers, partition, delivery)

    async def send_table(
        self,
        topic: str,
        table: Any,
        *,
        value: str = "value",
        key: str | None = None,
        partition: int | None = None,
        delay_s: float | str | None = None,
        deliver_at: DeliverAt | str | None = None,
    ) -> SentMany:
        """As ``Producer.send_table``, in a helper thread; returns when each row has an offset or an error.
        A cancelled task: as for ``send_many``."""
        delivery = Delivery(delay_s, deliver_at)
        return await self._ended(sent_many.send_table, topic, table, value, key, partition, delivery)

    async def _ended(self, send: Callable[..., SentMany], *args: Any) -> SentMany:
        given_up = threading.Event()
        try:
            sent = await _in_own_thread(send, self.core, *args, given_up=given_up.is_set)
        finally:
            given_up.set()
        await sent.end(self._bridge())
        return sent

    def transaction(
        self,
        query_id: str | None = None,
        tx_id: str | None = None,
        *,
        transaction_timeout_s: float | None = None,
        one_way_commit: bool | None = None,
        local: bool = True,
    ) -> AsyncTransaction:
        """A transaction for an ``async with`` block; see ``Producer.transaction``."""
        return AsyncTransaction(
            self,
            self.core,
            query_id,
            tx_id,
            transaction_timeout_s,
            one_way_commit,
            local,
        )

    async def send_message_in_transaction(
        self,
        messages: Message | Sequence[Message],
        local_transaction: Callable[..., Any],
        tx_id: str | None = None,
        query_id: str | None = None,
        *,
        transaction_timeout_s: float | None = None,
        one_way_commit: bool | None = None,
    ) -> TransactionResult:
        """As ``Producer.send_message_in_transaction``; if the callback returns an awaitable, it is awaited.

        A plain function runs in the event loop's thread and should not block it. If the task is cancelled,
        the transaction is left to the check, since its local part may have been interrupted anywhere.
        """
        check_callable(local_transaction, awaits=True)
        tx = self.transaction(
            query_id, tx_id, transaction_timeout_s=transaction_timeout_s, one_way_commit=one_way_commit
        )
        await tx.send(*as_messages(messages))
        async with tx:
            recorded = await tx._prepare()
            if recorded is not None:
                return settled_before(tx.result)
            returned = call_local(local_transaction, tx)
            if inspect.isawaitable(returned):
                returned = await returned
            commit = tx._commits(returned)
            if commit is not None:
                await tx._decide(commit)
        return tx.result

    async def send_transactions(
        self,
        batch: Iterable[Requested],
        local_transaction: LocalBatch | None = None,
        *,
        transaction_timeout_s: float | None = None,
    ) -> list[TransactionResult]:
        """As ``Producer.send_transactions``, encoded in a helper thread; the callback runs in the loop.

        The callback may be a coroutine function. A batch with a callback has a thread of its own until it
        has ended, so bound how many run at a time.
        """
        self.core.check_open()
        if local_transaction is not None:
            check_callable(local_transaction, awaits=True, many=True)
        call = asyncio.to_thread if local_transaction is None else _in_own_thread
        return await call(
            bulk.send_transactions,
            self.core,
            batch,
            _in_this_loop(local_transaction),
            transaction_timeout_s,
        )

    async def send_transactions_table(
        self,
        topic: str,
        table: Any,
        local_transaction: Callable[..., Any] | None = None,
        *,
        value: str = "value",
        key: str | None = None,
        tx_id: str | None = None,
        query_id: str | None = None,
        partition: int | None = None,
        delay_s: float | str | None = None,
        deliver_at: DeliverAt | str | None = None,
        transaction_timeout_s: float | None = None,
    ) -> TransactionResults:
        """As ``Producer.send_transactions_table``, encoded in a helper thread; the callback runs in the loop,
        and may be a coroutine function. With one it has a thread of its own, as ``send_transactions``."""
        columns = TransactionColumns(value, key, tx_id, query_id)
        call = transactions_of_table(
            self.core,
            topic,
            table,
            columns,
            partition,
            local_transaction,
            transaction_timeout_s,
            Delivery(delay_s, deliver_at),
            awaits=True,
        )
        in_thread = asyncio.to_thread if local_transaction is None else _in_own_thread
        return await in_thread(call, _in_this_loop(local_transaction))

    def statistics(self) -> ProducerStatistics:
        """See ``Producer.statistics``; does not wait."""
        return self.core.statistics()

    async def flush(self, timeout_s: float | None = None) -> bool:
        """See ``Producer.flush``."""
        self.core.check_open()
        check_wait(timeout_s)
        limit_s = self.core.config.delivery_timeout_s if timeout_s is None else timeout_s
        return await asyncio.to_thread(self.core.flush, limit_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Closes the whole producer, including its blocking interface."""
        await asyncio.to_thread(self._close, timeout_s)

    # ------------------------------------------------------------ waiting without blocking

    async def _learn(self, messages: Iterable[object]) -> None:
        """Looks up topics that this producer does not know yet, so that encoding need not block."""
        # Anything that is not a message is refused by the encoder.
        await self._learn_topics({message.topic for message in messages if isinstance(message, Message)})

    async def _learn_topics(self, topics: set[str]) -> None:
        catalog = self.core.catalog
        unknown = catalog.unknown(topics)
        if unknown:
            await asyncio.wrap_future(catalog.ask(unknown))
            for topic in unknown:
                if catalog.known(topic) is None:
                    raise UnknownTopic(topic)

    async def _until(self, attempt: Callable[[], T | None]) -> T:
        """Waits for room in the producer's buffer; raises Overloaded after ``buffer_wait_s``."""
        deadline = self.core.clock() + self.core.config.buffer_wait_s
        while not (done := attempt()):
            if self.core.clock() >= deadline:
                raise self.core.overloaded()
            await asyncio.sleep(ROOM_POLL_S)
        return done


def _in_this_loop(local: Callable[..., Any] | None) -> Callable[[Any], Any] | None:
    """For a helper thread: calls it in the running loop, and waits for what it returns."""
    if local is None:
        return None
    loop = asyncio.get_running_loop()

    async def run(prepared: Any) -> Any:
        returned = local(prepared)
        return await returned if inspect.isawaitable(returned) else returned

    def call(prepared: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(run(prepared), loop)
        while not future.done():
            wait((future,), LOOP_LOOK_S)
            if loop.is_closed():  # it ended in the middle of the callback, or before: nobody knows
                future.cancel()
        return future.result()

    return call


async def _in_own_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """As ``asyncio.to_thread``, but not in one of the event loop's few threads: others need them, and so may
    the callback that the function waits for, for ever if such calls held them all."""
    thread, context = ThreadPoolExecutor(1, "escrowmq-send"), contextvars.copy_context()
    call = asyncio.get_running_loop().run_in_executor(thread, partial(context.run, function, *args, **kwargs))
    thread.shutdown(wait=False)  # it ends after this call, also if the loop is gone by then
    return await call


class AsyncTransaction(TransactionBase):
    """As :class:`escrowmq.actors.producer.transactions.transaction.Transaction`, for ``async with``."""

    __slots__ = ("_face",)

    def __init__(self, face: AsyncProducer, *args: Any) -> None:
        super().__init__(*args)
        self._face = face

    async def send(self, *messages: Message) -> None:
        """Adds messages. They are checked now and sent by ``prepare``."""
        await self._face._learn(messages)
        self._add(list(messages))

    async def send_offsets(
        self, reader: Reader | str, offsets: Mapping[TopicPartition, Span] | None = None
    ) -> None:
        """As ``Transaction.send_offsets``. If it is cancelled, the consumer polls the same again."""
        try:
            await asyncio.to_thread(self._take_work, reader, offsets)
        except asyncio.CancelledError:
            if (give_up := getattr(reader, "no_group_work", None)) is not None:
                give_up()
            raise

    async def prepare(self) -> None:
        """Makes the messages durable; run the local transaction when this returns."""
        recorded = await self._prepare()
        if recorded is not None:
            raise self._settled_before(recorded)

    async def _prepare(self) -> TransactionState | None:
        if (naming := self._to_name()) is not None:
            await self._name(naming)
        plan = self._plan()
        if plan is None:
            return None
        try:
            await self._face._until(lambda: self._core.try_reserve(plan.size))
        except BaseException:  # it may be cancelled, too
            self._not_prepared()
            raise
        future, done = self._face._bridge().waiter()
        self._start_prepare(plan, done)
        return self._after_prepare(plan, await self._answer_of(future))

    async def _name(self, naming: FenceName) -> None:
        future, done = self._face._bridge().waiter()
        naming.attempt().add_done_callback(done)  # shared with all who wait
        try:
            attempt = await asyncio.wait_for(future, naming.wait_s)
        except TimeoutError:
            self._raise_unnamed(too_late())
        if (error := attempt.exception()) is not None:
            self._raise_unnamed(error)

    async def commit(self) -> None:
        """Commits now instead of at the end of the block. Repeating it is harmless."""
        await self._decide(True)

    async def rollback(self) -> None:
        """Rolls back now: none of the messages will ever be read."""
        if self._phase is Phase.COLLECTING:
            self._to(Phase.FAILED)
            return
        await self._decide(False)

    async def _decide(self, commit: bool) -> None:
        if self._phase is Phase.COLLECTING:
            await self._prepare()  # if it was settled before, that stands: see _needs_no_answer
        guard, wanted = self._to_ask(commit), commit
        if guard is not None:
            try:
                (state,) = await _in_own_thread(guard.states, [self.tx_id])
            except BaseException:  # it may be cancelled, too
                self._leave()
                raise
            commit = self._as_asked(state)
        await self._carry_out(commit)
        if commit is not wanted:
            raise TransactionSettled(self.tx_id, self.state.value)

    async def _carry_out(self, commit: bool) -> None:
        if self._needs_no_answer(commit):
            return
        future, done = self._face._bridge().waiter()
        if self._start_decision(commit, done):
            self._after_decision(await self._answer_of(future))

    async def _answer_of(self, future: asyncio.Future[Outcome]) -> Outcome:
        try:
            return await future
        except asyncio.CancelledError:  # nobody will hear the answer
            self._leave()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._takes_up(error):
            return True
        if error is None:
            if self._phase in (Phase.COLLECTING, Phase.PREPARED):
                try:
                    await self._decide(True)
                except BaseException:
                    self._end_failed()
                    raise
        elif self._must_roll_back(error):
            try:
                await self._decide(False)
            except OutcomeUnknown:
                error.add_note(unconfirmed(self.tx_id))
            except TransactionConflict as conflict:
                raise conflict from error
        return False
