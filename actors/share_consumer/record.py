"""What ``poll`` of a share consumer returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.replication.format.forwarded import Origin, history
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.model import ConsumerRecord


@dataclass(frozen=True, slots=True)
class ShareRecord(ConsumerRecord):
    """A message that belongs to one consumer of a share group until its lease ends."""

    #: 1, and one more after each nack, and after each third lease that ended by itself.
    attempt: int = 1
    #: Number of the lease, for the consumer that polled it.
    lease: int = field(default=0, repr=False, compare=False)

    @property
    def origin(self) -> Origin:
        """Where the message was sent to: ``(topic, partition, offset, timestamp)``. The same at all attempts,
        while ``topic`` and ``offset`` are those of a copy after the first one."""
        return origin_of(self)


def origin_of(record: ConsumerRecord) -> Origin:
    """See :attr:`ShareRecord.origin`. Headers count only where brokers alone write."""
    found = history(record.headers).origin if is_internal(record.topic) else None
    return found or Origin(record.topic, record.partition, record.offset, record.timestamp)


def attempt_of(record: ConsumerRecord) -> int:
    """How many times this message has been delivered, if each of them but this one has failed: from 1."""
    return history(record.headers).attempt if is_internal(record.topic) else 1
