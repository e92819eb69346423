"""What ``poll`` of a share consumer returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.actors.consumer.stream_record import StreamRecord


@dataclass(frozen=True, slots=True)
class ShareRecord(StreamRecord):
    """A message that belongs to one consumer of a share group until its lease ends.

    ``attempt`` counts failures and, since the last one, leases that ended by themselves. Three of those in a
    row are one failure, so at the last attempt of a group the number may be higher by two."""

    #: Number of the lease, for the consumer that polled it.
    lease: int = field(default=0, repr=False, compare=False)
