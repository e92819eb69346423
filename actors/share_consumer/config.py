"""Settings of a share consumer, with the reason for each default.

A nonsensical value raises ConfigError where it is written, never later at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.replication.carried_settings import by_name, check_not_negative, check_positive
from escrowmq.replication.errors import ConfigError, InvalidMessage, MessageTooLarge
from escrowmq.replication.format.internal_topics import owner_problem
from escrowmq.replication.format.settings import LEASE_MS
from escrowmq.replication.model import ConsumerRecord

MIB = 1 << 20
#: Shortest and longest lease that a broker gives.
LEASE_S_MIN, LEASE_S_MAX = (bound / 1000 for bound in LEASE_MS)


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerConfig:
    """How a share consumer takes messages, and how it settles them."""

    #: Where the group begins in a partition that it has never read: "latest" or "earliest". Only the first
    #: consumer of a group decides. Latest, as for other groups: history must be requested explicitly.
    auto_offset_reset: str = "latest"
    #: How long a message belongs to this consumer before another one may get it, unless the lease is
    #: extended. None: as it is set for the group, by default 30 s, as in Kafka: the time that is lost when a
    #: consumer dies.
    lease_s: float | None = None
    #: A message that waits here or is handled keeps its lease for this long at most. Five minutes is the
    #: pause after which other consumers of this broker are also taken to hang.
    lease_extend_max_s: float = 300.0
    #: Messages taken ahead of ``poll`` at most. No other consumer gets them meanwhile, so it is what the
    #: application works off in half a second at the pace that is measured, and nothing if one message takes
    #: longer. As many as arrive during one call to the broker keep a fast handler busy. 0: never any.
    prefetch_records: int = 100
    #: Bytes of one answer.
    acquire_bytes: int = 1 * MIB
    #: How long the broker may wait for messages before it answers that there are none. A leader that dies
    #: is noticed this much later, plus ``channel.probe_after_s``.
    acquire_wait_s: float = 1.0
    #: Broker groups that are asked for messages at a time. More calls would rarely bring more: one answer
    #: fills the buffer.
    groups_at_a_time: int = 8
    #: Acks of this time go into one request: adjacent ones become a range, and a handler does not wait for
    #: them.
    ack_linger_ms: float = 5.0
    #: With so many acks a request is sent at once.
    ack_records: int = 500
    #: From a call to its answer, with all retries and fail-overs.
    call_timeout_s: float = 30.0
    channel: ChannelConfig = field(default_factory=ChannelConfig)

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in ("earliest", "latest"):
            raise ConfigError(
                f"auto_offset_reset must be 'earliest' or 'latest', not {self.auto_offset_reset!r}"
            )
        check_positive(self, "lease_extend_max_s", "acquire_bytes", "acquire_wait_s")
        check_positive(self, "groups_at_a_time", "ack_records", "call_timeout_s")
        check_not_negative(self, "prefetch_records", "ack_linger_ms")
        if self.lease_s is not None:
            check_positive(self, "lease_s")
            if not LEASE_S_MIN <= self.lease_s <= LEASE_S_MAX:
                raise ConfigError(
                    f"lease_s must be {LEASE_S_MIN:g} to {LEASE_S_MAX:g} seconds, or None for the group's, "
                    f"not {self.lease_s!r}"
                )


# ------------------------------------------------------------------------------------------------------------
# Checks of what callers pass to a share consumer, made at the call, with the argument's name in the text.

#: Threads of one ``run``: as many as a process can have at all.
THREADS_MAX = 10_000
#: Result of an ack: a reply is a message, and messages are of about this size by default.
RESULT_BYTES_MAX = 1 << 20


def check_lease(lease_s: object) -> float:
    """The length of a lease. Raises InvalidMessage."""
    if (
        isinstance(lease_s, bool)
        or not isinstance(lease_s, int | float)
        or not LEASE_S_MIN <= lease_s <= LEASE_S_MAX
    ):
        raise InvalidMessage(f"lease_s must be {LEASE_S_MIN:g} to {LEASE_S_MAX:g} seconds, not {lease_s!r}")
    return float(lease_s)


def check_threads(threads: object, name: str = "threads") -> int:
    """How many messages are handled at a time. Raises ConfigError."""
    if type(threads) is not int or not 1 <= threads <= THREADS_MAX:
        raise ConfigError(f"{name} must be 1 to {THREADS_MAX}, not {threads!r}")
    return threads


def replies_to(record: ConsumerRecord, result: object) -> str | None:
    """The app that is told about the record; None: nobody wants to hear, or nobody of that name can. Raises
    InvalidMessage, MessageTooLarge."""
    if type(result) is not bytes:
        raise InvalidMessage(f"result must be bytes, not {type(result).__name__}; encode it first")
    if len(result) > RESULT_BYTES_MAX:
        raise MessageTooLarge(len(result), RESULT_BYTES_MAX)
    app = record.reply_to
    return None if app is None or owner_problem("app", app) is not None else app
