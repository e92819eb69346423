"""Timings and bounds of both sides of feedback, each with its reason. Frozen; seconds everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.errors import ConfigError
from escrowmq.replication.setting_checks import check_all_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTiming:
    """How a group's leader is found and followed."""

    #: With a call outstanding, one of the other replicas is asked this often who leads. A new leader is
    #: there 0.3 to 0.6 s after a death, and Ray reports the death only after 1 to 64 s. At this rate an
    #: idle feedback actor costs 1 % of a core, all in all.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackConfig:
    """One feedback actor (one app and topic)."""

    #: Long poll at the leader, as in FMQ.
    lock_wait_s: float = 5.0
    #: Nobody else gets a locked transaction for so long. It is also how long a check is delayed by the
    #: loss of a feedback actor (its parked call at the leader still locks for it), so it is short; a check
    #: that takes longer is simply locked again, which renews it.
    lock_lease_s: float = 4.0
    #: Transactions per lock call: a call costs 0.5 ms, so 64 make it small beside the checks themselves.
    lock_batch: int = 64
    #: Checks on hand per broker group (queued, handed out, being settled); bounds memory and the number
    #: of leases that are lost with the actor.
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
    #: its feedback actor was lost. It is also how long a check waits after a producer was killed; one that
    #: closes says so. An owner that stands still for longer, and then commits, may find its transaction
    #: rolled back (guide, "The querier").
    owner_gone_s: float = 20.0
    #: Long poll of a producer, as in FMQ. Randomised downwards by a fifth, so that the polls of producers
    #: that all lost one actor do not stay in step.
    poll_wait_s: float = 5.0
    #: Polls of one actor that end in a second, without checks. Each costs 2 to 4 ms of processor time at
    #: both ends together, so 5 make 1 to 2 % of a core. With more than 25 producers polls are longer than
    #: ``poll_wait_s`` ...
    polls_per_s: float = 5.0
    #: ... up to this (with 300 producers). A producer that died with its poll parked looks online so long,
    #: and a check that is handed to it comes ``confirm_s`` later to the next one.
    poll_wait_max_s: float = 60.0
    #: Parked polls. At max_concurrency an async actor cannot even run the call that wakes the others, so
    #: polls beyond this bound are sent away with a hint when to come back (56 KB each).
    polls_parked_max: int = 500
    #: Producers remembered at a time: parked ones and those that were sent away.
    producers_max: int = 2_000
    #: Answers per submit.
    settle_batch: int = 512
    #: Answers waiting for their submit, per broker group. Beyond it producers are told to come back.
    settle_queue_max: int = 2_048
    #: An answer that could not be submitted for so long (no leader) is dropped: the check is repeated.
    settle_keep_s: float = 60.0
    #: How often deadlines are looked at.
    tick_s: float = 0.2
    #: Without any producer online, branch transactions still follow their home group's decision; they are
    #: then looked for this often.
    branch_sweep_s: float = 5.0
    #: Nobody polled for so long: the actor ends (64 MB); the next producer starts it again.
    idle_exit_s: float = 600.0
    leader: LeaderTiming = LeaderTiming()

    def __post_init__(self) -> None:
        check_all_positive(self)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswererConfig:
    """The producer's side."""

    #: One long poll at a feedback actor, as in FMQ; the actor answers within it at the latest.
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
    #: How often the leaders are asked in which topics this app has open transactions (FMQ: a restarted
    #: producer keeps no state; the server holds all of it).
    discover_every_s: float = 5.0
    #: A topic found that way is left again after so long without open transactions.
    topic_linger_s: float = 60.0
    #: Reconnecting to a lost feedback actor: first and longest pause.
    reconnect_min_s: float = 0.1
    reconnect_max_s: float = 2.0
    leader: LeaderTiming = LeaderTiming()

    def __post_init__(self) -> None:
        check_all_positive(self)
