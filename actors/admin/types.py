"""What operators are shown: frozen values, shared by the command line, tests and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from escrowmq.actors.admin.topic_creation import kept
from escrowmq.actors.client.consumer_groups import MemberDescription
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.replication.calling.answers import (
    AcrossReport,
    GivenIdsReport,
    MembersReport,
    OverdueReport,
    SettledTransaction,
    TimersReport,
)
from escrowmq.replication.carried_settings import prepared
from escrowmq.replication.format.forwarded import Origin
from escrowmq.replication.format.settings import GroupSettings
from escrowmq.replication.model import OpenTransaction, TopicInfo, TransactionState

# ------------------------------------------------------------------------------------------------------------
# What operators are shown of share groups: settings, partitions, dead letters.


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """A group's settings. ``kind``: "share", "stream" (it reads by offsets), or "" (not decided yet).

    A message that has failed ``max_attempts`` times, or fails longer than ``max_age_s`` after its first
    failure (None: no limit), becomes a dead letter: it is kept, or dropped (``dead_letters`` "keep", "drop").
    ``delays_s``: the pauses after the first failure, the second, ...; the last one counts for all further
    ones. ``lease_s``: how long a message belongs to a consumer that has named no other time.
    """

    kind: str
    max_attempts: int
    delays_s: tuple[float, ...]
    lease_s: float
    max_age_s: float | None
    dead_letters: str

    @classmethod
    def of(cls, found: GroupSettings) -> ShareSettings:
        """From those of the log."""
        return cls(
            found.kind,
            found.max_attempts,
            tuple(delay / 1000 for delay in found.delays_ms),
            found.lease_ms / 1000,
            None if found.max_age_ms < 0 else found.max_age_ms / 1000,
            found.dead_letters,
        )


@dataclass(frozen=True, slots=True)
class SharePartition:
    """A share group in one partition, which ends at ``end``: everything below ``start`` is final.

    ``lag``: messages that are not final; ``leased``: those of them that a consumer has; ``expired``: messages
    that retention has removed before they were handled; ``ranges``: final ranges above the start.
    """

    topic: str
    partition: int
    start: int
    end: int
    lag: int
    leased: int
    expired: int
    ranges: int


@dataclass(frozen=True, slots=True)
class ShareDescription:
    """What a group has beside members and offsets: its settings and, for a share group, its partitions.

    ``leased``: messages that a consumer has. ``retrying``: messages that have failed and come again,
    ``retrying_later`` of them only when their pause has ended. (In a group that retries in order, these are
    the messages for which partitions wait, and those that were redriven; their pauses are known to its
    consumers alone.) ``dead``: dead letters that were neither redriven nor dropped.
    """

    settings: ShareSettings
    partitions: tuple[SharePartition, ...] = ()
    leased: int = 0
    retrying: int = 0
    retrying_later: int = 0
    dead: int = 0

    @property
    def lag(self) -> int:
        """Messages of its topics that are not final."""
        return sum(p.lag for p in self.partitions)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message with which a group has given up.

    ``id``: names it among the group's dead letters, for ``redrive`` and ``drop_dead_letters``. ``origin``:
    the message that was sent (topic, partition, offset, timestamp); None: not told. ``attempts``: how often
    it was delivered. ``first_failed`` (None: not told) and ``died`` in ms since the epoch. ``reason``: of the
    last failure; ``by``: who reported it ("lease": nobody, its lease ran out again and again). ``headers``:
    those of the sender. ``problem``: why ``value`` is empty or not what was sent, or None.
    """

    id: str
    origin: Origin | None
    attempts: int
    first_failed: int | None
    died: int
    reason: str
    by: str
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    tx_id: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Redriven:
    """What ``redrive`` did. ``already``: of those that were asked for, how many had been redriven or dropped
    before. ``unreadable``: left where they are, since their values cannot be sent to another topic."""

    redriven: int
    already: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition: messages ``[start, end)``, hosted by broker group ``group``, led by replica ``leader``."""

    partition: int
    group: int
    leader: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's settings and partitions."""

    info: TopicInfo
    partitions: tuple[PartitionDescription, ...]

    @property
    def messages(self) -> int:
        """Messages that can be read now."""
        return sum(p.end - p.start for p in self.partitions)

    @property
    def kept(self) -> str:
        """How long messages are kept, in words: ``for ever``, ``deleted after 7 days``."""
        return kept(self.info)


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transaction: its recorded state, and its open entries (one per broker group it spans).

    ``settled``: details of a settled transaction by broker group: query id, topic, messages there, when it
    was prepared, its checks. Each group keeps this for the last 2,000 that producers decided, and for the
    last 20,000 that were decided otherwise. ``decided_by``, ``decided_ms``: who decided it ("producer",
    "feedback" for a check, "operator:<name>", "policy:<which>"; without a local transaction also "timeout"
    and "claim") and when (ms since the epoch), or None when that is no longer known. ``checked_ms``: when a
    check was last answered without a decision; None: never, or not known.
    """

    app: str
    tx_id: str
    state: TransactionState
    open: Mapping[int, OpenTransaction]
    decided_by: str | None = None
    decided_ms: int | None = None
    settled: Mapping[int, SettledTransaction] = field(default_factory=dict)
    checked_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A delayed message that waits. ``deliver_at``: from when on it can be read, in ms since the epoch.
    ``size_bytes``: as stored. ``schedule_id``: for ``Producer.cancel`` and ``Admin.cancel_scheduled``."""

    topic: str
    partition: int
    deliver_at: int
    size_bytes: int
    schedule_id: str


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """What a group has read of one partition. ``committed`` None: nothing is committed, so there is no lag.

    ``attempts``: how often the message at ``committed`` has failed, in a group that retries in order: the
    partition waits for it.
    """

    topic: str
    partition: int
    member: str | None
    committed: int | None
    end: int
    lag: int | None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group: its live members and its offset in each partition."""

    group: str
    coordinator: int
    members: tuple[MemberDescription, ...]
    partitions: tuple[GroupPartition, ...]
    generation: int = field(default=0, compare=False)  # the coordinator's newest one; 0: not told
    share: ShareDescription | None = None  # of a group with settings: also retries and dead letters

    @property
    def kind(self) -> str:
        """ "share" or "stream"; "": it was not used yet."""
        decided = "" if self.share is None else self.share.settings.kind
        return decided or ("stream" if self.members or self.partitions else "")

    @property
    def committed(self) -> dict[tuple[str, int], int]:
        """Its offsets in partitions where it has one."""
        return {(p.topic, p.partition): p.committed for p in self.partitions if p.committed is not None}

    @property
    def lag(self) -> int:
        """Messages behind, summed over all partitions with a committed offset; for a share group, those that
        are not final."""
        shared = 0 if self.share is None else self.share.lag
        return sum(p.lag or 0 for p in self.partitions) + shared


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a broker group: replica numbers, as its leader's log has them.

    ``version`` grows with every change. ``learners`` hold copies and do not vote yet. ``next_replica``: the
    number of the next replica to join; lower numbers are never used again. ``change_id``: that of the last
    change. ``applied``: whether that change is certainly committed.
    """

    group: int
    leader: int | None
    version: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    next_replica: int
    change_id: str
    applied: bool

    @classmethod
    def of(cls, gid: int, leader: int | None, found: MembersReport) -> GroupMembers:
        """From its leader's answer."""
        return cls(
            gid,
            leader,
            found.version,
            tuple(found.voters),
            tuple(found.learners),
            found.highest + 1,
            found.change_id,
            found.applied,
        )


@prepared
@dataclass(frozen=True, slots=True)
class MemberChange:
    """A broker group whose replicas are not yet as requested: its state, and how it proceeds.

    ``wanted``: the requested number of voters. ``step``: the next step, in words; ``waits``: the change is
    waiting for what ``step`` says. ``problem``: why the last step failed, or None.
    """

    group: int
    wanted: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    waits: bool
    step: str
    problem: str | None


@prepared
@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node that is alive, or for which an operator requested a use. ``use``: "open", "maintained" (it will
    be away: its replicas stay there, and do not lead) or "drained" (its replicas move elsewhere)."""

    node: str
    use: str
    there: bool
    head: bool
    replicas: int
    leaders: int


@prepared
@dataclass(frozen=True, slots=True)
class ReplicaShift:
    """A move that would spread the cluster better: a replica is replaced by one on another node; or, with
    ``leads``, leadership passes to this replica, which is already on ``to_node``."""

    group: int
    replica: int
    from_node: str
    to_node: str
    leads: bool


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica. If not ``reachable``, it did not answer in time and everything else is unknown.
    ``problems``: why it is not well, in words."""

    group: int
    replica: int
    reachable: bool
    role: str
    term: int
    leader: int | None
    commit_index: int
    applied_index: int
    first_index: int
    last_index: int
    durable_index: int
    open_transactions: int
    details: Mapping[str, Any]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One broker group; ``leader`` None: it has no leader now.

    ``level``: its format level. ``across``: its transactions over several groups, with the counters of all
    its replicas added up. ``given_ids``: the memory of ids that applications gave. All three are as the
    leader reports or, while there is none, the replica that has applied most; None: no replica answered.
    ``overdue``: transactions that were not checked in time; None: no leader told. ``timers``: delayed
    messages that wait, as ``given_ids``.
    """

    group: int
    leader: int | None
    term: int
    replicas: tuple[ReplicaStatus, ...]
    level: int = 0
    across: AcrossReport | None = None
    given_ids: GivenIdsReport | None = None
    overdue: OverdueReport | None = None
    timers: TimersReport | None = None

    @property
    def healthy(self) -> bool:
        """Whether there is a leader and every replica is well."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it is not well, in words: problems of the group, and of each replica."""
        nobody = ("no leader",) if self.leader is None else ()
        return nobody + tuple(f"replica {r.replica}: {text}" for r in self.replicas for text in r.problems)


@dataclass(frozen=True, slots=True)
class FeedbackStatus:
    """One of the processes that ask producers. ``report`` None: it did not answer in time."""

    shard: int
    report: ShardReport | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole cluster. ``feedback``: the processes that ask producers; () until a producer starts them;
    None: Ray did not say in time whether there are any."""

    cluster_id: str
    groups: tuple[GroupStatus, ...]
    feedback: tuple[FeedbackStatus, ...] | None = ()

    @property
    def healthy(self) -> bool:
        """Whether every group is healthy."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it is not well, in words."""
        return tuple(f"group {group.group}: {text}" for group in self.groups for text in group.problems)


# ------------------------------------------------------------------------------------------------------------
# What operators are shown about single messages: frozen values, as in types.py.


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that can be read, as it is stored, unpacked. ``timestamp``: since when it can be read, by the
    broker's clock, in ms since the epoch. ``tx_id`` is None for plain messages."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    tx_id: str | None


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """What a search found, by partition and offset. ``after``: give it to the next call for what follows;
    None: there was nothing more when the call began.

    ``after`` does not mean that more will be found, only that not everything was looked through.
    """

    messages: tuple[StoredMessage, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """What a consumer group has done with a message.

    ``kind`` "stream": ``state`` is "passed" (its committed offset lies behind the message) or "ahead" (it has
    not come to it, or has not committed since); ``place``: the next offset that it reads from this partition.
    ``kind`` "share": "waiting" (not finished, and no consumer has it), "leased" (consumer ``member`` has it,
    until ``due_ms`` unless it extends its lease), "done" (also of a message from before the offset at which
    the group began, and of one that failed in a group with ``dead_letters="drop"``), or "finished" (done,
    retrying or dead; there was not enough time to see which: ask again).

    Both kinds: "retrying" (it failed, and is to be delivered as ``attempt``, from ``due_ms`` on; None: its
    partition waits for it, and only the consumer knows how long), "dead" (the
    group gave up after ``attempt`` deliveries; its dead letter is kept), "dropped" (an operator dropped the
    dead letter), "redriven" (an operator sent it into the topic ``to``, with transaction ``tx_id``, which
    copies there have as theirs; both "": it is not known any more), "settled" (dropped or redriven, which of
    them is not known any more). ``reason``: of the last failure.
    """

    group: str
    kind: str
    state: str
    place: int | None = None
    attempt: int | None = None
    due_ms: int | None = None
    reason: str = ""
    member: str = ""
    to: str = ""
    tx_id: str = ""


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The life of one message. Times are in ms since the epoch, by the broker's clock.

    ``how`` it became readable: "sent" (a plain message), "committed" (its transaction was), "released" (a
    delayed message came due); None: the log entry that did it is gone, or a broker wrote the message itself,
    as it does retries and dead letters. ``readable_ms``: when. ``entry``: that entry's index in the log of
    broker group ``broker_group``. ``stored_ms``: when its bytes were stored, earlier than that for
    transactions and delayed messages; None: not known.

    ``app``, ``decided_by``: of the COMMIT; "producer", "feedback" (a check), "operator:<name>",
    "policy:<which>" or "home:<group>" (the broker group that decides a transaction over several). None: no
    COMMIT made it readable. ``transaction``: what is still known of its transaction.
    """

    message: StoredMessage
    broker_group: int
    how: str | None
    readable_ms: int
    entry: int | None
    stored_ms: int | None
    app: str | None
    decided_by: str | None
    transaction: TransactionDescription | None
    groups: tuple[GroupProgress, ...]
