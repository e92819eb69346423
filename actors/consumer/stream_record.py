"""What ``poll`` of a consumer with retries returns, and what the headers of any record tell of its past."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.format.forwarded import Origin, history
from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.model import ConsumerRecord


def origin_of(record: ConsumerRecord) -> Origin:
    """See :attr:`StreamRecord.origin`. Headers count only where brokers alone write."""
    found = history(record.headers).origin if is_internal(record.topic) else None
    return found or Origin(record.topic, record.partition, record.offset, record.timestamp)


def attempt_of(record: ConsumerRecord) -> int:
    """How many times this message has been delivered, if each of them but this one has failed: from 1."""
    return history(record.headers).attempt if is_internal(record.topic) else 1


@dataclass(frozen=True, slots=True)
class StreamRecord(ConsumerRecord):
    """A committed message as a consumer with ``retry`` sees it."""

    #: 1, and one more after each nack.
    attempt: int = 1

    @property
    def origin(self) -> Origin:
        """Where the message was sent to: ``(topic, partition, offset, timestamp)``. The same at all attempts,
        while ``topic`` and ``offset`` may be those of a copy after the first one."""
        return origin_of(self)
