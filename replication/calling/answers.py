"""What brokers answer on the control path: one type for each kind of answer.

A call for the leader is answered by a ``Reply``. Where an answer can have thousands of rows it is a struct
of columns: those are packed and sent at a quarter of the cost of an object for each row. Messages and
results of requests are bulk, and stay as ``ops`` and ``fetching`` describe them. Nothing here is stored, but
the ends may run different versions: see carried_answers.py, and its rules for new fields. The tuples here go
by position, and never get a field. Times are in ms since the epoch; ``code`` is a ``ResultCode``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from escrowmq.replication.calling.carried_answers import Carried
from escrowmq.replication.model import OpenTransaction, TransactionState

#: ``("ok", answer)`` from a leader; ``("not_leader", the leader's replica number or None, term)``; and from
#: ``submit`` also ``("overloaded", s)``, ``("disk_full", s)``, ``("malformed", text)``, ``("unsupported",
#: level)``: the group has not reached the format level that this request needs, nothing was done; and
#: ``("unknown",)``: it may or may not happen, send the same bytes again. To a request with a PREPARE of
#: version 2, "ok" has a third part: the time of an entry of the group, which the client's next PREPARE
#: tells as what it has heard.
Reply: TypeAlias = tuple[Any, ...]


class Leadership(NamedTuple):
    """What a replica knows of leadership: whether it leads itself and is ready, who leads, in which term."""

    ready: bool
    leader: int | None
    term: int

    def refusal(self) -> Reply:
        """The answer to a call that only a leader does, from one that does not lead: nothing was done."""
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
    """Of each partition asked for: offsets ``[start, end)``, all of one moment; 0 unless the code is OK."""

    codes: list[int]
    starts: list[int]
    ends: list[int]


class PartitionSpans(Carried, frozen=True):
    """Of each span asked for: the offset that its bytes reach, and the bytes until there."""

    codes: list[int]
    offsets: list[int]
    sizes: list[int]


class FoundOffsets(Carried, frozen=True):
    """Of each partition and time asked for: the first offset at or after that time."""

    codes: list[int]
    offsets: list[int]


class FetchEnds(Carried, frozen=True):
    """The offsets at which the next fetches of a partition will end, rising."""

    code: int
    ends: list[int]


# ------------------------------------------------------------ transactions


class Standing(NamedTuple):
    """How a transaction stands in one group, as of one entry of its log: a row of the answer to INQUIRE.

    ``state``: a TransactionState's name. ``home_index``: log index of home's record, -1 unless it is open or
    waits for branches. Of an open one: its parts prepared and expected (0: not told), its home group (-1:
    here), and, at home, the groups of its branches. Of a decided one: the groups that have not done it.
    """

    state: str
    home_index: int = -1
    have: int = 0
    parts: int = 0
    home_group: int = -1
    groups: Sequence[int] = ()

    @property
    def whole(self) -> bool:
        """Open, with all its parts."""
        return self.state == "PREPARE" and self.parts in (0, self.have)

    def is_branch_of(self, home: int) -> bool:
        """The same, and group ``home`` decides it: an index of home's record is one of that group's log."""
        return self.whole and self.home_group == home

    def lacking(self, group: int, home: int = -1) -> str:
        """What is missing in ``group`` unless it is whole (and ``home`` decides it), for people."""
        if self.state == "PREPARE" and self.home_group == home:
            return f"group {group} has {self.have} of {self.parts} parts"
        return f"it is not prepared in group {group}"


class LockedRow(NamedTuple):
    """A due transaction, locked for one feedback process.

    ``checks``: how many it had. ``home_group``: where it is decided, -1 = here. ``exhausted``: it has had all
    of its checks, and its topic says that it is then rolled back. ``instance``: its owner, the producer that
    prepared it last ("": not known, or one that cannot be asked). ``newest_index``: the log index of that
    PREPARE; a roll-back by a check holds for this one only (0: the group's format level knows no such
    condition). ``age_ms``: how long it has been open.
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


class LockedChecks(Carried, frozen=True):
    """Transactions that are due and locked now; the columns are the fields of ``LockedRow``."""

    tx_ids: Sequence[str] = ()
    query_ids: Sequence[str] = ()
    prepared_ms: Sequence[int] = ()
    checks: Sequence[int] = ()
    home_groups: Sequence[int] = ()
    exhausted: Sequence[bool] = ()
    instances: Sequence[str] = ()
    newest_indexes: Sequence[int] = ()
    ages_ms: Sequence[int] = ()

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Self:
        """From rows with the fields of ``LockedRow`` in their order."""
        return cls(*zip(*rows, strict=True))

    def rows(self) -> list[LockedRow]:
        """One row for each transaction."""
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return list(map(LockedRow._make, zip(*columns, strict=True)))


class EarlierChecks:
    """``LockedChecks`` on its way to an earlier version, which unpickles its own class of that name: without
    the columns that it does not know."""

    def __init__(self, checks: LockedChecks) -> None:
        self._columns = [getattr(checks, name) for name in checks.__struct_fields__[:6]]

    def __reduce__(self) -> tuple[Any, ...]:
        return LockedChecks, tuple(self._columns)


class DuePairs(Carried, frozen=True):
    """Pairs (app, topic) that came to have due checks since the caller last asked.

    ``term`` and ``seen`` are what the caller passes the next time: the leader's term, and the number up to
    which it was told in that term.
    """

    term: int
    seen: int
    pairs: Sequence[tuple[str, str]] = ()


class OpenPairs(Carried, frozen=True):
    """Pairs (app, topic) with open transactions, of the first ``apps`` of the apps that were asked for."""

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

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Self:
        """From rows with the fields of ``OpenTransaction`` in their order."""
        return cls(*zip(*rows, strict=True))

    def rows(self) -> list[OpenTransaction]:
        """One value for each transaction."""
        columns = [getattr(self, name) for name in self.__struct_fields__]
        while self.apps and not columns[-1]:  # of an earlier version, which does not know it
            columns.pop()
        return [OpenTransaction(*row) for row in zip(*columns, strict=True)]


class SettledTransaction(Carried, frozen=True):
    """What is told of a settled transaction by one group: as it was, and who decided it. ``checked_ms``: when
    a check was last answered without a decision; 0: never. ``by``: "producer", "feedback",
    "operator:<name>", "policy:<which>", "home:<group>"."""

    query_id: str
    topic: str
    messages: int
    prepared_ms: int
    checks: int
    checked_ms: int
    by: str
    decided_ms: int


class FoundTransaction(Carried, frozen=True):
    """A transaction that one app has under the id asked for; ``open`` as long as it is not settled, and
    ``settled`` then, for the last ones. ``checked_ms``: of an open one, as in ``SettledTransaction``."""

    app: str
    state: TransactionState
    open: OpenTransaction | None
    settled: SettledTransaction | None = None
    checked_ms: int = 0


class AuditEntry(Carried, frozen=True):
    """A decision that no producer made, but an operator or a policy. ``outcome``: COMMITTED or ROLLBACK."""

    at_ms: int
    by: str
    app: str
    tx_id: str
    outcome: str


# ------------------------------------------------------------ replicas


class PeerReport(Carried, frozen=True):
    """How far a leader's peer has got. ``match_index``: up to there it has the leader's log."""

    peer: str
    connected: bool
    match_index: int


class MembersReport(Carried, frozen=True, kw_only=True):
    """A group's members by their numbers, as one replica has them.

    ``version`` grows with every change, and is the epoch of the list. ``learners`` hold copies and do not
    vote yet. ``highest``: the highest number that any member ever had; whoever comes next has a higher one.
    ``change_id``: of the change that led here, "" in a group that never was changed. ``applied``: it is
    committed for sure.
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
    """What a leader has done for a change of members; the caller asks again until ``act`` is "DONE".

    ``act``: the name of an ``Act`` of replication/raft/members.py; ``replica``: whom it is about, -1: nobody.
    """

    act: str
    replica: int
    members: MembersReport


class ScrubReport(Carried, frozen=True, kw_only=True):
    """How a replica looks after what it has stored. Times in ms since the epoch, 0: never.

    ``done_ms``: when it had last read all of it again, ``done_bytes`` of them. ``begun_ms``, ``bytes``: the
    pass under way, or the last one. ``found``: damaged entries that were met since it started, ``mended``
    those that were taken from other replicas, ``damaged`` those that are still to be mended.
    """

    done_ms: int = 0
    done_bytes: int = 0
    begun_ms: int = 0
    bytes: int = 0
    found: int = 0
    mended: int = 0
    damaged: int = 0


class AcrossReport(Carried, frozen=True, kw_only=True):
    """Transactions over several groups, as one replica has them.

    ``undone``: decisions of this group that branches have still to carry out; ``oldest_ms``: when the oldest
    of them was made (ms since the epoch, 0: none). ``branches``: open transactions whose home is another
    group; ``due``: those of them that wait to be asked about at home (leader only). The rest counts since
    the process started: decisions ``pushed`` to branches and ``followed`` here, branches that home did not
    owe and that were rolled back (``presumed``), decisions that the branch had ``forgotten``, and alarms
    (``against_home``, branch-against-home): branches recorded otherwise than home has decided.
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


class GivenIdsReport(Carried, frozen=True, kw_only=True):
    """Settled ids that applications gave. ``count`` of at most ``most`` are remembered (an app counts as 500
    beside them).

    ``short_ms``: for how long, where that is less than ``remember_ids_s`` promises, because too many came;
    None: for as long as that, or nothing was forgotten yet.
    """

    count: int
    most: int
    short_ms: int | None = None


class ReplicaReport(Carried, frozen=True, kw_only=True):
    """A replica about itself. Indexes are those of its log. One that is "starting" has no more than defaults.

    ``role``: "leader", "follower" or "starting"; ``ready``: it leads, and answers as a leader. ``failure``:
    why the last attempt to start it failed. ``recovered_index``: what its snapshot held when it started.
    ``waiting``: requests that are in no log entry yet. ``learner``: it has lost its log and neither votes nor
    counts for a majority yet. ``superseded_by``: the incarnation that took its place; it never runs again.
    ``level``: the format level that its state has reached, 0 where nothing runs. ``disk_full``: it takes
    no new work, because it found no room, or less than ``reserve_bytes`` are free. ``scrub``, ``across``,
    ``given_ids`` and ``members``: None where nothing runs.
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
