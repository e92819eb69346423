"""What ``poll`` of a share consumer returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.actors.consumer.stream_record import StreamRecord


@dataclass(frozen=True, slots=True)
class ShareRecord(StreamRecord):
    """A message that belongs to one consumer of a share group until its lease ends. Each third lease that
    ends by itself counts as an attempt, too."""

    #: Number of the lease, for the consumer that polled it.
    lease: int = field(default=0, repr=False, compare=False)
