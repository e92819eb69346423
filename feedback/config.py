"""Timings and bounds of both sides of feedback, each with its reason. Frozen; seconds everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.carried_settings import by_name
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.setting_checks import check_all_positive

#: Every producer polls at every one of them.
SHARDS_MAX = 64


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTiming:
    """How a group's leader is found and followed."""

    #: With a call outstanding, one of the other replicas is asked this often who leads. A new leader is
    #: there 0.3 to 0.6 s after a death, and Ray reports the death only after 1 to 64 s. At this rate an
    #: idle feedback process costs 1 % of a core, all in all.
    probe_every_s: float = 0.4
    #: Without a known leader all replicas are asked this often: an election is under way.
    search_every_s: float = 0.1
    #: A replica that does not answer a question this long is asked again: it may have been restarted.
    probe_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        check_all_positive(self)


#: Producers that are sent away come back after 0.5 to 1.5 times what the pace says, so as not to come
#: together.
SENT_AWAY_JITTER = 1.5


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackConfig:
    """Feedback: one unit for each app and topic, all of them hosted in a few processes."""

    #: Long poll at the leader, as in FMQ.
    lock_wait_s: float = 5.0
    #: Nobody else gets a locked transaction for so long. It is also how long a check is delayed by the loss
    #: of a feedback process, so it is short; a check that takes longer is simply locked again, which renews
    #: it.
    lock_lease_s: float = 4.0
    #: Transactions per app, topic and lock call: a call costs 0.5 ms, so 64 make it small beside the checks
    #: themselves.
    lock_batch: int = 64
    #: Checks on hand per app, topic and broker group (queued, handed out, being settled); bounds memory and
    #: the number of leases that are lost with the process.
    checks_per_group_max: int = 512
    #: A producer shows in its next poll that it got a check; a live one polls again within milliseconds. A
    #: check that is not confirmed within this time is handed out again. Its producer stays what it was: it
    #: may have died with its poll still parked here, or stand still for a moment.
    confirm_s: float = 1.5
    #: From hand-out to answer. Three times a producer's default time-out for its querier, since checks
    #: wait for each other there.
    answer_s: float = 15.0
    #: A producer without a parked poll is offline after this: it polls again within milliseconds.
    silent_s: float = 2.0
    #: The owner of a transaction (the producer that prepared it) is gone, so that others of its app are
    #: asked, when nothing was heard of it for so long. A live one is back sooner, whatever happens: after 18
    #: s when it was sent away among thousands (1.5 times ``poll_wait_max_s / poll_wait_s``), after 6 s when
    #: its feedback process was lost. It is also how long a check waits after a producer was killed; one that
    #: closes says so. An owner that stands still for longer, and then commits, may find its transaction
    #: rolled back (guide, "The querier").
    owner_gone_s: float = 20.0
    #: Long poll of a producer, as in FMQ. Randomised downwards by a fifth, so that the polls of producers
    #: that all lost one actor do not stay in step.
    poll_wait_s: float = 5.0
    #: Polls of one process that end in a second, without checks. Each costs 2 to 4 ms of processor time at
    #: both ends together, so 5 make 1 to 2 % of a core. With more than 25 producers polls are longer than
    #: ``poll_wait_s`` ...
    polls_per_s: float = 5.0
    #: ... up to this (with 300 producers). A producer that died with its poll parked looks online so long,
    #: and a check that is handed to it comes ``confirm_s`` later to the next one.
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
    #: An answer that could not be submitted for so long (no leader) is dropped: the check is repeated.
    settle_keep_s: float = 60.0
    #: How often deadlines are looked at.
    tick_s: float = 0.2
    #: An app and topic without checks for so long is forgotten with its counters (10 KB), and so is an app of
    #: which nobody has polled; both are there again at the next check, or poll.
    idle_exit_s: float = 600.0
    leader: LeaderTiming = LeaderTiming()
    #: Processes that host feedback (75 MB each). Each app and topic belongs to one of them, and a producer
    #: has a poll parked at each. Two: one process asks some thousand checks a second, so the second is for
    #: what one process cannot keep apart. While one is started again, checks of half of the topics wait.
    #: Counts when the first producer with a querier starts, and then until the cluster is stopped.
    shards: int = 2
    #: Parked polls of all apps at one process; beyond it those parked longest are sent away, first those of
    #: the app that has most. At max_concurrency an async actor could not even run the call that wakes others.
    shard_polls_max: int = 5_000
    #: Apps and topics with checks at a time, or within ``idle_exit_s`` after them, per process. Beyond it no
    #: further ones are taken on before others are done; the leader keeps them meanwhile.
    pairs_max: int = 20_000
    #: Apps of which somebody polled within ``idle_exit_s``, per process (2 KB each). Beyond it those that are
    #: silent longest are forgotten sooner, and polls of further ones are sent away if none is silent.
    apps_max: int = 50_000
    #: Submits of answers under way at a time, per process and broker group: half of the broker's threads for
    #: submits, so that producers find the other half free.
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
                "poll_wait_max_s / poll_wait_s) after which a producer comes back that was sent away"
            )

    @property
    def sent_away_max_s(self) -> float:
        """The longest time after which a producer comes back for which there was no room (``PollPace``)."""
        return SENT_AWAY_JITTER * max(self.poll_wait_max_s, self.poll_wait_s) / self.poll_wait_s


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswererConfig:
    """The producer's side."""

    #: One long poll at a feedback process, as in FMQ; it answers within it at the latest.
    poll_wait_s: float = 5.0
    #: An actor with many producers lets them poll rarely. So a producer offers twice the time that its last
    #: poll took, up to this; a poll without any answer is noticed after 1.6 times what was offered.
    poll_wait_max_s: float = 60.0
    #: While checks are being worked on, polls are short, so that a death is noticed soon.
    working_wait_s: float = 1.0
    #: Time the querier has for one check.
    query_timeout_s: float = 5.0
    #: Threads that run the querier. Queries wait for a database, so a few suffice for hundreds a second.
    query_threads: int = 4
    #: A query that takes longer does not hold up the others: its thread counts no more among
    #: ``query_threads``, and another one takes its place (``stuck_threads_max`` bounds them). Most databases
    #: answer within milliseconds; in a second a waiting check would be noticed.
    query_slow_s: float = 0.5
    #: Checks in one call of a querier that has ``query_statuses``. A statement with so many keys is ordinary,
    #: and after an outage they come by the hundred thousand. One bad check spoils its batch, which is then
    #: asked one by one, so it is not larger; while batches fail they become smaller.
    query_batch: int = 128
    #: A thread whose query is slow is replaced, since Python cannot end it, and written off when it times
    #: out; so many may hang at a time before the producer stops taking checks and says so in its log.
    stuck_threads_max: int = 16
    #: Checks taken per querier thread: enough to keep it busy for the time of a poll.
    checks_per_thread: int = 16
    #: Reconnecting to a lost feedback process: first and longest pause.
    reconnect_min_s: float = 0.1
    reconnect_max_s: float = 2.0

    def __post_init__(self) -> None:
        check_all_positive(self)
