"""The implementation of a share consumer, behind its two interfaces (share_consumer, async_share_consumer).

The core checks arguments, begins the group, hands out records, and takes what the application says of them.
Everything that goes on meanwhile is in session.py, in the router's thread. All state that it shares with the
application's threads is guarded by one condition, which also wakes ``poll``.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from escrowmq.actors.client.background import Background, Threads
from escrowmq.actors.client.call_arguments import check_group, check_not_internal, delay_in_ms, reason_text
from escrowmq.actors.client.closing import FORKED, tell_after_fork
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import Router, over_ray, result_of
from escrowmq.actors.client.share_groups import send_settling
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.values import Deserializer, deserializer_of
from escrowmq.actors.client.wakeup import ObservableCondition, wait_out
from escrowmq.actors.consumer.arguments import check_topics
from escrowmq.actors.share_consumer import config as args
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.actors.share_consumer.held_batches import Batch, HeldBatches, ShareRecord, Unreadable
from escrowmq.actors.share_consumer.session import Begun, ShareSession, begin
from escrowmq.actors.share_consumer.statistics import ShareConsumerStatistics, ShareCounted
from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    EscrowMQError,
    LeaseLost,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.share_ops import BY_TABLE, REJECT, nack, share_reply
from escrowmq.replication.message_headers import tags_wanted
from escrowmq.replication.model import ConsumerRecord

# ------------------------------------------------------------------------------------------------------------
# What is said of one message: ack with a reply, nack, reject, release, extend. Blocking; from any thread.
#
# These are rare and matter one by one, so each is a call of its own, and returns when the broker has
# confirmed it. A nack or a reject may be repeated: for a message that is final already it does nothing.


class Settling:
    """See the module's text. ``pause(seconds)`` waits."""

    def __init__(
        self,
        router: Router,
        group: str,
        member: str,
        held_batches: HeldBatches,
        condition: threading.Condition,
        counted: ShareCounted,
        timeout_s: float,
        pause: Callable[[float], None],
    ) -> None:
        self._router, self._group, self._member, self._held_batches = router, group, member, held_batches
        self._condition, self._counted, self._timeout_s, self._pause = condition, counted, timeout_s, pause

    def nack(self, record: ConsumerRecord, delay_ms: int, reason: str, by: str) -> None:
        """The message could not be handled. Raises RecordNotHeld, LeaseLost, UnknownTopic, TooManyScheduled,
        Unavailable, DiskFull, OutcomeUnknown."""
        with self._settling(record, LeaseLost, UnknownTopic, UnknownGroup) as batch:
            self.nack_in(batch, record.offset, delay_ms, reason, by)

    @contextmanager
    def _settling(self, record: ConsumerRecord, *final: type[EscrowMQError]) -> Iterator[Batch]:
        """The batch of a record, which counts as settled from now on; as open again after an error that is
        not ``final``."""
        with self._condition:
            batch = self._held_batches.find(record)
            self._held_batches.settled(batch, record.offset)
        try:
            yield batch
        except final:
            raise
        except EscrowMQError:
            with self._condition:
                self._held_batches.reopened(batch, record.offset)
            raise

    def ack(self, record: ConsumerRecord, app: str, row: bytes) -> None:
        """The message is done, and the app is told ``row``, unless it was done before. Raises RecordNotHeld,
        UnknownTopic, Unavailable, DiskFull, OutcomeUnknown: then it may be repeated."""
        with self._settling(record, UnknownTopic, UnknownGroup) as batch:
            topic, partition, topic_id = batch.source
            request = share_reply(self._group, topic, partition, app, [record.offset], [row], topic_id)
            message = topic, partition, record.offset
            send_settling(
                self._router, self._group, batch.gid, request, message, self._timeout_s, self._pause
            )
        with self._condition:
            self._counted.acked += 1

    def nack_in(self, batch: Batch, offset: int, delay_ms: int, reason: str, by: str) -> None:
        """The same for a message that is not open any more."""
        topic, partition, topic_id = batch.source
        request = nack(
            self._group, topic, partition, [offset], [delay_ms], [reason], self._member, by, topic_id
        )
        message = topic, partition, offset
        send_settling(self._router, self._group, batch.gid, request, message, self._timeout_s, self._pause)
        with self._condition:
            if delay_ms == REJECT:
                self._counted.rejected += 1
            else:
                self._counted.nacked += 1

    def release(self, record: ConsumerRecord) -> None:
        """Back at once, and not counted. Raises RecordNotHeld, LeaseLost, Unavailable, OutcomeUnknown."""
        with self._settling(record, LeaseLost) as batch:
            self._call(batch, record, "share_release", self._held_batches.answered[batch.gid])
        with self._condition:
            self._counted.released += 1

    def extend(self, record: ConsumerRecord, lease_s: float) -> None:
        """Its lease ends in ``lease_s`` from now. Raises RecordNotHeld, LeaseLost, Unavailable,
        OutcomeUnknown."""
        with self._condition:
            batch = self._held_batches.find(record)
        until = self._router.clock() + lease_s
        self._call(batch, record, "share_extend", lease_s)
        with self._condition:
            self._held_batches.extended_alone(batch, record.offset, until)

    def _call(self, batch: Batch, record: ConsumerRecord, method: str, *args: Any) -> None:
        ranges = [(record.topic, record.partition, [record.offset, record.offset])]
        call = self._router.leader_call(
            batch.gid, method, self._group, self._member, ranges, *args, timeout_s=self._timeout_s
        )
        if result_of(call, self._timeout_s):
            raise LeaseLost(record.topic, record.partition, record.offset)


log = logging.getLogger(__name__)

#: Name of the router's thread.
THREAD = "escrowmq-share-consumer"
#: Who says that a message could not be handled, as its copy tells.
BY_CONSUMER, BY_CLIENT = "consumer", "client"


class ShareConsumerCore:
    """The parts of one share consumer."""

    def __init__(
        self,
        info: ClusterInfo,
        *,
        group: str,
        topics: Sequence[str],
        config: ShareConsumerConfig | None = None,
        calls: ReplicaCalls | None = None,
        background: Background | None = None,
        value_deserializer: Deserializer | None = None,
        tags: Collection[str] | None = None,
    ) -> None:
        """See :class:`ShareConsumer`."""
        deserialize, wanted = deserializer_of(value_deserializer), tags_wanted(tags)
        self.group, self.config = check_group(group), config or ShareConsumerConfig()
        check_topics(topics)
        if not topics:
            raise ConfigError("topics names at least one topic: a share group reads what it names")
        check_not_internal(topics)
        self.member = secrets.token_hex(16)
        self.background = background = background or Threads()
        self.clock, self.condition = background.clock, background.condition()
        self.closed, self._why = False, "this share consumer was closed; create a new one"
        tell_after_fork(self)
        self._counted = ShareCounted()
        self._held_batches = HeldBatches(self.config.lease_extend_max_s, deserialize, wanted)
        self.router = Router(
            info, self.config.channel, calls or over_ray(info), name=THREAD, background=background
        )
        self._topics, self._beginning = tuple(topics), False
        try:
            begun = self._begin()
        except BaseException:
            self.closed = True
            self.router.close()
            raise
        self.settling = Settling(
            self.router,
            group,
            self.member,
            self._held_batches,
            self.condition,
            self._counted,
            self.config.call_timeout_s,
            self.pause,
        )
        idle_s = self.config.lease_s or begun.settings.lease_ms / 1000
        self._session = ShareSession(
            group,
            self.member,
            begun.topics,
            begun.partitions,
            idle_s,
            self.config,
            self.router,
            self.condition,
            self._held_batches,
            self._counted,
        )
        self.router.attach(self._session)

    def check_open(self) -> None:
        """Raises Closed after ``close``."""
        if self.closed:
            raise Closed(self._why)

    def pause(self, seconds: float) -> None:
        """Waits, by the clock that everything here goes by."""
        wait_out(self.condition, self.clock, seconds)

    def stand_still(self, why: str) -> None:
        """Handlers cannot work now, or ("") again: what lies here is for others meanwhile."""
        with self.condition:
            self._counted.pausing = why
            if not why:
                return
            self._counted.pauses += 1
            self._session.aside = True
        self.router.wakeup.set()

    # ------------------------------------------------------------ beginning

    def _begin(self) -> Begun:
        config = self.config
        return begin(self.router, self.group, self._topics, config.auto_offset_reset, config.call_timeout_s)

    @property
    def must_begin(self) -> bool:
        """Whether ``begin_again`` has something to do."""
        return self._session.forgotten and not self._beginning

    def begin_again(self) -> None:
        """If the group was deleted meanwhile: makes it a share group again, which begins as
        ``auto_offset_reset`` says. May block; raises what creating a share consumer raises."""
        with self.condition:
            if not self.must_begin or self.closed:
                return
            self._beginning = True
        try:
            log.warning("share group %r was deleted while this consumer reads; it begins anew", self.group)
            begun = self._begin()
            with self.condition:
                self._session.begun_again(begun.partitions)
        finally:
            with self.condition:
                self._beginning = False

    # ------------------------------------------------------------ poll

    def poll(self, max_records: int, timeout_s: float) -> list[ShareRecord]:
        """See :meth:`ShareConsumer.poll`; the caller has checked the arguments."""
        deadline = self.clock() + timeout_s
        while True:
            self.begin_again()
            records, unreadable = self._wait_for_some(max_records, deadline)
            self.done_with(unreadable)
            if records:
                return records
            if not unreadable and not self.must_begin:
                self.raise_trouble()
                return []

    def _wait_for_some(self, max_records: int, deadline: float) -> tuple[list[ShareRecord], list[Unreadable]]:
        records, unreadable = self.take(max_records)  # a cluster in memory answers when the lock is released
        with self.condition:
            while not (records or unreadable or self.must_begin):
                records, unreadable = self.take(max_records)
                now = self.clock()
                if records or unreadable or now >= deadline:
                    break
                self._session.waiting += max_records
                try:
                    self.condition.wait(deadline - now)
                finally:
                    self._session.waiting -= max_records
        return records, unreadable

    def waits(self, records: int) -> None:
        """A poll elsewhere waits for so many messages; or (less than 0) does so no longer."""
        with self.condition:
            self._session.waiting += records

    def take(self, max_records: int) -> tuple[list[ShareRecord], list[Unreadable]]:
        """What is available now; if nothing is, so many are asked for. The caller passes what is unreadable
        to ``done_with``, without the lock."""
        with self.condition:
            self.check_open()
            session, now = self._session, self.clock()
            if session.failure is not None:
                raise EscrowMQError(f"this share consumer failed ({session.failure!r}); close it") from (
                    session.failure
                )
            records, unreadable = self._held_batches.take(max_records, now)
            self._ack_passed_over(now)
            self._counted.records += len(records)
            if session.polled(max_records, len(records), now):
                self.router.wakeup.set()
            return records, unreadable

    def _ack_passed_over(self, now: float) -> None:
        """Other tags are done with for the whole group."""
        passed = self._held_batches.passed_over
        for batch, offset in passed:
            if self._session.ack_accumulator.add(batch.gid, batch.source, offset, now):
                self.router.wakeup.set()
        self._counted.passed_over += len(passed)
        passed.clear()

    def done_with(self, unreadable: Sequence[Unreadable]) -> None:
        """Nacks messages that cannot be handed out, so that others are not held up, and they end as dead
        letters if they stay unreadable."""
        for batch, offset, reason in unreadable:
            with self.condition:
                self._held_batches.settled(batch, offset)
            try:
                self.settling.nack_in(batch, offset, BY_TABLE, reason_text(reason), BY_CLIENT)
            except EscrowMQError as error:  # its lease ends, and it comes again
                log.warning("an unreadable message could not be nacked: %s", error)

    def raise_trouble(self) -> None:
        """Raises an error if nothing came for longer than a fail-over explains, or nothing can come."""
        with self.condition:
            for topic in sorted(self._session.gone):
                raise UnknownTopic(topic, gone=True)
            trouble = self._session.not_begun or self._session.asking.trouble(
                self.clock(), self.config.call_timeout_s
            )
        if trouble is not None:
            raise type(trouble)(*trouble.args)

    # ------------------------------------------------------------ settling

    def ack(self, record: ConsumerRecord, result: bytes | None = None) -> None:
        """See :meth:`ShareConsumer.ack`."""
        app = None if result is None else args.replies_to(record, result)
        if app is not None:
            self.check_open()
            self.settling.ack(record, app, encode_row(record.key, result or b"", None, record.tx_id))
            return
        with self.condition:
            self.check_open()
            batch = self._held_batches.find(record)
            self._held_batches.settled(batch, record.offset)
            if self._session.ack_accumulator.add(batch.gid, batch.source, record.offset, self.clock()):
                self.router.wakeup.set()

    def nack(self, record: ConsumerRecord, delay_s: float | None, reason: str) -> None:
        """See :meth:`ShareConsumer.nack`."""
        delay_ms, text = delay_in_ms(delay_s), reason_text(reason)
        self.check_open()
        self.settling.nack(record, delay_ms, text, BY_CONSUMER)

    def reject(self, record: ConsumerRecord, reason: str) -> None:
        """See :meth:`ShareConsumer.reject`."""
        text = reason_text(reason)
        self.check_open()
        self.settling.nack(record, REJECT, text, BY_CONSUMER)

    def release(self, record: ConsumerRecord) -> None:
        """See :meth:`ShareConsumer.release`."""
        self.check_open()
        self.settling.release(record)

    def extend(self, record: ConsumerRecord, lease_s: float) -> None:
        """See :meth:`ShareConsumer.extend`."""
        seconds = args.check_lease(lease_s)
        self.check_open()
        self.settling.extend(record, seconds)

    def flush(self, timeout_s: float) -> None:
        """See :meth:`ShareConsumer.flush`."""
        session, deadline = self._session, self.clock() + timeout_s
        with self.condition:
            session.ack_accumulator.hurry(self.clock())
            self.router.wakeup.set()
        with self.condition:
            while session.acks_unconfirmed and session.failure is None and not session.ended:
                left_s = deadline - self.clock()
                if left_s <= 0:
                    why = "" if session.ack_delayed is None else f" ({session.ack_delayed})"
                    raise Unavailable(
                        f"{len(session.ack_accumulator)} or more acks are not confirmed{why}", 1.0
                    )
                self.condition.wait(left_s)
            error = session.ack_given_up
            session.ack_delayed = session.ack_given_up = None
        if error is not None:
            raise type(error)(*error.args)

    def statistics(self) -> ShareConsumerStatistics:
        """See :meth:`ShareConsumer.statistics`."""
        with self.condition:
            counted, held = self._counted, self._held_batches
            p50, p99 = counted.ack_latencies.quantiles(self.clock(), 0.5, 0.99)
            return ShareConsumerStatistics(
                group=self.group,
                member=self.member,
                records=counted.records,
                bytes=counted.bytes,
                acquires=counted.acquires,
                acked=counted.acked,
                acks_failed=counted.acks_failed,
                nacked=counted.nacked,
                rejected=counted.rejected,
                released=counted.released,
                pauses=counted.pauses,
                pausing=counted.pausing,
                passed_over=counted.passed_over,
                leases_lost=held.leases_lost,
                extensions=counted.extensions,
                buffered=held.buffered,
                held=len(held),
                acks_waiting=len(self._session.ack_accumulator),
                ack_p50_s=p50,
                ack_p99_s=p99,
            )

    # ------------------------------------------------------------ the end

    def forked(self) -> None:
        """See :class:`~escrowmq.actors.client.closing.Forkable`."""
        self.condition = ObservableCondition(threading.Lock())
        self.closed, self._why = True, f"this share consumer cannot be used: {FORKED}"

    def close(self) -> None:
        """Gives back what was not handed out, waits for acks, and stops. Idempotent. Raises Unavailable if
        acks were not confirmed, after everything is closed."""
        with self.condition:
            if self.closed:
                return
            self.closed = True
            self.condition.notify_all()
            self._session.stopping = True
        self.router.post(self._give_back)
        try:
            self.flush(self.config.call_timeout_s)
        finally:
            self.router.close()  # closes the calls, too

    def _give_back(self) -> None:
        with self.condition:
            self._session.give_back()
