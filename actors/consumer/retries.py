"""Retries of a group that reads by offsets: what exists before, and the failures of one consumer.

With ``order="concurrent"`` a message that failed is copied by its broker into the group's topic of retries,
with a timer, or among its dead letters; only when that is durable may a commit pass the message. Until then,
and again if that could not be confirmed, it counts as one that waits for redelivery (``Redelivery``).

With ``order="ordered"`` see ordered_retries.py.

The group reads its topic of retries beside those that it subscribes to, from the beginning. In an ordered
group only messages come there that an operator has redriven.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from escrowmq.actors.client.call_arguments import delay_in_ms, reason_text
from escrowmq.actors.client.results import submitting
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.share_groups import make_internal_topics, of_kind, send_settling
from escrowmq.actors.client.wakeup import wait_out
from escrowmq.actors.consumer import arguments as args
from escrowmq.actors.consumer.membership_thread import Membership
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.positions import PartitionState, Positions
from escrowmq.actors.consumer.record_drain import Redelivery
from escrowmq.actors.consumer.records import StreamRecord, attempt_of
from escrowmq.actors.consumer.subscribing import Subscribing
from escrowmq.replication.errors import (
    ConfigError,
    DamagedValue,
    NotDeserializable,
    OffsetOutOfRange,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format.internal_topics import retry_topic
from escrowmq.replication.format.settings import STREAM
from escrowmq.replication.format.share_ops import BY_TABLE, REJECT, nack
from escrowmq.replication.model import NO_ID, ConsumerRecord

#: A message whose failure could not be made durable is returned again after this time.
AGAIN_S = 5.0
#: Of a call that only a consumer with retries can do.
NEEDS_RETRY = "needs a consumer with retries: give retry=RetryPolicy(order=...)"
#: Who says that a message could not be handled, as its copy tells.
BY_CONSUMER, BY_CLIENT = "consumer", "client"


class Reader(Protocol):
    """The consumer, as far as it is needed here; see ``ConsumerCore``."""

    @property
    def router(self) -> Router: ...
    @property
    def offsets(self) -> OffsetReader: ...
    @property
    def positions(self) -> Positions: ...
    @property
    def redelivery(self) -> Redelivery: ...
    @property
    def condition(self) -> threading.Condition: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    def check_open(self) -> None: ...
    def assigned(self, topic: str, partition: int) -> PartitionState: ...


class LocalRetries:
    """Of a consumer without ``retry``: it keeps the message itself. Thread-safe."""

    #: Whether ``settle_waiting`` has something to do.
    has_waiting = False

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def nack(self, record: ConsumerRecord, delay_s: float | None, reason: str) -> None:
        """See :meth:`Consumer.nack`."""
        wait_s = args.NACK_DELAY_S if delay_s is None else delay_s
        args.check_delay(wait_s)
        reader = self._reader
        with reader.condition:
            state = reader.assigned(record.topic, record.partition)
            args.check_returned(record, state.position)
            args.check_not_taken(record, state.taken)
            reader.redelivery.add(record, reader.clock() + wait_s)
            reader.condition.notify_all()

    def settle_waiting(self, *, raises: bool = False) -> None:
        """Nacks that count only together with what lies before them count now, if that was committed. May
        block. Called by ``poll`` first, and behind a commit, which ``raises`` what prevents it."""

    def reject(self, record: ConsumerRecord, reason: str) -> None:
        """Raises ConfigError."""
        raise ConfigError(f"reject {NEEDS_RETRY}")


class Retries:
    """What both orders share. Blocking; thread-safe."""

    #: Whether what lies before a record that is nacked was handled, and no transaction has it: see ``run``.
    one_by_one = False

    def __init__(
        self, reader: Reader, member: Membership, subscribing: Subscribing, timeout_s: float
    ) -> None:
        self._reader, self._member, self._subscribing = reader, member, subscribing
        self._timeout_s = timeout_s
        #: The record that the application has settled last.
        self.last: ConsumerRecord | None = None

    def begin(self) -> None:
        """Makes everything that the group needs. Safe to repeat. Raises GroupKindMismatch,
        Overloaded, Unavailable."""
        router, group, wait_s = self._reader.router, self._member.group, self._timeout_s
        submit, groups = submitting(router, wait_s), router.info.groups
        of_kind(submit, groups, group, STREAM)
        make_internal_topics(router, submit, group, wait_s)
        # Whatever failed before a member read its retries must not be skipped by "latest".
        own = retry_topic(group)
        partitions = {(own, partition): False for partition in range(groups)}
        if self._reader.offsets.begin(group, partitions, wait_s):
            raise Unavailable(f"a broker group has not created topic {own!r} yet", 1.0)
        self._member.own_topics = (own,)

    def with_past(self, record: ConsumerRecord) -> StreamRecord:
        """Locked: the record as ``poll`` returns it."""
        return stream_record(record, attempt_of(record))

    def nack(self, record: ConsumerRecord, delay_s: float | None, reason: str) -> None:
        """See :meth:`Consumer.nack`."""
        delay_ms, text = delay_in_ms(delay_s), reason_text(reason)
        self._reader.check_open()
        self._failed(record, delay_ms, text, BY_CONSUMER)
        self.last = record

    def reject(self, record: ConsumerRecord, reason: str) -> None:
        """See :meth:`Consumer.reject`."""
        text = reason_text(reason)
        self._reader.check_open()
        self._failed(record, REJECT, text, BY_CONSUMER)
        self.last = record

    @property
    def has_waiting(self) -> bool:
        """See :meth:`LocalRetries.settle_waiting`."""
        return False

    def settle_waiting(self, *, raises: bool = False) -> None:
        """See :meth:`LocalRetries.settle_waiting`."""

    def unreadable(self, error: NotDeserializable | DamagedValue) -> None:
        """Nacks a message that ``poll`` cannot return, and passes over it."""
        reason = reason_text(f"{type(error).__name__}: {error.reason}")
        record = ConsumerRecord(error.topic, error.partition, error.offset, 0, None, b"", {}, None)
        with self._reader.condition:
            state = self._reader.assigned(error.topic, error.partition)
            if state.position != error.offset:
                return  # the application has sought elsewhere
            state.restart(error.offset + 1)
        try:
            self._failed(record, BY_TABLE, reason, BY_CLIENT)
        except BaseException:
            with self._reader.condition:
                self._reader.redelivery.discard(record)  # ``poll`` comes to the message itself again
                state.restart(error.offset)
            raise

    def _failed(self, record: ConsumerRecord, delay_ms: int, reason: str, by: str) -> None:
        raise NotImplementedError

    def _send(
        self, state: PartitionState, offset: int, delay_ms: int, reason: str, by: str, attempt: int = 1
    ) -> None:
        """Has the broker copy the message. Raises UnknownTopic, OffsetOutOfRange, TooManyScheduled,
        Unavailable, OutcomeUnknown."""
        reader, topic = self._reader, state.topic
        topic_id = self._member.ids.get(topic, NO_ID)
        if topic_id == NO_ID:
            topic_id = reader.router.placement.id_of(topic)
        request = nack(
            self._member.group,
            topic,
            state.partition,
            [offset],
            [delay_ms],
            [reason],
            "",
            by,
            topic_id,
            stream=True,
            attempt=attempt,
        )
        message = topic, state.partition, offset
        group = self._member.group
        send_settling(reader.router, group, state.gid, request, message, self._timeout_s, self._pause)

    def _pause(self, seconds: float) -> None:
        wait_out(self._reader.condition, self._reader.clock, seconds)


class ConcurrentRetries(Retries):
    """``order="concurrent"``."""

    def _failed(self, record: ConsumerRecord, delay_ms: int, reason: str, by: str) -> None:
        reader = self._reader
        with reader.condition:
            state = reader.assigned(record.topic, record.partition)
            args.check_returned(record, state.position)
            reader.redelivery.add(record, float("inf"))  # no commit passes it
        try:
            self._send(state, record.offset, delay_ms, reason, by)
            with reader.condition:
                reader.redelivery.discard(record)
        except (UnknownTopic, OffsetOutOfRange):
            with reader.condition:
                reader.redelivery.discard(record)
            raise
        except BaseException:  # also of a signal's handler: nobody else would return the record
            with reader.condition:
                if reader.redelivery.discard(record):
                    reader.redelivery.add(record, reader.clock() + AGAIN_S)
                    reader.condition.notify_all()
            raise


def stream_record(record: ConsumerRecord, attempt: int) -> StreamRecord:
    """The same record, which tells its attempt."""
    return StreamRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
        record.tx_id,
        attempt,
    )
