"""What brokers answer on the control path: one type for each kind of answer.

A call to the leader is answered by a ``Reply``. An answer that can have thousands of rows is a struct
of columns: packing and sending columns costs a quarter of one object per row. Messages and
results of requests are bulk data; ``ops`` and ``fetching`` describe them. Nothing here is stored, but
the two ends may run different versions: carried_answers.py explains this and has the rules for new fields.
The named tuples here are sent by position and must never get a new field. Times are in ms since the epoch;
``code`` is a ``ResultCode``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from escrowmq.replication.calling.carried_answers import Carried, prepare
from escrowmq.replication.model import NO_ID, OpenTransaction, TransactionState

#: ``("ok", answer)`` from a leader; ``("not_leader", the leader's replica number or None, term)``; and from
#: ``submit`` also ``("overloaded", s)``, ``("disk_full", s)``, ``("malformed", text)``, ``("unsupported",
#: level)``: the group has not reached the format level that this request needs, nothing was done; and
#: ``("unknown",)``: the request may or may not take effect, send the same bytes again. In answer to a
#: PREPARE, "ok" has a third part: the time of an entry of the group, which the client's next PREPARE reports
#: as what it has heard.
Reply: TypeAlias = tuple[Any, ...]


class Leadership(NamedTuple):
    """What a replica knows of leadership: whether it leads and is ready, who leads, and in which term."""

    ready: bool
    leader: int | None
    term: int

    def refusal(self) -> Reply:
        """Answer of a replica that does not lead to a call that only a leader serves: nothing was done."""
        return "not_leader", self.leader, self.term


class LevelReport(NamedTuple):
    """Format levels: the highest that a replica's software knows, and the one that its state has reached."""

    known: int
    applied: int


# ------------------------------------------------------------ topics


class TopicNames(Carried, frozen=True):
    """The topics at a leader. ``term`` and ``version`` say which moment; ``names`` is None if the caller
    knows that one already."""

    term: int
    version: int
    names: list[str] | None = None


# ------------------------------------------------------------ partitions


class PartitionBounds(Carried, frozen=True):
    """For each requested partition: offsets ``[start, end)``, all of one moment; 0 unless the code is OK."""

    codes: list[int]
    starts: list[int]
    ends: list[int]


class PartitionSpans(Carried, frozen=True):
    """For each requested span: the offset that its bytes reach, and the number of bytes up to there."""

    codes: list[int]
    offsets: list[int]
    sizes: list[int]


class FoundOffsets(Carried, frozen=True):
    """For each requested partition and time: the first offset at or after that time, and the id of the topic
    that was looked into (``NO_ID`` if it does not exist)."""

    codes: list[int]
    offsets: list[int]
    ids: list[int]


class FetchEnds(Carried, frozen=True):
    """The offsets at which the next fetches of a partition will end, in ascending order."""

    code: int
    ends: list[int]


# ------------------------------------------------------------ transactions


class GroupCut(NamedTuple):
    """How far a group goes, as of one entry of its log: the answer to CUT.

    ``at``: its index. ``decided_index``: of the newest entry, up to it, that committed a transaction
    over several groups whose home is here. ``undone``: decisions of this home that some branch has not
    carried out. ``topics``: for each topic asked for its id, and number and end of each partition that is
    here.
    """

    at: int
    decided_index: int
    undone: int
    topics: Sequence[tuple[int, Sequence[int]]] = ()


class Standing(NamedTuple):
    """State of a transaction in one group, as of one entry of its log: a row of the answer to INQUIRE.

    ``state``: name of a TransactionState. ``home_index``: log index of home's record, -1 unless the
    transaction is open or waits for branches. For an open one: its parts prepared and expected (0: not told),
    its home group (-1: here), and, at home, the groups of its branches. For a decided one: the groups that
    have not yet carried out the decision.
    """

    state: str
    home_index: int = -1
    have: int = 0
    parts: int = 0
    home_group: int = -1
    groups: Sequence[int] = ()

    @property
    def whole(self) -> bool:
        """Whether it is open and has all its parts."""
        return self.state == "PREPARE" and self.parts in (0, self.have)

    def is_branch_of(self, home: int) -> bool:
        """``whole``, and group ``home`` decides it: the index of home's record is one of that group's log."""
        return self.whole and self.home_group == home

    def lacking(self, group: int, home: int = -1) -> str:
        """What ``group`` lacks, as text for people. For transactions that are not ``whole`` (or whose home is
        not ``home``)."""
        if self.state == "PREPARE" and self.home_group == home:
            return f"group {group} has {self.have} of {self.parts} parts"
        return f"it is not prepared in group {group}"


class LockedRow(NamedTuple):
    """A due transaction, locked for one feedback process.

    ``checks``: how many it has had. ``home_group``: where it is decided, -1 = here. ``exhausted``: it has had
    all of its checks, and its topic is set to roll it back then. ``instance``: its owner, the producer that
    prepared it last ("": not known, or one that cannot be asked). ``newest_index``: the log index of that
    PREPARE; a check's rollback applies only to this one. ``age_ms``: how long it has been open.
    ``fence``: who may answer, see ``PrepareExtra`` (empty: any producer of the app).
    """

    tx_id: str
    query_id: str
    prepared_ms: int
    checks: int
    home_group: int = -1
    exhausted: bool = False
    instance: str = ""
    newest_index: int = 0
    age_ms: int = 0
    fence: bytes = b""


class LockedChecks(Carried, frozen=True):
    """Transactions that are due and have just been locked; the columns are the fields of ``LockedRow``."""

    tx_ids: Sequence[str] = ()
    query_ids: Sequence[str] = ()
    prepared_ms: Sequence[int] = ()
    checks: Sequence[int] = ()
    home_groups: Sequence[int] = ()
    exhausted: Sequence[bool] = ()
    instances: Sequence[str] = ()
    newest_indexes: Sequence[int] = ()
    ages_ms: Sequence[int] = ()
    fences: Sequence[bytes] = ()

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Self:
        """From rows that have the fields of ``LockedRow`` in order."""
        return cls(*zip(*rows, strict=True))

    def rows(self) -> list[LockedRow]:
        """One row for each transaction."""
        columns = [getattr(self, name) for name in self.__struct_fields__]
        return [LockedRow(*row) for row in zip(*columns, strict=True)]


class DuePairs(Carried, frozen=True):
    """Pairs (app, topic) that have got due checks since the caller last asked.

    The caller passes ``term`` and ``seen`` in its next call: the leader's term, and the number up to
    which it has been told in that term.
    """

    term: int
    seen: int
    pairs: Sequence[tuple[str, str]] = ()


class OpenPairs(Carried, frozen=True):
    """Pairs (app, topic) with open transactions, of the first ``apps`` of the requested apps."""

    apps: int
    pairs: Sequence[tuple[str, str]] = ()


class OpenTransactions(Carried, frozen=True):
    """Open transactions, oldest first; the columns are the fields of ``OpenTransaction``."""

    apps: Sequence[str] = ()
    tx_ids: Sequence[str] = ()
    query_ids: Sequence[str] = ()
    topics: Sequence[str] = ()
    prepared_ms: Sequence[int] = ()
    timeouts_ms: Sequence[int] = ()
    checks: Sequence[int] = ()
    parked: Sequence[bool] = ()
    messages: Sequence[int] = ()
    home_groups: Sequence[int] = ()
    home_indexes: Sequence[int] = ()
    parked_for: Sequence[str] = ()
    fences: Sequence[str] = ()

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Self:
        """From rows that have the fields of ``OpenTransaction`` in order."""
        return cls(*zip(*rows, strict=True))

    def rows(self) -> list[OpenTransaction]:
        """One value for each transaction."""
        columns = [getattr(self, name) for name in self.__struct_fields__]
        return [OpenTransaction(*row) for row in zip(*columns, strict=True)]


class ScheduledMessages(Carried, frozen=True):
    """Delayed messages that wait, in order of time. ``reached``: ask again with this as ``after`` for the
    next ones; b"": these are all."""

    partitions: Sequence[int] = ()
    times_ms: Sequence[int] = ()
    owners: Sequence[int] = ()
    ordinals: Sequence[int] = ()
    sizes: Sequence[int] = ()
    reached: bytes = b""

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], reached: bytes) -> Self:
        """From rows that have the columns' elements in order."""
        partitions, times_ms, owners, ordinals, sizes = list(zip(*rows, strict=True)) or [()] * 5
        return cls(partitions, times_ms, owners, ordinals, sizes, reached)

    def rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Partition, time, owner, ordinal and bytes of each."""
        return zip(self.partitions, self.times_ms, self.owners, self.ordinals, self.sizes, strict=True)


class TimersReport(Carried, frozen=True, kw_only=True):
    """Delayed messages of a group: ``waiting`` of at most ``most``. ``next_ms``: when the first of them can
    be read (ms since the epoch, 0: none waits; None: not known now)."""

    waiting: int = 0
    most: int = 0
    next_ms: int | None = None


class SettledTransaction(Carried, frozen=True):
    """What one group reports about a settled transaction: its record and who decided it. ``checked_ms``: when
    a check was last answered without a decision; 0: never. ``by``: "producer", "feedback",
    "operator:<name>", "policy:<which>", "home:<group>", "timeout", "claim"."""

    query_id: str
    topic: str
    messages: int
    prepared_ms: int
    checks: int
    checked_ms: int
    by: str
    decided_ms: int


class FoundTransaction(Carried, frozen=True):
    """A transaction that one app has under the requested id. ``open`` is set until it is settled; after that
    ``settled`` is, for the most recent ones. ``checked_ms``: of an open one, as in ``SettledTransaction``."""

    app: str
    state: TransactionState
    open: OpenTransaction | None
    settled: SettledTransaction | None = None
    checked_ms: int = 0


class AuditEntry(Carried, frozen=True):
    """A decision made by an operator or a policy, not by a producer. ``outcome``: COMMITTED or ROLLBACK.

    Or what an operator has done with dead letters: ``app`` is their group, ``tx_id`` their address
    (``topic/partition@first-last``; of a redrive into a topic all ranges, with commas in between, and
    `` -> topic (transaction)`` behind), and ``outcome`` REDRIVEN or DROPPED. Or with a group: ``app`` is the
    group, ``tx_id`` the settings that were changed, and ``outcome`` ALTERED or DELETED.
    """

    at_ms: int
    by: str
    app: str
    tx_id: str
    outcome: str


# ------------------------------------------------------------ replicas


class PeerReport(Carried, frozen=True):
    """How far a leader's peer has got. ``match_index``: it has the leader's log up to there."""

    peer: str
    connected: bool
    match_index: int


class MembersReport(Carried, frozen=True, kw_only=True):
    """A group's members by number, as one replica knows them.

    ``version`` grows with every change, and is the epoch of the list. ``learners`` hold copies and do not
    vote yet. ``highest``: the highest number that any member ever had; the next member gets a higher one.
    ``change_id``: id of the change that led here, "" in a group that was never changed. ``applied``: whether
    it is certainly committed.
    """

    version: int
    voters: Sequence[int]
    learners: Sequence[int] = ()
    highest: int = -1
    change_id: str = ""
    applied: bool = True

    @property
    def all(self) -> tuple[int, ...]:
        """Voters and learners."""
        return (*self.voters, *self.learners)


class StepTaken(NamedTuple):
    """What a leader has done for a membership change; the caller asks again until ``act`` is "DONE".

    ``act``: the name of an ``Act`` of replication/raft/members.py; ``replica``: the one concerned, -1: none.
    """

    act: str
    replica: int
    members: MembersReport


class ScrubReport(Carried, frozen=True, kw_only=True):
    """How a replica scrubs its stored data. Times in ms since the epoch, 0: never.

    ``done_ms``: when the last full pass ended, and ``done_bytes`` how much it read. ``begun_ms``, ``bytes``:
    start and bytes of the pass under way, or of the last one. ``found``: damaged entries met since the
    process started, ``mended``: those replaced from other replicas, ``damaged``: those not yet replaced.
    """

    done_ms: int = 0
    done_bytes: int = 0
    begun_ms: int = 0
    bytes: int = 0
    found: int = 0
    mended: int = 0
    damaged: int = 0


class AcrossReport(Carried, frozen=True, kw_only=True):
    """Transactions over several groups, as one replica counts them.

    ``undone``: decisions of this group that branches have still to carry out; ``oldest_ms``: when the oldest
    of them was made (ms since the epoch, 0: none). ``branches``: open transactions whose home is another
    group; ``due``: those of them about which home is to be asked (leader only). The rest counts since
    the process started: decisions ``pushed`` to branches and ``followed`` here; branches rolled back because
    home does not owe them a decision (``presumed``); decisions that the branch had ``forgotten``; and alarms
    (``against_home``, branch-against-home): branches recorded differently from home's decision.
    """

    undone: int = 0
    oldest_ms: int = 0
    branches: int = 0
    due: int = 0
    pushed: int = 0
    followed: int = 0
    presumed: int = 0
    forgotten: int = 0
    against_home: int = 0


class OverdueReport(Carried, frozen=True, kw_only=True):
    """Open transactions of a group that have been due for a check for more than a minute, and were not
    checked.

    ``oldest_ms``: for how long the one that has waited longest has been due; ``app``, ``topic`` and ``tx_id``
    say which one that is. ``limited``: there may be more, because not all open transactions were looked at.
    """

    count: int = 0
    oldest_ms: int = 0
    app: str = ""
    topic: str = ""
    tx_id: str = ""
    limited: bool = False


class GivenIdsReport(Carried, frozen=True, kw_only=True):
    """Settled ids that applications chose. ``count`` of at most ``most`` are remembered (an app counts as 500
    beside them).

    ``short_ms``: for how long they are remembered, where that is less than ``remember_ids_s`` promises
    because too many arrived; None: the promise holds, or nothing has been forgotten yet.
    """

    count: int
    most: int
    short_ms: int | None = None


class ReplicaReport(Carried, frozen=True, kw_only=True):
    """A replica's report about itself. Indexes are those of its log. While "starting", it has only defaults.

    ``role``: "leader", "follower" or "starting"; ``ready``: it leads, and answers as a leader. ``failure``:
    why the last attempt to start it failed. ``recovered_index``: what its snapshot held when it started.
    ``waiting``: requests that are not yet in a log entry. ``learner``: it has lost its log and does not yet
    vote or count towards a majority. ``superseded_by``: the incarnation that replaced it; it never runs
    again. ``level``: the format level that its state has reached, 0 if it is not running. ``disk_full``: it
    takes no new work, because a write found no room, or less than ``reserve_bytes`` are free.
    ``room_problem``: why its free space is not known now; ``free_bytes`` is what was last known. ``scrub``,
    ``across``, ``given_ids``, ``timers`` and ``members``: None if it is not running; ``overdue``: None unless
    it leads.
    """

    gid: int
    rid: int
    role: str
    ready: bool = False
    leader: int | None = None
    pid: int = 0
    node_id: str = ""
    failure: str | None = None
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    first_index: int = 0
    last_index: int = 0
    durable_index: int = 0
    recovered_index: int = 0
    open_transactions: int = 0
    topics: int = 0
    log_bytes: int = 0
    snapshots: Sequence[int] = ()
    waiting: int = 0
    address: str = ""
    disk_full: bool = False
    free_bytes: int = 0
    reserve_bytes: int = 0
    peers: Sequence[PeerReport] = ()
    learner: bool = False
    incarnation: int = 0
    superseded_by: int | None = None
    scrub: ScrubReport | None = None
    level: int = 0
    across: AcrossReport | None = None
    given_ids: GivenIdsReport | None = None
    members: MembersReport | None = None
    overdue: OverdueReport | None = None
    room_problem: str = ""
    timers: TimersReport | None = None


prepare(__name__)


# ------------------------------------------------------------------------------------------------------------
# What share consumers ask brokers for leases, and the answers. Leader only; see ``Reply`` for its refusals.
#
# ``share_acquire(group, member, topics, max_records, max_bytes, lease_s, wait_s, call, received)``
# ``("ok", [row, ...], lease_s, again_s, number)``: see ``AcquiredRow``. Leases run for ``lease_s``, which
# may be less than was asked for. An answer without rows came after ``wait_s``, or at once if too many calls
# wait already: then the caller asks again after ``again_s``.
#
# ``call`` rises with each call of the member to this broker group, and ``received`` is the ``number`` of the
# last answer that had one: what came in others is handed out again at once. Both -1: the member does not
# tell. ``number`` -1: nothing was handed out.
#
# ``share_extend(group, member, ranges, lease_s)``, ``share_release(group, member, ranges, call)``
# ``("ok", ranges)``: what the member does not hold, or no longer. See ``PartitionRanges``. ``call``: the
# number of the last call that was answered; what a later one has brought is not released, since the request
# may be late. -1: the member does not tell.
#
# ``member`` is 16 random bytes as hex, new for each consumer. Acks and nacks are requests, as sends are.

#: Topic, partition, and ranges of offsets as ``[first, last, ...]``, sorted and disjoint.
PartitionRanges: TypeAlias = tuple[str, int, Sequence[int]]


class AcquiredRow(NamedTuple):
    """What was handed out of one partition: sent by position, as a plain tuple.

    ``code``: a ``ResultCode``. Unless it is OK there is nothing: UNKNOWN_SHARE if the group has not begun to
    read this partition (send a SHARE_ACK with ``create``), UNKNOWN_TOPIC, and with partition -1, if no such
    topic is there. ``runs`` and ``blob`` are those of a fetch: whole runs ``(base, count, ts_ms, bytes)``, of
    which only the messages in ``leased`` were handed out: ``[first, last, expiries, ...]``, sorted.
    ``expiries``: how many leases of these messages have run out before, as far as this leader knows: a record
    is at the attempt that its header states (1 if it has none), plus this. ``topic_id``: belongs into the
    acks.
    """

    topic: str
    partition: int
    code: int
    topic_id: int = 0
    runs: Sequence[tuple[int, int, int, int]] = ()
    blob: bytes | memoryview = b""
    leased: Sequence[int] = ()


# ------------------------------------------------------------------------------------------------------------
# What brokers tell operators of share groups: how far a group is, and which of its dead letters are left.
#
# Leader only, and of its own broker group. See ``answers`` for the rules of such types.


class SharePlace(NamedTuple):
    """A group in one partition ``[.., end)``: everything below ``start`` is final. ``waiting``: messages that
    are not final; ``leased``: those of them that a consumer has; ``later``: messages of the partition that
    cannot be read yet, such as retries whose time has not come; ``expired``: how many retention has removed
    unhandled; ``ranges``: final ranges above the start."""

    topic: str
    partition: int
    start: int
    end: int
    waiting: int
    leased: int
    later: int
    expired: int
    ranges: int


class SharePlaces(Carried, frozen=True):
    """A group in all its partitions; the columns are the fields of ``SharePlace``."""

    topics: Sequence[str] = ()
    partitions: Sequence[int] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    waiting: Sequence[int] = ()
    leased: Sequence[int] = ()
    later: Sequence[int] = ()
    expired: Sequence[int] = ()
    ranges: Sequence[int] = ()

    @classmethod
    def of(cls, rows: Iterable[SharePlace]) -> Self:
        """From rows."""
        return cls(*zip(*rows, strict=True))

    def rows(self) -> list[SharePlace]:
        """One for each partition."""
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return list(map(SharePlace._make, zip(*columns, strict=True)))


class FinalRanges(Carried, frozen=True):
    """What is final for a group in one partition ``[.., end)``: everything below ``start``, and ``ranges``
    (first, last, first, last, ...). ``topic_id``: of the partition's topic."""

    start: int
    end: int
    ranges: Sequence[int] = ()
    topic_id: int = NO_ID

    def has(self, offset: int) -> bool:
        """Whether it is final, or gone."""
        pairs = zip(self.ranges[::2], self.ranges[1::2], strict=True)
        return offset < self.start or any(first <= offset <= last for first, last in pairs)

    def left(self, start: int = 0) -> Iterable[tuple[int, int]]:
        """The ranges from ``start`` on that are not final, each as ``[begin, end)``."""
        at = max(self.start, start)
        for first, last in zip(self.ranges[::2], self.ranges[1::2], strict=True):
            if first > at:
                yield at, first
            at = max(at, last + 1)
        if at < self.end:
            yield at, self.end


prepare(__name__)


# ------------------------------------------------------------------------------------------------------------
# Which share of the pairs (app, topic) belongs to which caller, where several callers divide them.


def part_of(app: str, topic: str, parts: int) -> int:
    """0 to ``parts - 1``: the same in every process, at every time and in every version."""
    return zlib.crc32(f"{app}\0{topic}".encode("utf-8", "surrogatepass")) % parts
