"""Settings of a consumer, with the reason for each default.

A nonsensical value raises ConfigError where it is written, never later at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.replication.carried_settings import by_name, check_not_negative, check_positive
from escrowmq.replication.errors import ConfigError

MIB = 1 << 20
FETCH_BYTES: Final = 4 * MIB


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer fetches and keeps its membership."""

    #: Where to start without a committed offset (or with one that is gone): "earliest", "latest", or
    #: "none" (raise OffsetOutOfRange). Latest, as in Kafka: history must be requested explicitly.
    auto_offset_reset: str = "latest"
    #: Bytes of one fetch, at most. A consumer begins with 1 MiB and doubles while full answers come within a
    #: quarter of a second: fewer and larger calls cost less per message (half as much time with 256 B), and a
    #: slow way is not given more than it carries. A call that waits for news asks for 1 MiB. At most half of
    #: ``buffer_bytes``, which also bounds the default.
    fetch_bytes: int = FETCH_BYTES
    #: How long a fetch waits at the broker for new messages. A replica that stays silent for this long plus
    #: ``channel.probe_after_s`` is given up for another, so this bounds the pause when one dies; the four
    #: idle calls a second cost 0.1 % of a core.
    fetch_wait_s: float = 0.25
    #: Fetch calls under way per broker, so that partitions with new messages need not wait for idle ones.
    fetch_calls_in_flight: int = 3
    #: At the end of a partition: pause before fetching again, so that messages that trickle in arrive
    #: together. With 5 ms the CPU cost is a third of that without a pause (measured), and the pause is
    #: shorter than replication takes.
    fetch_linger_ms: float = 5.0
    #: Bytes fetched but not yet polled. Bounds memory when the application is slower than the broker.
    buffer_bytes: int = 16 * MIB
    #: A member that is silent for this long is taken for dead and its partitions go to others. 10 s outlast a
    #: fail-over and ordinary pauses.
    session_timeout_s: float = 10.0
    #: Several heartbeats must fit into a session; their answers also tell of a changed assignment.
    heartbeat_interval_s: float = 1.0
    #: A member that does not poll for this long is taken to hang, even though its heartbeats continue: it
    #: leaves the group, so that others read its partitions. Five minutes, as in Kafka.
    poll_interval_max_s: float = 300.0
    #: How often a subscription to a pattern looks for topics that were created or deleted. The request is
    #: small, and names come only after a change: 200 us of the leader's time for each consumer.
    pattern_interval_s: float = 5.0
    #: From a call to its answer, with all retries and fail-overs.
    call_timeout_s: float = 30.0
    channel: ChannelConfig = field(default_factory=ChannelConfig)

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            raise ConfigError(
                f"auto_offset_reset must be 'earliest', 'latest' or 'none', not {self.auto_offset_reset!r}"
            )
        check_positive(self, "fetch_bytes", "fetch_wait_s", "fetch_calls_in_flight", "buffer_bytes")
        check_positive(
            self, "session_timeout_s", "heartbeat_interval_s", "poll_interval_max_s", "call_timeout_s"
        )
        check_positive(self, "pattern_interval_s")
        check_not_negative(self, "fetch_linger_ms")
        if self.fetch_bytes == FETCH_BYTES > self.buffer_bytes:  # nobody asked for it
            object.__setattr__(self, "fetch_bytes", self.buffer_bytes)
        if self.fetch_bytes > self.buffer_bytes:
            raise ConfigError("fetch_bytes must not exceed buffer_bytes: one fetch must fit into the buffer")
        if self.heartbeat_interval_s * 2 > self.session_timeout_s:
            raise ConfigError("heartbeat_interval_s must be at most half of session_timeout_s")


# ------------------------------------------------------------------------------------------------------------
# What a consumer does with a message that could not be handled: the argument ``retry``.

#: Values of ``RetryPolicy.order``.
CONCURRENT: Final = "concurrent"
ORDERED: Final = "ordered"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What ``nack`` of a consumer does.

    ``order="concurrent"``: the message leaves its partition and comes again later, as a copy in the group's
    topic of retries, while those behind it go on. ``order="ordered"``: its partition waits, and ``poll``
    returns it again, and then all behind it. How often and after which pauses a message comes again is a
    setting of the group (``admin.set_group``); at the end it becomes a dead letter. Raises ConfigError.
    """

    order: str

    def __post_init__(self) -> None:
        if self.order not in (CONCURRENT, ORDERED):
            raise ConfigError(f"order must be {CONCURRENT!r} or {ORDERED!r}, not {self.order!r}")


def check_retry(retry: object, group: str | None) -> None:
    """Raises ConfigError unless it is a policy of a member of a group, or None."""
    if retry is None:
        return
    if not isinstance(retry, RetryPolicy):
        raise ConfigError(f"retry must be a RetryPolicy, such as RetryPolicy(order='ordered'), not {retry!r}")
    if group is None:
        raise ConfigError("retry is for members of a group: give group=...")
