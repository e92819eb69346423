"""What the holder of a lease says of one message: nack, reject, release, extend. Blocking; from any thread.

These are rare and matter one by one, so each is a call of its own, and returns when the broker has confirmed
it. A nack or a reject may be repeated: for a message that is final already it does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.share_groups import create_internal_topic
from escrowmq.actors.share_consumer.in_hand import Batch, InHand
from escrowmq.actors.share_consumer.results import outcome
from escrowmq.actors.share_consumer.statistics import ShareCounted
from escrowmq.replication.calling.backoff import Backoff
from escrowmq.replication.errors import (
    EscrowMQError,
    LeaseLost,
    OffsetOutOfRange,
    TooManyScheduled,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format.share_ops import REJECT, nack
from escrowmq.replication.model import ConsumerRecord, ResultCode

#: Pauses before a nack that did not fit into its entry is sent again.
AGAIN = Backoff(first_s=0.02, longest_s=0.5, jitter=0.5)


class Settling:
    """See the module's text. ``pause(seconds)`` waits."""

    def __init__(
        self,
        router: Router,
        group: str,
        member: str,
        in_hand: InHand,
        condition: threading.Condition,
        counted: ShareCounted,
        timeout_s: float,
        pause: Callable[[float], None],
    ) -> None:
        self._router, self._group, self._member, self._in_hand = router, group, member, in_hand
        self._condition, self._counted, self._timeout_s, self._pause = condition, counted, timeout_s, pause

    def nack(self, record: ConsumerRecord, delay_ms: int, reason: str, by: str) -> None:
        """The message could not be handled. Raises RecordNotHeld, LeaseLost, UnknownTopic, TooManyScheduled,
        Unavailable, OutcomeUnknown."""
        with self._condition:
            batch = self._in_hand.find(record)
            self._in_hand.settled(batch, record.offset)
        try:
            self.nack_in(batch, record.offset, delay_ms, reason, by)
        except (LeaseLost, UnknownTopic):
            raise
        except EscrowMQError:
            with self._condition:
                self._in_hand.reopened(batch, record.offset)
            raise

    def nack_in(self, batch: Batch, offset: int, delay_ms: int, reason: str, by: str) -> None:
        """The same for a message that is not open any more."""
        topic, partition, topic_id = batch.place
        request = nack(
            self._group, topic, partition, [offset], [delay_ms], [reason], self._member, by, topic_id
        )
        send_nack(self._router, batch.gid, request, (topic, partition, offset), self._timeout_s, self._pause)
        with self._condition:
            if delay_ms == REJECT:
                self._counted.rejected += 1
            else:
                self._counted.nacked += 1

    def release(self, record: ConsumerRecord) -> None:
        """Back at once, and not counted. Raises RecordNotHeld, LeaseLost, Unavailable, OutcomeUnknown."""
        with self._condition:
            batch = self._in_hand.find(record)
            self._in_hand.settled(batch, record.offset)
        try:
            self._call(batch, record, "share_release")
        except LeaseLost:
            raise
        except EscrowMQError:
            with self._condition:
                self._in_hand.reopened(batch, record.offset)
            raise
        with self._condition:
            self._counted.released += 1

    def extend(self, record: ConsumerRecord, lease_s: float) -> None:
        """Its lease ends in ``lease_s`` from now. Raises RecordNotHeld, LeaseLost, Unavailable,
        OutcomeUnknown."""
        with self._condition:
            batch = self._in_hand.find(record)
        self._call(batch, record, "share_extend", lease_s)
        with self._condition:
            self._in_hand.extended_alone(batch, record.offset)

    def _call(self, batch: Batch, record: ConsumerRecord, method: str, *args: Any) -> None:
        places = [(record.topic, record.partition, [record.offset, record.offset])]
        call = self._router.leader_call(
            batch.gid, method, self._group, self._member, places, *args, timeout_s=self._timeout_s
        )
        if result_of(call, self._timeout_s):
            raise LeaseLost(record.topic, record.partition, record.offset)


def send_nack(
    router: Router,
    gid: int,
    request: bytes,
    place: tuple[str, int, int],
    timeout_s: float,
    pause: Callable[[float], None],
) -> None:
    """Sends a NACK of one message until it is durable, and creates the topic that its copy goes to if it is
    missing. Raises LeaseLost, UnknownTopic, TooManyScheduled, Unavailable, OutcomeUnknown."""
    deadline, attempts = router.clock() + timeout_s, 0

    def submit(group: int, operation: bytes) -> tuple[int, Any]:
        left_s = max(deadline - router.clock(), 0.001)
        return outcome(result_of(router.submit(group, operation, left_s), left_s)[0])

    while True:
        code, info = submit(gid, request)
        if code == ResultCode.PARTIAL:
            code, info = outcome(info[0][1:])
        if code in (ResultCode.OK, ResultCode.DUPLICATE):
            return
        if code == ResultCode.UNKNOWN_TOPIC and type(info) is str and info != place[0]:
            create_internal_topic(submit, router.info.groups, info)
        elif code != ResultCode.RETRY:
            raise _why_not(place, code, info)
        if router.clock() >= deadline:
            raise Unavailable("a nack does not get into the log: the broker is busy with others", 1.0)
        pause(AGAIN.pause_s(attempts))
        attempts += 1


def _why_not(place: tuple[str, int, int], code: int, info: Any) -> EscrowMQError:
    topic, partition, offset = place
    if code == ResultCode.LEASE_LOST:
        return LeaseLost(topic, partition, offset)
    if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION, ResultCode.OTHER_TOPIC):
        return UnknownTopic(topic, gone=True)
    if code == ResultCode.OUT_OF_RANGE:
        return OffsetOutOfRange(topic, partition, offset, 0, info if type(info) is int else 0)
    if code == ResultCode.TOO_MANY_SCHEDULED:
        return TooManyScheduled(f"{info} messages wait for their time in this broker group", 1.0)
    return EscrowMQError(f"a nack of {topic}/{partition} was refused: {ResultCode(code).name} {info!r}")
