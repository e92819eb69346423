"""Settings of brokers, producers and consumers, each default with its reason.

Frozen values; the configuration tree of ``escrowmq.cluster`` builds them from files and variables.
A nonsensical value raises ConfigError where it is written, never later at work.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from escrowmq.replication.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ConfigError(f"{name} must be a number above 0, not {value!r}")


def _not_negative(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{name} must be a number of 0 or more, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """How clients talk to a broker group."""

    #: A leader's usual answer takes 2 to 20 ms; a quarter of a second of silence is worth a cheap
    #: question to the other replicas. Ray itself reports a death only after 1 to 64 s.
    probe_after_s: float = 0.25
    #: An election takes 0.3 to 0.6 s, so asking every 0.1 s adds little to a fail-over.
    probe_interval_s: float = 0.1
    #: A probe that stays without answer this long went to a dead process; ask anew, since a replica
    #: that came back under the same name does not answer calls made to its predecessor.
    probe_timeout_s: float = 2.0
    #: Calls under way per group. 4 to 16 saturate a group; more only moves the queue into the broker. Each
    #: answer that takes longer than ``probe_after_s`` makes it one fewer, down to two, each faster one more.
    calls_in_flight: int = 8

    def __post_init__(self) -> None:
        _positive(self, "probe_after_s", "probe_interval_s", "probe_timeout_s", "calls_in_flight")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer batches, waits and gives up."""

    #: Plain messages wait this long for company. 3 ms costs little beside a commit of 3 to 6 ms and
    #: makes calls of dozens of messages out of single sends (a call costs 0.2 ms CPU on each side).
    linger_ms: float = 3.0
    #: Transactions wait at most so long for those that were answered together with the ones before: their
    #: callers come back at the same time, and can share a call. A lone transaction never waits.
    transaction_linger_ms: float = 1.0
    #: Bytes of one call. Below Ray's limit of 100 KiB arguments travel inside the call; just above it
    #: they go through shared memory at twice the cost.
    request_bytes: int = 96 * KIB
    #: Bytes queued and under way in one producer. Thirty times what saturates a group.
    buffer_bytes: int = 32 * MIB
    #: When what is answered waited longer than this, less is taken on, down to 16 KiB, until it does not.
    #: Most fail-overs are over in a second; what waits longer does so because there is too much of it.
    buffer_s: float = 1.0
    #: How long a call waits for room in that buffer before it raises Overloaded.
    buffer_wait_s: float = 10.0
    #: From call to answer, with all retries and fail-overs. A fail-over takes 1 to 2 s; a machine
    #: that pages or a node that is lost takes up to 15.
    delivery_timeout_s: float = 30.0
    #: Larger bodies belong into an object store, with a reference in the message.
    message_bytes_max: int = 1 * MIB
    #: All messages of one transaction together. They are kept in memory until prepared.
    transaction_bytes_max: int = 16 * MIB
    #: Transactions larger than this are prepared in parts, so that none of them holds up the log.
    #: 1 MiB is where calls through shared memory become cheap per byte.
    part_bytes: int = 1 * MIB
    #: Time from prepare to the first check; None = what the topic says (6 s).
    transaction_timeout_s: float | None = None
    #: When the limit of open transactions is reached: 0 raises TooManyOpenTransactions at once, so that
    #: the caller decides; more waits so long for others to settle.
    open_limit_wait_s: float = 0.0
    #: True: COMMIT is sent but not waited for. A lost one is asked back, so nothing is lost, but the
    #: messages may appear only after the check. False, since readers usually expect them at once.
    one_way_commit: bool = False
    #: Calls under way of one ``send_transactions``: enough to fill a group, little enough to stay fair.
    bulk_calls_in_flight: int = 8
    channel: ChannelConfig = field(default_factory=ChannelConfig)

    def __post_init__(self) -> None:
        _not_negative(self, "linger_ms", "transaction_linger_ms", "buffer_wait_s", "open_limit_wait_s")
        _positive(
            self, "request_bytes", "buffer_bytes", "buffer_s", "delivery_timeout_s", "message_bytes_max"
        )
        _positive(self, "transaction_bytes_max", "part_bytes", "bulk_calls_in_flight")
        if self.transaction_timeout_s is not None:
            _positive(self, "transaction_timeout_s")
        if self.message_bytes_max > self.transaction_bytes_max:
            raise ConfigError("message_bytes_max must not exceed transaction_bytes_max")
        if self.transaction_bytes_max > self.buffer_bytes:
            raise ConfigError("transaction_bytes_max must not exceed buffer_bytes: it could never be sent")


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
    #: Fetched but not yet polled. Bounds memory when the application is slower than the broker.
    buffer_bytes: int = 16 * MIB
    #: A member that is silent this long is dead; its partitions move on. 10 s outlast a fail-over and
    #: ordinary pauses.
    session_timeout_s: float = 10.0
    #: Heartbeats: several must fit into a session, and they also say that the assignment changed.
    heartbeat_interval_s: float = 1.0
    #: A member that does not poll for this long hangs, though its heartbeats go on: it leaves, so that
    #: others read its partitions. Five minutes, as in Kafka.
    poll_interval_max_s: float = 300.0
    #: From call to answer, with retries and fail-overs.
    call_timeout_s: float = 30.0
    channel: ChannelConfig = field(default_factory=ChannelConfig)

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            raise ConfigError(
                f"auto_offset_reset must be 'earliest', 'latest' or 'none', not {self.auto_offset_reset!r}"
            )
        _positive(self, "fetch_bytes", "fetch_wait_s", "fetch_calls_in_flight", "buffer_bytes")
        _positive(self, "session_timeout_s", "heartbeat_interval_s", "poll_interval_max_s", "call_timeout_s")
        _not_negative(self, "fetch_linger_ms")
        if self.fetch_bytes > self.buffer_bytes:
            raise ConfigError("fetch_bytes must not exceed buffer_bytes: one fetch must fit into the buffer")
        if self.heartbeat_interval_s * 2 > self.session_timeout_s:
            raise ConfigError("heartbeat_interval_s must be at most half of session_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Limits and timings of one replica. All replicas of a group should have the same."""

    #: One file of the log. Small enough that retention and snapshots (one per roll) move on, large
    #: enough that rolling costs nothing.
    segment_bytes: int = 64 * MIB
    #: Request bytes admitted and not yet answered; beyond that clients are told Overloaded.
    queue_bytes: int = 64 * MIB
    #: Largest request taken; clients split well below it.
    request_bytes_max: int = 8 * MIB
    #: Open transactions per app and topic before TooManyOpenTransactions: memory is about 0.5 KB each.
    open_transactions_max: int = 2_000_000
    #: At commit, bodies of at most this many bytes are copied (TX_MESSAGE) instead of referred to: a
    #: reference costs about as much, and a copy lies where the reader reads anyway.
    copy_bytes_max: int = 64
    #: Raft: followers wait between these before they stand for election; heartbeats are six times
    #: as frequent as the shorter one, so a single late one topples nobody.
    election_min_s: float = 0.3
    election_max_s: float = 0.6
    heartbeat_s: float = 0.05
    #: Free bytes of disk below which new work is refused while decisions and repairs go on.
    disk_reserve_bytes: int = 256 * MIB
    #: Threads per kind of call: a parked long poll holds one, and produce must never wait for those.
    produce_threads: int = 32
    fetch_threads: int = 16
    control_threads: int = 16
    #: Half of them may park, one for each (app, topic) whose feedback actor asks this group; those beyond
    #: ask once a second instead. Idle threads cost no memory to speak of (143 MB with 16 and with 64).
    feedback_threads: int = 64

    def __post_init__(self) -> None:
        _positive(self, "segment_bytes", "queue_bytes", "request_bytes_max")
        _positive(self, "open_transactions_max", "election_min_s", "election_max_s")
        _positive(self, "heartbeat_s", "produce_threads", "fetch_threads", "control_threads")
        _positive(self, "feedback_threads")
        _not_negative(self, "copy_bytes_max", "disk_reserve_bytes")
        if not 64 * KIB <= self.segment_bytes <= 1 * GIB:
            raise ConfigError(f"segment_bytes must be 64 KiB to 1 GiB, not {self.segment_bytes}")
        if self.election_max_s <= self.election_min_s or self.heartbeat_s * 3 > self.election_min_s:
            raise ConfigError("need heartbeat_s * 3 <= election_min_s < election_max_s")
