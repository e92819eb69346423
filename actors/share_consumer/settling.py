"""What is said of one message: ack with a reply, nack, reject, release, extend. Blocking; from any thread.

These are rare and matter one by one, so each is a call of its own, and returns when the broker has confirmed
it. A nack or a reject may be repeated: for a message that is final already it does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.settling_calls import send_settling
from escrowmq.actors.share_consumer.held_batches import Batch, HeldBatches
from escrowmq.actors.share_consumer.statistics import ShareCounted
from escrowmq.replication.errors import EscrowMQError, LeaseLost, UnknownGroup, UnknownTopic
from escrowmq.replication.format.share_ops import REJECT, nack, share_reply
from escrowmq.replication.model import ConsumerRecord


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
        with self._condition:
            batch = self._held_batches.find(record)
            self._held_batches.settled(batch, record.offset)
        try:
            self.nack_in(batch, record.offset, delay_ms, reason, by)
        except (LeaseLost, UnknownTopic, UnknownGroup):
            raise
        except EscrowMQError:
            with self._condition:
                self._held_batches.reopened(batch, record.offset)
            raise

    def ack(self, record: ConsumerRecord, app: str, row: bytes) -> None:
        """The message is done, and the app is told ``row``, unless it was done before. Raises RecordNotHeld,
        UnknownTopic, Unavailable, DiskFull, OutcomeUnknown: then it may be repeated."""
        with self._condition:
            batch = self._held_batches.find(record)
            self._held_batches.settled(batch, record.offset)
        topic, partition, topic_id = batch.place
        request = share_reply(self._group, topic, partition, app, [record.offset], [row], topic_id)
        place = topic, partition, record.offset
        try:
            send_settling(self._router, self._group, batch.gid, request, place, self._timeout_s, self._pause)
        except (UnknownTopic, UnknownGroup):
            raise
        except EscrowMQError:
            with self._condition:
                self._held_batches.reopened(batch, record.offset)
            raise
        with self._condition:
            self._counted.acked += 1

    def nack_in(self, batch: Batch, offset: int, delay_ms: int, reason: str, by: str) -> None:
        """The same for a message that is not open any more."""
        topic, partition, topic_id = batch.place
        request = nack(
            self._group, topic, partition, [offset], [delay_ms], [reason], self._member, by, topic_id
        )
        place = topic, partition, offset
        send_settling(self._router, self._group, batch.gid, request, place, self._timeout_s, self._pause)
        with self._condition:
            if delay_ms == REJECT:
                self._counted.rejected += 1
            else:
                self._counted.nacked += 1

    def release(self, record: ConsumerRecord) -> None:
        """Back at once, and not counted. Raises RecordNotHeld, LeaseLost, Unavailable, OutcomeUnknown."""
        with self._condition:
            batch = self._held_batches.find(record)
            self._held_batches.settled(batch, record.offset)
        try:
            self._call(batch, record, "share_release", self._held_batches.answered[batch.gid])
        except LeaseLost:
            raise
        except EscrowMQError:
            with self._condition:
                self._held_batches.reopened(batch, record.offset)
            raise
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
        places = [(record.topic, record.partition, [record.offset, record.offset])]
        call = self._router.leader_call(
            batch.gid, method, self._group, self._member, places, *args, timeout_s=self._timeout_s
        )
        if result_of(call, self._timeout_s):
            raise LeaseLost(record.topic, record.partition, record.offset)
