"""Settings of a producer, with the reason for each default.

A nonsensical value raises ConfigError where it is written, never later at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.producer.compression import Compression, compression_of
from escrowmq.replication.carried_settings import by_name
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.setting_checks import check_not_negative, check_positive

KIB, MIB = 1 << 10, 1 << 20


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer batches, waits and gives up."""

    #: While a call is under way: how long plain messages wait for others to share the next one. It turns
    #: single sends into calls of dozens of messages. A message that finds no call under way leaves at once.
    linger_ms: float = 3.0
    #: A transaction waits at most this long for those whose predecessors were answered together with its own:
    #: their callers come back at the same time and can share a call. A lone transaction never waits.
    transaction_linger_ms: float = 1.0
    #: Bytes of one call. Below Ray's limit of 100 KiB, arguments are sent inside the call; just above it they
    #: go through shared memory at twice the cost.
    request_bytes: int = 96 * KIB
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
            raise ConfigError("message_bytes_max must not exceed transaction_bytes_max")
        if self.transaction_bytes_max > self.buffer_bytes:
            raise ConfigError("transaction_bytes_max must not exceed buffer_bytes: it could never be sent")

    @property
    def packing(self) -> Compression | None:
        """How values are compressed; None: not at all."""
        return compression_of(self.compression, self.compression_level, self.compress_from)
