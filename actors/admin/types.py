"""What operators are shown: frozen values, shared by the command line, tests and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from escrowmq.actors.admin.share_types import ShareDescription
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
from escrowmq.replication.model import OpenTransaction, TopicInfo, TransactionState


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
    """A group's place in one partition. ``committed`` None: nothing is committed, so there is no lag.

    ``attempts``: how often the message at the place has failed, in a group that retries in order: the
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
    """A consumer group: its live members and its place in each partition."""

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
        """Its places in partitions where it has one."""
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
