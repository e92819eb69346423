"""A share consumer's counters and present state, updated per poll and per call."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.actors.client.statistics import RecentLatencies


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerStatistics:
    """Statistics of one share consumer, for both interfaces together. Counters start at its creation.

    ``records``: returned by ``poll``. ``bytes``: received. ``acked``: final, durably; ``acks_failed``: given
    up, so these messages are delivered again. ``nacked`` (with those that could not be read), ``rejected``
    and ``released`` (with what lay in the buffer) are counted when a broker has confirmed them.
    ``passed_over``: had none of this consumer's ``tags``, and were acked; they are in ``acked``, too.
    ``pauses``: times in which no handler was called, since what it needs was away (``pause_on`` of ``run``);
    ``pausing``: why this is so now; "": it is not.
    ``leases_lost``: messages whose lease ended before they were settled. ``extensions``: calls for that.

    ``buffered`` (waiting for ``poll``), ``held`` (buffered, or with the application) and ``acks_waiting``
    describe the present. ``ack_p50_s`` and ``ack_p99_s`` cover the last one to two minutes, without the time
    for which acks are gathered; None if there were none.
    """

    group: str
    member: str
    records: int
    bytes: int
    acquires: int
    acked: int
    acks_failed: int
    nacked: int
    rejected: int
    released: int
    pauses: int
    pausing: str
    passed_over: int
    leases_lost: int
    extensions: int
    buffered: int
    held: int
    acks_waiting: int
    ack_p50_s: float | None
    ack_p99_s: float | None


class ShareCounted:
    """The counters behind ``ShareConsumerStatistics``. Each is written under the consumer's lock."""

    __slots__ = (
        "ack_latencies", "acked", "acks_failed", "acquires", "bytes", "extensions", "nacked", "passed_over",
        "pauses", "pausing", "records", "rejected", "released",
    )  # fmt: skip

    def __init__(self) -> None:
        self.records = self.bytes = self.acquires = self.extensions = 0
        self.acked = self.acks_failed = self.nacked = self.rejected = self.released = self.passed_over = 0
        self.pauses, self.pausing = 0, ""
        self.ack_latencies = RecentLatencies()
