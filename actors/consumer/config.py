"""Settings of a consumer, each default with its reason.

A nonsensical value raises ConfigError where it is written, never later at work.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.replication.carried_settings import by_name
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.setting_checks import check_not_negative, check_positive

MIB = 1 << 20


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer fetches and keeps its membership."""

    #: Where to start without a committed offset (or with one that is gone): "earliest", "latest", or
    #: "none" (raise OffsetOutOfRange). Latest, as in Kafka: history is asked for explicitly.
    auto_offset_reset: str = "latest"
    #: Bytes of one fetch. 1 MiB is where Ray's calls through shared memory become cheap per byte.
    fetch_bytes: int = 1 * MIB
    #: How long a fetch waits at the broker for news. A replica that stays silent for so long and
    #: ``channel.probe_after_s`` more is left for another, so this bounds the pause when one dies;
    #: four idle calls a second cost 0.1 % of a core.
    fetch_wait_s: float = 0.25
    #: Fetch calls under way per broker. Partitions with news must not wait for those without.
    fetch_calls_in_flight: int = 3
    #: At the end of a partition: pause before asking again, so that messages that trickle in come
    #: together. 5 ms cost a third of the CPU of none (measured) and are below what replication takes.
    fetch_linger_ms: float = 5.0
    #: Bytes fetched but not yet polled. Bounds memory when the application is slower than the broker.
    buffer_bytes: int = 16 * MIB
    #: A member that is silent this long is dead; its partitions move on. 10 s outlast a fail-over and
    #: ordinary pauses.
    session_timeout_s: float = 10.0
    #: Heartbeats: several must fit into a session, and they also say that the assignment changed.
    heartbeat_interval_s: float = 1.0
    #: A member that does not poll for this long hangs, though its heartbeats go on: it leaves, so that
    #: others read its partitions. Five minutes, as in Kafka.
    poll_interval_max_s: float = 300.0
    #: How often a subscription to a pattern looks for topics that were created or deleted. The question is
    #: small, and names come only when there was a change: 200 us of the leader's time for each consumer.
    pattern_interval_s: float = 5.0
    #: From call to answer, with all retries and fail-overs.
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
        if self.fetch_bytes > self.buffer_bytes:
            raise ConfigError("fetch_bytes must not exceed buffer_bytes: one fetch must fit into the buffer")
        if self.heartbeat_interval_s * 2 > self.session_timeout_s:
            raise ConfigError("heartbeat_interval_s must be at most half of session_timeout_s")
