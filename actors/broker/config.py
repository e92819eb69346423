"""Settings of a broker, each default with its reason.

A nonsensical value raises ConfigError where it is set, never later at work.
"""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.carried_settings import by_name, check_not_negative, check_positive
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.log_lines import LogFormat

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Limits and timings of one replica. All replicas of a group should have the same."""

    #: Size of one log file. Small enough that retention and snapshots (one per roll) make progress, large
    #: enough that rolling costs nothing.
    segment_bytes: int = 64 * MIB
    #: Request bytes admitted and not yet answered; beyond it clients get Overloaded.
    queue_bytes: int = 64 * MIB
    #: Largest request accepted; clients split well below it.
    request_bytes_max: int = 8 * MIB
    #: Open transactions per app and topic before TooManyOpenTransactions: memory is about 0.5 KB each.
    open_transactions_max: int = 2_000_000
    #: At commit, bodies of at most this many bytes are copied (TX_MESSAGE) instead of referred to: a
    #: reference costs about as much, and a copy is where the reader reads anyway.
    copy_bytes_max: int = 64
    #: Delayed messages of a group that cannot be read yet, before TooManyScheduled: 40 bytes of disk each
    #: beside the message, on every replica.
    timers_max: int = 100_000_000
    #: Raft: followers wait for a time between these two before they campaign; heartbeats are six times
    #: as frequent as the shorter one, so a single late one deposes no leader.
    election_min_s: float = 0.3
    election_max_s: float = 0.6
    heartbeat_s: float = 0.05
    #: Free bytes of disk below which new work is refused while decisions and repairs continue.
    disk_reserve_bytes: int = 256 * MIB
    #: Everything stored is read again once in this time, so that a flipped bit is found while other
    #: replicas still have the entry sound: a week is short beside the years between two such bits. 0: never.
    scrub_period_s: float = 7 * 24 * 3600.0
    #: Upper limit of that reading: a twentieth of what a slow disk delivers; 6 TB in a week. It is slower
    #: where the period allows, and pauses while the replica is busy or its disk is slow.
    scrub_bytes_per_s: int = 10 * MIB
    #: Files that are kept for searching messages (``admin.find``): 16 bytes of disk for a message with a key
    #: and a transaction id, so some 65 million messages. Beyond it, what was not used for longest goes, and
    #: is made again when somebody asks.
    find_cache_bytes: int = 1 * GIB
    #: Share of a core that making them, and reading headers, may take on average over ten minutes: a
    #: follower has that to spare while its leader is busy. At 0.05 ten minutes are half a minute of work,
    #: which reads about fifteen million messages.
    find_cpu_share: float = 0.05
    #: Threads per kind of call: a parked long poll holds one, and produce must never wait for those. Commits
    #: of offsets and decisions of other groups, which also wait for the log, have as many threads as
    #: produce.
    produce_threads: int = 32
    fetch_threads: int = 16
    control_threads: int = 16
    #: Half of them may park, one for each feedback process (``feedback.shards``); those beyond ask once a
    #: second instead. Idle threads cost hardly any memory (143 MB with 16 and with 64).
    feedback_threads: int = 64
    #: For share consumers' calls for messages. Half of them may park, one for each consumer; consumers beyond
    #: are told when to ask again, so that they make some hundred calls a second together.
    share_threads: int = 64
    #: How brokers, the supervisor and feedback processes write their logs: "text", for people, or "json", one
    #: object per line with group, replica and term, for log collectors.
    log_format: str = "text"

    def __post_init__(self) -> None:
        check_positive(self, "segment_bytes", "queue_bytes", "request_bytes_max")
        check_positive(self, "open_transactions_max", "timers_max", "election_min_s", "election_max_s")
        check_positive(self, "heartbeat_s", "produce_threads", "fetch_threads", "control_threads")
        check_positive(self, "feedback_threads", "share_threads")
        check_positive(self, "scrub_bytes_per_s", "find_cpu_share")
        check_not_negative(self, "find_cache_bytes")
        check_not_negative(self, "copy_bytes_max", "disk_reserve_bytes", "scrub_period_s")
        if self.log_format not in {form.value for form in LogFormat}:
            raise ConfigError(f"log_format must be 'text' or 'json', not {self.log_format!r}")
        if self.find_cpu_share > 1:
            raise ConfigError(f"find_cpu_share must be above 0 and at most 1, not {self.find_cpu_share}")
        if not 64 * KIB <= self.segment_bytes <= 1 * GIB:
            raise ConfigError(f"segment_bytes must be 64 KiB to 1 GiB, not {self.segment_bytes}")
        if self.election_max_s <= self.election_min_s or self.heartbeat_s * 3 > self.election_min_s:
            raise ConfigError("need heartbeat_s * 3 <= election_min_s < election_max_s")
