"""A producer's counters and present state, updated per request and per batch, never per message.

Compressed values are the exception: each of them is counted (value_packer.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.actors.client.latencies import RecentLatencies


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """Statistics of one producer, for both interfaces together. Counters start at its creation. They are not
    all read at the same moment.

    ``messages``: plain messages that were stored. ``message_bytes``: their size as encoded.
    ``messages_failed``: those whose future has an error. ``transactions_prepared``, ``_committed``,
    ``_rolled_back``: as their home group answered; decisions by checks are not counted. ``requests``: calls
    that were answered or given up. ``request_bytes``: their contents. ``requests_repeated``: those that may
    have been carried out more than once. ``retries``: attempts after the first, because of a fail-over, a
    refusal or a lost answer.

    ``values_compressed``: values of all kinds of messages. ``bytes_saved``: what that has taken off the
    encoded messages. Both stay 0 below format level 7.

    ``requests_in_flight``, ``buffered_bytes`` (of ``buffer_bytes_max``, which adapts to the amount that is
    answered in time) and ``buffer_fill`` (their ratio) describe the present. ``latency_p50_s``,
    ``latency_p99_s``: from accepting the oldest part of a request to its answer, including linger, over the
    last one to two minutes, accurate to within a quarter; None if there was no request.
    """

    app: str
    messages: int
    message_bytes: int
    messages_failed: int
    transactions_prepared: int
    transactions_committed: int
    transactions_rolled_back: int
    requests: int
    requests_repeated: int
    request_bytes: int
    retries: int
    requests_in_flight: int
    buffered_bytes: int
    buffer_bytes_max: int
    latency_p50_s: float | None
    latency_p99_s: float | None
    values_compressed: int = 0
    bytes_saved: int = 0

    @property
    def buffer_fill(self) -> float:
        """0 to 1, or slightly above while something large is sent."""
        return self.buffered_bytes / self.buffer_bytes_max


class Counted:
    """The counters behind ``ProducerStatistics``. Written only by the router's thread; any thread may read
    them."""

    __slots__ = (
        "committed",
        "latencies",
        "message_bytes",
        "messages",
        "messages_failed",
        "prepared",
        "repeated",
        "request_bytes",
        "requests",
        "rolled_back",
    )

    def __init__(self) -> None:
        self.messages = self.message_bytes = self.messages_failed = 0
        self.prepared = self.committed = self.rolled_back = 0
        self.requests = self.repeated = self.request_bytes = 0
        self.latencies = RecentLatencies()

    def request(self, size: int, latency_s: float, repeated: bool, now: float) -> None:
        """Counts a request that has ended."""
        self.requests += 1
        self.request_bytes += size
        self.repeated += repeated
        if latency_s < float("inf"):
            self.latencies.observe(latency_s, now)
