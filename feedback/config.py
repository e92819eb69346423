"""Timings and bounds of both sides of feedback, each with its reason. Frozen; all times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.carried_settings import by_name, check_all_positive
from escrowmq.replication.errors import ConfigError

#: Every producer has a poll at each of them.
SHARDS_MAX = 64


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTiming:
    """How a group's leader is found and followed."""

    #: While a call is outstanding, one of the other replicas is asked this often who leads. A new leader is
    #: elected 0.3 to 0.6 s after a death, but Ray reports the death only after 1 to 64 s. At this rate an
    #: idle feedback process costs 1 % of a core in total.
    probe_every_s: float = 0.4
    #: Without a known leader all replicas are asked this often: an election is under way.
    search_every_s: float = 0.1
    #: A replica that has not answered a question for this long is asked again: it may have been restarted.
    probe_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        check_all_positive(self)


#: Producers that are sent away come back after 0.5 to 1.5 times the pace's pause, so that they do not return
#: together.
SENT_AWAY_JITTER = 1.5


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackConfig:
    """Feedback: one unit for each app and topic, all of them hosted in a few processes."""

    #: Long poll at the leader, as in FMQ.
    lock_wait_s: float = 5.0
    #: For how long a locked transaction is reserved. The loss of a feedback process delays a check by the
    #: same time, so it is short; a check that takes longer is simply locked again, which renews the lease.
    lock_lease_s: float = 4.0
    #: Transactions per app, topic and lock call: a call costs 0.5 ms, so with 64 it is small beside the
    #: checks themselves.
    lock_batch: int = 64
    #: Checks on hand per app, topic and broker group (queued, handed out, being settled); bounds memory and
    #: the number of leases that are lost with the process.
    checks_per_group_max: int = 512
    #: A producer confirms in its next poll that it got a check; a live one polls again within milliseconds. A
    #: check that is not confirmed within this time is handed out again. Its producer is not considered gone:
    #: it may have died with its poll still parked here, or be paused for a moment.
    confirm_s: float = 1.5
    #: From hand-out to answer. Three times a producer's default time-out for its querier, since checks
    #: wait for each other there.
    answer_s: float = 15.0
    #: A producer without a parked poll is offline after this: it polls again within milliseconds.
    silent_s: float = 2.0
    #: When nothing was heard of the owner of a transaction (the producer that prepared it) for this long, it
    #: is gone, and others of its app are asked. A live one is back sooner, whatever happens: after 18 s when
    #: it was sent away among thousands (1.5 times ``poll_wait_max_s / poll_wait_s``), after 6 s when its
    #: feedback process was lost. It is also how long a check waits after a producer was killed; one that
    #: closes says so. An owner that is paused for longer, and then commits, may find its transaction rolled
    #: back (guide, "The querier").
    owner_gone_s: float = 20.0
    #: Long poll of a producer, as in FMQ. Randomised downwards by a fifth, so that the polls of producers
    #: that all lost one actor do not stay synchronised.
    poll_wait_s: float = 5.0
    #: Polls of one process that end per second, without checks. Each costs 2 to 4 ms of processor time at
    #: both ends together, so 5 take 1 to 2 % of a core. With more than 25 producers polls are longer than
    #: ``poll_wait_s`` ...
    polls_per_s: float = 5.0
    #: ... up to this (with 300 producers). A producer that died with its poll parked looks online for this
    #: long, and a check that is handed to it reaches the next one ``confirm_s`` later.
    poll_wait_max_s: float = 60.0
    #: Parked polls of one app at one process. Polls beyond this bound are sent away with a hint when to come
    #: back (56 to 80 KB each).
    polls_parked_max: int = 500
    #: Producers of one app remembered at a time: parked ones and those that were sent away.
    producers_max: int = 2_000
    #: Answers per submit.
    settle_batch: int = 512
    #: Answers waiting for their submit, per app, topic and broker group. Beyond it producers are told to come
    #: back.
    settle_queue_max: int = 2_048
    #: An answer that could not be submitted for this long (no leader) is dropped: the check is repeated.
    settle_keep_s: float = 60.0
    #: How often deadlines are checked.
    tick_s: float = 0.2
    #: An app and topic without checks for this long is forgotten with its counters (10 KB), and so is an app
    #: without polls; both are created again at the next check, or poll.
    idle_exit_s: float = 600.0
    leader: LeaderTiming = LeaderTiming()
    #: Processes that host feedback (75 MB each). Each app and topic belongs to one of them, and a producer
    #: has a poll parked at each. Two: one process asks some thousand checks a second; the second process is
    #: for the isolation that one process cannot give. While one is restarted, checks of half of the topics
    #: wait. Takes effect when the first producer with a querier starts, and then until the cluster is
    #: stopped.
    shards: int = 2
    #: Parked polls of all apps at one process; beyond it the longest parked ones are sent away, first those
    #: of the app that has most. At max_concurrency an async actor could not even run the call that wakes
    #: others.
    shard_polls_max: int = 5_000
    #: Apps and topics with checks at a time, or within ``idle_exit_s`` after them, per process. Beyond it no
    #: further ones are accepted before others are done; the leader keeps them meanwhile.
    pairs_max: int = 20_000
    #: Apps with a poll within ``idle_exit_s``, per process (2 KB each). Beyond it those that have been
    #: silent longest are forgotten sooner; if none is silent, polls of further apps are sent away.
    apps_max: int = 50_000
    #: Submits of answers under way at a time, per process and broker group: half of the broker's threads for
    #: submits, so that the other half is free for producers.
    submits_at_once: int = 16

    def __post_init__(self) -> None:
        check_all_positive(self)
        if not 1 <= self.shards <= SHARDS_MAX:
            raise ConfigError(f"shards must be 1 to {SHARDS_MAX}, not {self.shards}")
        if self.confirm_s >= self.lock_lease_s:
            raise ConfigError("confirm_s must be below lock_lease_s: else no check survives a dead producer")
        if self.owner_gone_s <= max(self.silent_s, self.sent_away_max_s):
            raise ConfigError(
                f"owner_gone_s must be above silent_s, and above the {self.sent_away_max_s:g} s (1.5 * "
                "poll_wait_max_s / poll_wait_s) after which a producer that was sent away comes back"
            )

    @property
    def sent_away_max_s(self) -> float:
        """The longest time after which a producer that found no room comes back (``PollPace``)."""
        return SENT_AWAY_JITTER * max(self.poll_wait_max_s, self.poll_wait_s) / self.poll_wait_s


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswererConfig:
    """The producer's side."""

    #: One long poll at a feedback process, as in FMQ; the process answers within this time.
    poll_wait_s: float = 5.0
    #: An actor with many producers lets them poll rarely. So a producer offers twice the time that its last
    #: poll took, up to this; a poll without any answer is noticed after 1.6 times what was offered.
    poll_wait_max_s: float = 60.0
    #: While checks are being worked on, polls are short, so that a death is noticed soon.
    working_wait_s: float = 1.0
    #: Time that the querier has for one check.
    query_timeout_s: float = 5.0
    #: Threads that run the querier. Queries wait for a database, so a few suffice for hundreds a second.
    query_threads: int = 4
    #: A query that takes longer than this does not delay the others: its thread no longer counts among
    #: ``query_threads``, and another one replaces it (``stuck_threads_max`` bounds them). Most databases
    #: answer within milliseconds; a check that waits for a second would be noticed.
    query_slow_s: float = 0.5
    #: Checks in one call of a querier that has ``query_statuses``. A statement with this many keys is
    #: ordinary, and after an outage checks arrive by the hundred thousand. One bad check spoils its batch,
    #: whose checks are then asked one by one, so it is not larger; while batches fail they become smaller.
    query_batch: int = 128
    #: A thread whose query is slow is replaced, since Python cannot end it, and written off when it times
    #: out; this many may hang at a time before the producer stops taking checks and says so in its log.
    stuck_threads_max: int = 16
    #: Checks taken per querier thread: enough to keep it busy for the time of a poll.
    checks_per_thread: int = 16
    #: Reconnecting to a lost feedback process: first and longest pause.
    reconnect_min_s: float = 0.1
    reconnect_max_s: float = 2.0

    def __post_init__(self) -> None:
        check_all_positive(self)
