"""The producer's blocking interface: plain messages, transactions one by one, transactions in bulk.

Any number of threads may share one producer, and should: what they send at the same time goes into the same
calls. Application code must never run outside the caller's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Protocol

from escrowmq.actors.client.background import Background
from escrowmq.actors.client.call_arguments import check_wait
from escrowmq.actors.client.cancelling import TOPICS_MAX, Cancellation, ScheduleId
from escrowmq.actors.client.closing import Closing
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import result_of
from escrowmq.actors.client.statistics import StatisticsTimer
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.values import Serializer, serializer_of
from escrowmq.actors.producer import cancelling
from escrowmq.actors.producer.async_producer import AsyncProducer
from escrowmq.actors.producer.bulk import bulk, sent_many
from escrowmq.actors.producer.bulk.sent_many import SentMany
from escrowmq.actors.producer.bulk.table_calls import transactions_of_table
from escrowmq.actors.producer.claiming import check_name
from escrowmq.actors.producer.config import ProducerConfig, ProducerStatistics
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.encoder import as_messages
from escrowmq.actors.producer.encoding.many import Delivery, Headers
from escrowmq.actors.producer.transactions import numbered
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
from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.states import TxStatusQuerier, names_a_table
from escrowmq.replication.model import Message, RecordMetadata

#: What runs between prepare and decision: ``f()``, ``f(tx)`` or ``f(tx_id, query_id)``.
LocalTransaction = Callable[..., Any]
#: A time with a time zone, or ms since the epoch.
DeliverAt = datetime | int


class Answerer(Protocol):
    """Answers checks for a producer: see ``feedback.edges.answerer.CheckAnswerer``."""

    def start(self) -> None: ...
    def close(self) -> None: ...


#: Creates the answerer, with the arguments of ``CheckAnswerer``.
MakeAnswerer = Callable[..., Answerer]


class Producer(Closing):
    """Sends messages for ``app``. Thread-safe. A context manager: ``close`` flushes.

    ``tx_status_querier`` answers checks: with one, this producer is asked about any open transaction of its
    app, including those of producers that died; for its own, it is asked first whether they still run.
    Without one it cannot be asked: another producer of the app with a querier is asked, or an operator
    decides.
    """

    def __init__(
        self,
        info: ClusterInfo,
        *,
        app: str,
        tx_status_querier: TxStatusQuerier | None = None,
        value_serializer: Serializer | None = None,
        config: ProducerConfig | None = None,
        answerer: AnswererConfig | None = None,
        feedback: FeedbackConfig | None = None,
        calls: ReplicaCalls | None = None,
        background: Background | None = None,
        answered_by: MakeAnswerer | None = None,
        statistics_callback: Callable[[ProducerStatistics], object] | None = None,
        statistics_interval_s: float = 60.0,
        transactional_id: str | None = None,
    ) -> None:
        """``transactional_id``: a name of which this becomes the only producer: it returns when every broker
        group has taken the claim, and from then on whatever an earlier producer of the name sends is refused
        (ProducerFenced). Raises then also Unavailable (a group does not answer within
        ``delivery_timeout_s``), Overloaded (no more names are kept).
        ``value_serializer``: makes bytes of the values of messages: "json", "msgpack", "arrow" (a pyarrow
        Table or RecordBatch), or a function. A value that it cannot serialize raises NotSerializable before
        anything is sent. ``send_table`` does not use it.
        ``answerer``: how checks are answered here; ``feedback``: settings of the processes that ask.

        The first producer with a querier starts those processes, and its ``feedback`` counts. ``calls``,
        ``background``, ``answered_by``: how replicas are reached, what runs this producer, and what answers
        its checks; None: Ray and threads.
        ``statistics_callback`` is called with :meth:`statistics` every ``statistics_interval_s``, in a
        separate thread, until the producer is closed. Its exceptions are logged.
        """
        self._config = config or ProducerConfig()
        self.core = ProducerCore(
            info,
            app,
            self._config,
            calls,
            answers_checks=tx_status_querier is not None,
            background=background,
            serialize=serializer_of(value_serializer),
        )
        self._numbering = threading.Lock()
        self._answerer: Answerer | None = None
        self._timer: StatisticsTimer[ProducerStatistics] | None = None
        try:
            if statistics_callback is not None:
                self._timer = StatisticsTimer(statistics_callback, statistics_interval_s, self.statistics)
            if transactional_id is not None:
                self.core.claim(check_name(transactional_id))
        except BaseException:
            self.close(0.0)
            raise
        if tx_status_querier is not None:
            try:
                self._answerer = (answered_by or _over_ray())(
                    app,
                    tx_status_querier,
                    self.core.instance,
                    info,
                    config=answerer,
                    feedback_config=feedback,
                    still_running=self.core.running.__contains__,
                    idle=lambda: not self.core.running,
                )
                if names_a_table(tx_status_querier):  # it is a querier: the answerer has looked
                    self.core.fenced_by(tx_status_querier.learn_fence)
                self._answerer.start()
            except BaseException:
                self.close(0.0)
                raise

    @property
    def app(self) -> str:
        """The app that this producer's transactions belong to."""
        return self.core.app

    @property
    def transactional_id(self) -> str | None:
        """The name that it has claimed."""
        claimed = self.core.claimed
        return None if claimed is None else claimed.name

    @property
    def epoch(self) -> int:
        """That of its claim, higher than those of all producers of the name before it; 0: it has no name."""
        claimed = self.core.claimed
        return 0 if claimed is None else claimed.epoch

    @property
    def last_number(self) -> int:
        """The number of the last transaction of ``send_numbered`` that is committed, as far as this producer
        knows; 0: none was."""
        claimed = self.core.claimed
        return 0 if claimed is None else claimed.number

    # ------------------------------------------------------------ plain messages

    def send(self, message: Message) -> Future[RecordMetadata]:
        """Sends a plain message; the future returns its offset once it is durable on a majority.

        Messages of one partition keep the order in which they were sent. Raises at once: InvalidMessage,
        MessageTooLarge, UnknownTopic, Closed, and Overloaded after ``buffer_wait_s`` without room. Through
        the future: OutcomeUnknown (it may have been stored; sending it again may store it twice),
        Unavailable, Overloaded, DiskFull (it was not stored), and TooManyScheduled for a delayed message.
        Callbacks of the future run in the producer's thread and must not block. The future has no weak
        references, and makes a result for each who asks.
        """
        core = self.core
        partition, row = core.encoder.plain(message)
        if message.delay_s is not None or message.deliver_at is not None:
            return self._send_later(message, partition, row)
        future = core.send(message.topic, partition, row)
        if future is None:
            future = core.when_room(len(row), partial(core.send, message.topic, partition, row))
        return future  # type: ignore[return-value]  # see SendFuture

    def _send_later(self, message: Message, partition: int | None, row: bytes) -> Future[RecordMetadata]:
        time_ms = self.core.delays.time_of(message)
        attempt = partial(self.core.send_later, message.topic, partition, row, time_ms)
        return self.core.when_room(len(row), attempt)  # type: ignore[arg-type]  # see SendFuture

    def cancel(self, schedule_id: str) -> bool:
        """Cancels a delayed message, of any producer.

        True: it will never be read, because of this call or an earlier one. False: it can be read already; or
        its time has passed after it was cancelled; or nothing is known of it: its transaction is not
        committed, or it was never sent. A message is cancelled or becomes readable, never both.

        ``schedule_id``: from the metadata of ``send``, from ``schedule_ids`` of other results, or from
        ``Admin.scheduled``. Raises InvalidMessage for what is no id of this cluster, or of a message that
        waits for a retry; UnknownTopic if the topic was deleted (and the message with it), OutcomeUnknown if
        the answer was lost: call again, which is harmless.
        """
        core = self.core
        core.check_open()
        wanted = Cancellation(ScheduleId.parse(schedule_id, core.info.cluster_id))
        for _ in range(TOPICS_MAX):
            answer = result_of(cancelling.cancel(core, wanted), self._config.delivery_timeout_s)
            if (done := cancelling.is_cancelled(core, wanted, answer)) is not None:
                return done
        return False

    def send_many(
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
        """Sends a message for each of ``values``, at half the cost of ``send``; one result for all.

        ``keys``: one for each value, or None. ``headers``: of all messages, or one mapping (or None) for
        each. ``partition``: of all; otherwise by key, and messages without a key go to the partitions in
        turn. Messages of one partition keep their order, also among those of ``send``. ``delay_s``,
        ``deliver_at``: as of a ``Message``, for all, or a list with one for each (None: not delayed); numpy
        arrays will do.

        All rows are checked before any is sent: InvalidMessage and MessageTooLarge name the first row that
        is wrong. Many rows wait for room in the buffer several times, up to ``buffer_wait_s`` each. Raises
        Overloaded, with nothing sent, if there is no room for the first of them; later, the rows for which
        there was none have that error. Everything else is as for ``send``.
        """
        delivery = Delivery(delay_s, deliver_at)
        return sent_many.send_many(self.core, topic, values, keys, headers, partition, delivery)

    def send_table(
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
        """Sends a message for each row of a pyarrow Table or RecordBatch, or of a pandas DataFrame.

        ``value`` and ``key`` name columns of bytes or strings (binary, string, large, view, fixed size,
        dictionary). A null key is no key; a null value raises InvalidMessage. The messages have no headers.
        ``delay_s``, ``deliver_at``: as of a ``Message``, for all, or the name of a column of numbers, or of
        timestamps with a time zone (null: not delayed).
        Raises NotSupported without pyarrow. Everything else is as for :meth:`send_many`; the rows are encoded
        in C, so a row costs a third of a ``send``.
        """
        delivery = Delivery(delay_s, deliver_at)
        return sent_many.send_table(self.core, topic, table, value, key, partition, delivery)

    # ------------------------------------------------------------ transactions

    def transaction(
        self,
        query_id: str | None = None,
        tx_id: str | None = None,
        *,
        transaction_timeout_s: float | None = None,
        one_way_commit: bool | None = None,
        local: bool = True,
    ) -> Transaction:
        """A transaction for a ``with`` block; see :class:`Transaction`.

        ``query_id``: the application's own key (an order number, say), which checks will name; by default the
        transaction id. ``tx_id``: an id of your own, unique within the app. ``transaction_timeout_s``: time
        to the first check. ``one_way_commit``: do not wait for the commit's answer; if the commit is lost,
        the check finds out and commits. ``local=False``: there is no local transaction, so nobody is asked:
        open for longer than its time-out, it is rolled back.
        """
        return Transaction(self.core, query_id, tx_id, transaction_timeout_s, one_way_commit, local)

    def send_message_in_transaction(
        self,
        messages: Message | Sequence[Message],
        local_transaction: LocalTransaction,
        tx_id: str | None = None,
        query_id: str | None = None,
        *,
        transaction_timeout_s: float | None = None,
        one_way_commit: bool | None = None,
    ) -> TransactionResult:
        """Prepares ``messages``, runs ``local_transaction``, commits or rolls back by what it returns.

        The callback runs in this thread once the messages are durable and still invisible. It is called
        as ``f()``, ``f(tx)`` or ``f(tx_id, query_id)``. It returns TransactionState.COMMITTED (or None, or
        True) to commit, ROLLBACK (or False) to roll back, UNKNOWN to leave the decision to the check. If its
        type shows that it returns anything else, InvalidMessage is raised before anything is sent; otherwise
        InvalidDecision is raised after it has run, and the check decides. If it raises, the transaction is
        rolled back and the caller gets the exception; OutcomeUnknown, and an exception that is no
        ``Exception`` (an interrupt), leave the decision to the check instead.

        If the messages cannot be prepared, the callback is not run and the reason is raised:
        TooManyOpenTransactions, TransactionIdTaken (the id has other content), TransactionRunning (this
        producer is running it now), UnknownTopic, MessageTooLarge, Unavailable, Overloaded, DiskFull; or
        OutcomeUnknown for an id of your own, which may then be open: call again with the same id and
        messages. If a transaction with the same id and messages has already been settled, the callback is not
        run: the result is returned if it is COMMITTED; if it was rolled back, TransactionSettled is raised,
        since ROLLBACK is returned only where the callback said so. Raises OutcomeUnknown(tx_id) if the
        decision could not be confirmed: this is not a failure, the check carries the decision out.
        """
        check_callable(local_transaction)
        tx = self.transaction(
            query_id, tx_id, transaction_timeout_s=transaction_timeout_s, one_way_commit=one_way_commit
        )
        tx.send(*as_messages(messages))
        with tx:
            recorded = tx._prepare()
            if recorded is not None:
                return settled_before(tx.result)
            commit = tx._commits(call_local(local_transaction, tx))
            if commit is not None:
                tx._decide(commit)
        return tx.result

    def send_transactions(
        self,
        batch: Iterable[Requested],
        local_transaction: LocalBatch | None = None,
        *,
        transaction_timeout_s: float | None = None,
    ) -> list[TransactionResult]:
        """Many independent transactions at once, for throughput; results in the order of ``batch``.

        Each item is a TransactionRequest, a tuple ``(messages, query_id)`` or ``(messages, query_id,
        tx_id)``, or just the messages. Without a callback each transaction is committed as soon as it is
        prepared. With one, *all* are prepared first; then it is called once, in this thread, with the list
        of the prepared ones (PreparedTransaction), so that one database transaction can serve them all::

            def store(prepared):                     # all of these are durable and invisible
                with db.transaction():
                    db.insert_orders(orders[tx.index] for tx in prepared)
            producer.send_transactions(((msgs(o), o.number) for o in orders), store)

        The callback returns one decision for all, or a sequence with one for each, as in
        ``send_message_in_transaction``; if it raises, all of them are rolled back and the caller gets the
        exception. If its type shows that it returns no decision, InvalidMessage is raised before anything is
        sent.

        Raises nothing for single transactions: look at ``state`` and ``error`` of the results.
        """
        self.core.check_open()
        if local_transaction is not None:
            check_callable(local_transaction, many=True)
        return bulk.send_transactions(self.core, batch, local_transaction, transaction_timeout_s)

    def send_transactions_table(
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
        """As :meth:`send_transactions`, for the rows of a pyarrow Table or RecordBatch, or of a pandas
        DataFrame: each row is a transaction of one message.

        ``value``, ``key``, ``tx_id``, ``query_id`` name columns: values and keys as for :meth:`send_table`,
        ids of text. A null key is no key, a null ``tx_id`` gets a new id, a null ``query_id`` is the
        transaction's id. The messages have no headers. ``delay_s``, ``deliver_at``: as for
        :meth:`send_table`; delayed rows cost as much as with ``send_transactions``.

        The callback gets PreparedTransactions, whose columns are Arrow arrays. It returns what that of
        ``send_transactions`` returns, or a column with one decision for each: booleans (True commits), or
        the names of states. It may be an Arrow array, a numpy array, or a pandas Series.

        Raises InvalidMessage for a table without these columns, UnknownTopic, and NotSupported without
        pyarrow; nothing was sent then. Raises nothing for single rows, such as one with a null value: look at
        ``states`` and ``errors`` of the result.
        """
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
        )
        return call(local_transaction)

    def send_numbered(
        self, number: int, messages: Message | Sequence[Message], *, digest: bytes | None = None
    ) -> bool:
        """Sends messages as transaction ``number`` of this producer's ``transactional_id``, all or none, and
        exactly once: call it again with the same number and messages whenever the outcome is not known, also
        from another process that has claimed the name since.

        True: they are stored by this call. False: they were stored before under this number. Numbers rise,
        and may be left out: start at ``last_number`` + 1. ``digest``: 16 bytes that stand for the messages;
        by default made of their topics, keys, values, headers, delays, and the partitions that they name.

        There is no local transaction. Calls of several threads wait for each other. Raises OutOfStep
        (a later number is committed, or other messages under this one; nothing was done), ProducerFenced,
        InvalidMessage (without a ``transactional_id``, too), OutcomeUnknown (call it again), and whatever
        prevents a transaction from being prepared.
        """
        with self._numbering:
            return numbered.send(self.core, number, as_messages(messages), digest)

    def statistics(self) -> ProducerStatistics:
        """Its counters and present state. Cheap, from any thread, also after ``close``."""
        return self.core.statistics()

    # ------------------------------------------------------------ end

    @cached_property
    def aio(self) -> AsyncProducer:
        """The asyncio interface of this producer."""
        return AsyncProducer(self.core, self.close)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Sends what waits now and waits for the answers; False if ``timeout_s`` passed first."""
        self.core.check_open()
        check_wait(timeout_s)
        return self.core.flush(self._config.delivery_timeout_s if timeout_s is None else timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flushes and closes. Later calls raise Closed; what is still undecided is left to the check."""
        check_wait(timeout_s)
        self.core.close(self._config.delivery_timeout_s if timeout_s is None else timeout_s)
        if self._answerer is not None:
            self._answerer.close()
        if self._timer is not None:
            self._timer.close()


def _over_ray() -> MakeAnswerer:
    from escrowmq.feedback.edges.answerer import CheckAnswerer  # it imports Ray

    return CheckAnswerer
