"""Settings of a producer, with the reason for each default.

A nonsensical value raises ConfigError where it is written, never later at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.statistics import RecentLatencies
from escrowmq.replication.carried_settings import by_name, check_not_negative, check_positive
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.format.packing import METHODS

# ------------------------------------------------------------------------------------------------------------
# How values are compressed: common to a producer's settings, Spark's options and Ray Data's arguments.

#: Smaller values are not compressed by default: below a kilobyte too little is saved.
LEAST_BYTES = 1 << 10
#: Of zstd.
LEVEL_MAX = 22


@dataclass(frozen=True, slots=True)
class Compression:
    """``method``: a key of ``packing.METHODS``. ``level``: of zstd, 1 to 22; None: 1. ``least``: bytes of the
    smallest value that is compressed."""

    method: str
    level: int | None = None
    least: int = LEAST_BYTES


def compression_of(method: str | None, level: int | None, least: int = LEAST_BYTES) -> Compression | None:
    """The settings ``compression``, ``compression_level`` and ``compress_from``; None: nothing is compressed.

    Raises ConfigError, also for a level without a method that has levels.
    """
    if method not in (None, *METHODS):
        names = ", ".join(map(repr, METHODS))
        raise ConfigError(f"compression must be {names} or None, not {method!r}")
    if level is not None and method != "zstd":
        raise ConfigError("compression_level is for compression='zstd' only")
    if level is not None and (type(level) is not int or not 1 <= level <= LEVEL_MAX):
        raise ConfigError(f"compression_level must be 1 to {LEVEL_MAX}, not {level!r}")
    return None if method is None else Compression(method, level, least)


KIB, MIB = 1 << 10, 1 << 20
#: From here on a call leaves without waiting for its linger.
FULL_BYTES = 96 * KIB


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer batches, waits and gives up."""

    #: While a call is under way: how long plain messages wait for others to share the next one. It turns
    #: single sends into calls of dozens of messages. A message that finds no call under way leaves at once.
    linger_ms: float = 3.0
    #: A transaction waits at most this long for those whose predecessors were answered together with its own:
    #: their callers come back at the same time and can share a call. A lone transaction never waits.
    transaction_linger_ms: float = 1.0
    #: Bytes of one call, at most. A call leaves from 96 KiB on; it is larger if more has gathered meanwhile,
    #: while others were under way. Per byte, calls of a MiB cost all processes half of what those of 96 KiB
    #: cost.
    request_bytes: int = 1 * MIB
    #: Bytes queued and under way in one producer. Thirty times what saturates a group.
    buffer_bytes: int = 32 * MIB
    #: When requests wait longer than this for their answer, the buffer shrinks, down to 16 KiB, until they do
    #: not. Most fail-overs are over in a second; a longer wait means that there is too much to send.
    buffer_s: float = 1.0
    #: How long a call waits for room in the buffer before it raises Overloaded.
    buffer_wait_s: float = 10.0
    #: From a call to its answer, with all retries and fail-overs. A fail-over takes 1 to 2 s; a machine that
    #: swaps or a lost node takes up to 15.
    delivery_timeout_s: float = 30.0
    #: The largest message. A larger body belongs in an object store, with a reference in the message.
    message_bytes_max: int = 1 * MIB
    #: All messages of one transaction together. They are kept in memory until prepared.
    transaction_bytes_max: int = 16 * MIB
    #: Transactions larger than this are prepared in parts, so that none of them holds up the log. From 1 MiB
    #: on, calls through shared memory are cheap per byte.
    part_bytes: int = 1 * MIB
    #: Time from prepare to the first check; None: the topic's setting (by default 6 s).
    transaction_timeout_s: float | None = None
    #: How long to wait for other transactions to settle when the limit of open transactions is reached. 0
    #: raises TooManyOpenTransactions at once, so that the caller decides.
    open_limit_wait_s: float = 0.0
    #: True: COMMIT is sent but not waited for. If it is lost, the check commits the transaction, so nothing
    #: is lost, but its messages may appear only after the check. False, since readers usually expect them at
    #: once.
    one_way_commit: bool = False
    #: Calls under way of one ``send_transactions``: enough to saturate a group, few enough to stay fair.
    bulk_calls_in_flight: int = 8
    #: How values are compressed: "zstd", "lz4", or None. None, since it costs the producer and each reader 2
    #: to 25 us for a value of 4 KiB; it pays where disks or networks are the limit. It needs pyarrow.
    compression: str | None = None
    #: Level of zstd, 1 to 22; None: 1, since higher ones take much more time for little.
    compression_level: int | None = None
    #: Smaller values are not compressed: below a kilobyte too little is saved. Neither are values that would
    #: not become smaller, nor those above 8 MiB.
    compress_from: int = 1 * KIB
    channel: ChannelConfig = field(default_factory=ChannelConfig)

    def __post_init__(self) -> None:
        check_not_negative(self, "linger_ms", "transaction_linger_ms", "buffer_wait_s", "open_limit_wait_s")
        check_positive(
            self, "request_bytes", "buffer_bytes", "buffer_s", "delivery_timeout_s", "message_bytes_max"
        )
        check_positive(self, "transaction_bytes_max", "part_bytes", "bulk_calls_in_flight")
        check_positive(self, "compress_from")
        compression_of(self.compression, self.compression_level)
        if self.transaction_timeout_s is not None:
            check_positive(self, "transaction_timeout_s")
        if self.message_bytes_max > self.transaction_bytes_max:
            raise ConfigError(
                f"message_bytes_max ({self.message_bytes_max}) exceeds transaction_bytes_max "
                f"({self.transaction_bytes_max}); lower the first, or set transaction_bytes_max to at least "
                "as much"
            )
        if self.transaction_bytes_max > self.buffer_bytes:
            raise ConfigError(
                f"transaction_bytes_max ({self.transaction_bytes_max}) exceeds buffer_bytes "
                f"({self.buffer_bytes}), so the largest transaction could never be sent; lower the first, or "
                "set buffer_bytes to at least as much"
            )

    @property
    def full_bytes(self) -> int:
        """Bytes of a call that need not wait for more."""
        return min(self.request_bytes, FULL_BYTES)

    @property
    def packing(self) -> Compression | None:
        """How values are compressed; None: not at all."""
        return compression_of(self.compression, self.compression_level, self.compress_from)


# ------------------------------------------------------------------------------------------------------------
# A producer's counters and present state, updated per request and per batch, never per message.
#
# Compressed values are the exception: each of them is counted (value_packer.py).


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
    encoded messages.

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
