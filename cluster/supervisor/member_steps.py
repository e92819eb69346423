"""Decides a broker group's next step towards the replicas that are wanted. Pure.

The leader's log decides which steps are allowed (replication/raft/members.py). This module decides which
replicas to add and to remove, and on which nodes. Each group takes one step at a time. The step depends only
on what is seen now and not on remembered steps, so changes continue after any interruption and are reversed
when an operator wants something else.

* A new replica gets the next number and a node. It copies the log as a learner, and gets a vote once the
  leader finds that it has caught up. Only then is the replica that it replaces removed.
* A voter is removed only if a majority of the remaining voters is running.
* A removed replica is ended when its removal is applied. Its directory is removed once a majority of the
  remaining voters was seen running; until then it may be a copy that is still needed.
* A number that was given to a seat that is no longer wanted is still used up in the log, as a learner that is
  added and dropped. Otherwise another process with the same number could be mistaken for it.
* Replicas avoid nodes that have a replica of their group, and Ray's head.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.carried_settings import prepared
from escrowmq.replication.format.membership import VOTERS_MAX

# ------------------------------------------------------------------------------------------------------------
# Decides which replica lives on which node, from what the supervisor has seen. Pure.
#
# A replica belongs to the node that holds its data. Nodes are identified by name, because Ray's node ids
# change with every restart of a node. A replica moves only if its node stays away for long and the rest of
# its group is well. It then starts empty, as a new incarnation with a new directory name, so that data left
# on the old node can never be mistaken for current. The process on the old node may still be alive; the peers
# refuse it once they have met its successor (replication/log/peer_marks.py).
#
# A replica that its peers refuse is restarted on its node as a further incarnation. Either its disk was lost
# and it came back with an empty directory, or the supervisor's records were lost and it used an incarnation's
# number twice.

ReplicaKey = tuple[int, int]
#: The voters are not known for any group.
NOT_KNOWN: Mapping[int, Sequence[Collection[int]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Node:
    """A live Ray node.

    ``name``: from ``ray start --node-name``, by default its IP address. ``head``: it has Ray's control store.
    """

    name: str
    node_id: str
    ip: str
    head: bool = False


@prepared
@dataclass(frozen=True, slots=True)
class Seat:
    """Where a replica runs. ``incarnation`` increases whenever it starts over with an empty directory."""

    gid: int
    rid: int
    node: str
    incarnation: int = 0

    @property
    def key(self) -> ReplicaKey:
        """(group, replica)."""
        return self.gid, self.rid

    @property
    def directory(self) -> str:
        """The name of its directory inside the node's data directory."""
        suffix = f"-i{self.incarnation}" if self.incarnation else ""
        return f"g{self.gid}-r{self.rid}{suffix}"

    def has_a_group(self, founded: Collection[int]) -> bool:
        """Whether the replica begins in a group that has a log already, which it must then take before it
        counts: it starts over, or the group is one of those that have had a leader (``founded``)."""
        return self.incarnation > 0 or self.gid in founded


class Condition(enum.Enum):
    """The state of a replica's process, as last seen by the supervisor."""

    RUNNING = "running"  # and a full member: it votes, and what it acknowledges counts
    LEARNING = "learning"  # takes part, but lost its log and does not count towards a majority yet
    SUPERSEDED = "superseded"  # its peers know a later incarnation, so it never takes part again
    STARTING = "starting"  # answers, but is still recovering or copying a log
    SILENT = "silent"  # exists, but does not answer: busy, or being restarted by Ray
    GONE = "gone"  # does not exist


@dataclass(frozen=True, slots=True)
class Seen:
    """A replica as last seen. It must not be started before ``retry_at``.

    ``node_missing_since``: when its node went missing. ``superseded_by``: the later incarnation that its
    peers know.
    """

    condition: Condition
    node_missing_since: float | None = None
    retry_at: float = 0.0
    superseded_by: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """Start the replica of ``seat`` on ``node``. ``moved``: the seat is new and must be recorded first.

    ``replaces``: the process that now has its name is useless and must be ended first.
    """

    seat: Seat
    node: Node
    moved: bool = False
    replaces: bool = False


def unique_names(nodes: Sequence[Node]) -> list[Node]:
    """Add the id to the names of nodes that share a name.

    This tells them apart, but they cannot be recognized after a restart, which changes their ids.
    """
    count = Counter(node.name for node in nodes)
    return [n if count[n.name] == 1 else replace(n, name=f"{n.name}/{n.node_id[:8]}") for n in nodes]


def found_seats(groups: int, replicas: int, nodes: Sequence[Node]) -> list[Seat]:
    """The first placement: the replicas of a group go to different nodes if there are enough nodes."""
    seats: list[Seat] = []
    for gid in range(groups):
        for rid in range(replicas):
            seats.append(Seat(gid, rid, _emptiest(gid, seats, nodes).name))
    return seats


def _emptiest(gid: int, seats: Collection[Seat], nodes: Sequence[Node]) -> Node:
    """The node with the fewest replicas of this group, then the fewest of all groups, then first by name."""
    of_group = Counter(seat.node for seat in seats if seat.gid == gid)
    of_all = Counter(seat.node for seat in seats)
    return min(nodes, key=lambda node: (of_group[node.name], of_all[node.name], node.name))


def decide(
    seats: Mapping[ReplicaKey, Seat],
    seen: Mapping[ReplicaKey, Seen],
    nodes: Sequence[Node],
    now: float,
    replace_after_s: float,
    voters: Mapping[int, Sequence[Collection[int]]] = NOT_KNOWN,
    closed: Collection[str] = (),
) -> list[ReplicaStart]:
    """What to start now: at most one move per group at a time.

    ``voters``: for each group, the voters of each configuration that may be in force; in a group that is
    missing there, every seat votes. ``closed``: names of nodes that get no new replicas.
    """
    by_name = {node.name: node for node in nodes}
    starts: list[ReplicaStart] = []
    for key, seat in seats.items():
        state = seen[key]
        home = by_name.get(seat.node)
        if state.condition is Condition.SUPERSEDED and home is not None:
            if _may_move(seat, seats, seen, starts, voters):
                number = 1 + max(seat.incarnation, state.superseded_by or 0)
                moved = replace(seat, incarnation=number)
                starts.append(ReplicaStart(moved, home, moved=True, replaces=True))
            continue
        if state.condition is not Condition.GONE or now < state.retry_at:
            continue
        if home is not None:
            starts.append(ReplicaStart(seat, home))
            continue
        missing = state.node_missing_since
        if missing is None or now - missing < replace_after_s:
            continue
        if not _may_move(seat, seats, seen, starts, voters):
            continue
        free = [n for n in nodes if n.name not in closed and not _sits_at(seat.gid, n.name, seats)]
        if free:
            target = _emptiest(seat.gid, seats.values(), free)
            moved = replace(seat, node=target.name, incarnation=seat.incarnation + 1)
            starts.append(ReplicaStart(moved, target, moved=True))
    return starts


def _may_move(
    seat: Seat,
    seats: Mapping[ReplicaKey, Seat],
    seen: Mapping[ReplicaKey, Seen],
    starts: Sequence[ReplicaStart],
    voters: Mapping[int, Sequence[Collection[int]]],
) -> bool:
    """Whether this replica may move: one move per group at a time, and only while the other replicas are well
    under every configuration that may be in force."""
    under_way = any(start.moved and start.seat.gid == seat.gid for start in starts)
    everybody = [rid for gid, rid in seats if gid == seat.gid]
    possible = voters.get(seat.gid) or [everybody]
    return not under_way and all(_others_are_well(seat, among, seen) for among in possible)


def _others_are_well(seat: Seat, voters: Collection[int], seen: Mapping[ReplicaKey, Seen]) -> bool:
    """Whether the other voters alone are a majority of running full members, so that nothing acknowledged is
    lost with this one.

    A learner does not count: it may wait for entries that only this replica has, and cannot elect a leader.
    Nor does a replica that has a copy but no vote yet. So in a group of two voters none ever starts empty: it
    would wait for the other one to lead, and the other one could not be elected without its vote.

    A replica without a vote is not moved: as an empty further incarnation it would wait for all voters,
    including the one that it should replace. It is dropped instead, and a replica with a new number takes its
    place.
    """
    others = [seen.get((seat.gid, rid)) for rid in voters if rid != seat.rid]
    running = sum(other is not None and other.condition is Condition.RUNNING for other in others)
    return seat.rid in voters and running * 2 > len(voters)


def _sits_at(gid: int, node: str, seats: Mapping[ReplicaKey, Seat]) -> bool:
    return any(seat.gid == gid and seat.node == node for seat in seats.values())


#: Number of groups that fill a new replica at the same time. Each copy uses the leader's disk and network.
COPIES_MAX: Final = 2


class Do(enum.Enum):
    """Kinds of steps."""

    PLACE = "place"  # give the next number a seat on ``node``, and start it
    CHANGE = "change members"  # ask the leader for one step towards ``add`` and ``remove``
    HAND_OVER = "hand over"  # ask the leader to let replica ``rid`` lead
    RETIRE = "retire"  # it is no longer a member: end its process, never start it again
    CLEAR = "clear"  # remove the directory of a retired one, and forget it
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class MemberStep:
    """One step of a group.

    ``text``: its description for people, also recorded in the log as the id of the change. ``version``: the
    version of the members for which this is the next step.
    """

    gid: int
    do: Do
    text: str
    rid: int = -1
    node: str = ""
    add: tuple[int, ...] = ()
    remove: tuple[int, ...] = ()
    version: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Group:
    """One group, as wanted and as seen.

    ``wanted``: number of voters. ``moves``: replica -> node where its replacement should be. ``seats``:
    replicas that should run. ``retired``: former members whose directories still exist. ``members``: the
    configuration that the ready leader, ``leader``, reports; None without one. ``running``: replicas that run
    in the incarnation of their seat, as full members or not yet members. ``away_since``: since when the
    others have not been running. ``lead``: the replica that should become leader once; None: no preference.
    ``scarce``: replicas whose disks have too little room to lead: one that led would hand over at once.
    """

    gid: int
    wanted: int
    seats: Mapping[int, Seat]
    members: MembersReport | None
    leader: int | None
    running: frozenset[int]
    moves: Mapping[int, str] = field(default_factory=dict)
    retired: Mapping[int, Seat] = field(default_factory=dict)
    away_since: Mapping[int, float] = field(default_factory=dict)
    lead: int | None = None
    scarce: frozenset[int] = frozenset()

    @property
    def filling(self) -> bool:
        """Whether there is a replica, with a seat or already in the log, that does not vote yet."""
        members = self.members
        if members is None:
            return False
        return bool(members.learners) or any(rid > members.highest for rid in self.seats)


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The nodes, by name. ``load``: seats of all groups on each node; ``leads``: leaders on each node."""

    alive: frozenset[str]
    head: str | None = None
    drained: frozenset[str] = frozenset()
    maintained: frozenset[str] = frozenset()
    load: Mapping[str, int] = field(default_factory=dict)
    leads: Mapping[str, int] = field(default_factory=dict)

    @property
    def usable(self) -> frozenset[str]:
        """Nodes that may get replicas and leaders."""
        return self.alive - self.drained - self.maintained


def cluster_nodes(
    nodes: Sequence[Node], groups: Iterable[Group], drained: Collection[str], maintained: Collection[str]
) -> ClusterNodes:
    """The nodes as the supervisor sees them."""
    known = list(groups)
    leaders = [
        group.seats[group.leader].node
        for group in known
        if group.leader is not None and group.leader in group.seats
    ]
    return ClusterNodes(
        frozenset(node.name for node in nodes),
        next((node.name for node in nodes if node.head), None),
        frozenset(drained),
        frozenset(maintained),
        Counter(seat.node for group in known for seat in group.seats.values()),
        Counter(leaders),
    )


def next_steps(
    groups: Sequence[Group], fleet: ClusterNodes, now: float, patience_s: float
) -> list[MemberStep]:
    """For each group that is not as wanted: its next step, or what it waits for."""
    filling = sum(group.filling for group in groups)
    load = Counter(fleet.load)
    steps = []
    for group in groups:
        seen = ClusterNodes(fleet.alive, fleet.head, fleet.drained, fleet.maintained, load, fleet.leads)
        step = next_step(group, seen, now, patience_s, may_fill=filling < COPIES_MAX)
        if step is not None:
            steps.append(step)
            if step.do is Do.PLACE:
                filling += 1
                load[step.node] += 1
    return steps


def next_step(
    group: Group, fleet: ClusterNodes, now: float, patience_s: float, *, may_fill: bool = True
) -> MemberStep | None:
    """The next step of one group; None if the group is as wanted.

    ``patience_s``: a new replica that is away for longer is given up.
    """
    members = group.members
    if members is None or group.leader is None:
        return MemberStep(group.gid, Do.WAIT, "the group has no leader")
    if not members.applied:
        return MemberStep(group.gid, Do.WAIT, "the last change is not applied yet")
    return _Look(group, members, group.leader, fleet, lost_of(group, now, patience_s), may_fill).step()


def lost_of(group: Group, now: float, patience_s: float) -> frozenset[int]:
    """Replicas that have been away for so long that they are given up."""
    return frozenset(rid for rid, since in group.away_since.items() if now - since >= patience_s)


class _Look:
    """One look at one group."""

    def __init__(
        self,
        group: Group,
        members: MembersReport,
        leader: int,
        fleet: ClusterNodes,
        lost: frozenset[int],
        may_fill: bool,
    ) -> None:
        self._group, self._members, self._leader = group, members, leader
        self._fleet, self._lost, self._may_fill = fleet, lost, may_fill
        self._voters = tuple(members.voters)
        coming = sorted(rid for rid in group.seats if rid > members.highest)
        self._newcomers = [*members.learners, *coming]
        self._leaving = {rid for rid in self._voters if self._leaves(rid)}
        #: Number of voters still to be added.
        self._need = group.wanted - len(self._voters) + len(self._leaving)

    def step(self) -> MemberStep | None:
        waits = None
        for part in (
            self._retire,
            self._drop,
            self._hand_over,
            self._remove,
            self._fill,
            self._place,
            self._clear,
            self._spread,  # last: a replica that does not take over must not hold up the others
        ):
            step = part()
            if step is not None and step.do is not Do.WAIT:
                return step
            waits = waits or step
        return waits

    # ------------------------------------------------------------ who goes
    def _retire(self) -> MemberStep | None:
        members = self._members
        for rid, seat in self._group.seats.items():
            if rid <= members.highest and rid not in members.all:
                return self._say(
                    Do.RETIRE, f"replica {rid} on {seat.node} is stopped: it was removed", rid=rid
                )
        return None

    def _drop(self) -> MemberStep | None:
        """Drop a new replica that is lost or no longer wanted."""
        wanted = [rid for rid in self._newcomers if not self._doomed(rid)][: max(self._need, 0)]
        for rid in self._newcomers:
            if rid in wanted:
                continue
            text = f"replica {rid} is dropped: it is {'lost' if self._doomed(rid) else 'not needed any more'}"
            if rid in self._members.learners:
                return self._say(Do.CHANGE, text, rid=rid, remove=(rid,))
            return self._say(
                Do.CHANGE, text, rid=rid, add=(rid,)
            )  # added to be dropped: this uses up its number
        return None

    def _hand_over(self) -> MemberStep | None:
        seat = self._group.seats.get(self._leader)
        if seat is None or seat.node not in self._fleet.drained | self._fleet.maintained:
            return None
        to = best_leader(self._group, self._fleet, self._voters)
        if to is None:
            return None
        return self._say(
            Do.HAND_OVER, f"replica {to} takes over from leader {self._leader} on {seat.node}", rid=to
        )

    def _spread(self) -> MemberStep | None:
        """Move leadership to the replica that an operator or a rebalance plan wants."""
        to = self._group.lead
        if to is None or lead_done(self._group, self._fleet, self._lost):
            return None
        if to not in self._group.running:
            return self._say(Do.WAIT, f"replica {to} should lead but is not running", rid=to)
        if to in self._group.scarce and self._leader not in self._group.scarce:
            return self._say(Do.WAIT, f"replica {to} should lead but its disk has too little room", rid=to)
        return self._say(Do.HAND_OVER, f"replica {to} takes over from leader {self._leader}", rid=to)

    def _remove(self) -> MemberStep | None:
        surplus = len(self._voters) - self._group.wanted
        ready = self._group.running.intersection(self._members.learners)
        full = len(self._voters) >= VOTERS_MAX and self._need > 0 and bool(ready)  # no vote is free
        if surplus <= 0 and not full:
            return None
        candidates = self._leaving or set(self._voters)
        if self._need > 0 and not full:  # replicas whose successor has not come yet must stay
            candidates = {rid for rid in self._leaving if self._moved_to(rid) is None}
        going = [rid for rid in candidates if self._may_go(rid)]
        if going:
            rid = min(going, key=self._dispensable)
            return self._say(Do.CHANGE, f"replica {rid} is removed", rid=rid, remove=(rid,))
        if candidates:
            return self._say(Do.WAIT, "no replica can be removed: the others have no running majority")
        return None

    def _may_go(self, rid: int) -> bool:
        others = [voter for voter in self._voters if voter != rid]
        return sum(voter in self._group.running for voter in others) * 2 > len(others)

    def _dispensable(self, rid: int) -> tuple[bool, int, bool, bool, int]:
        """Sort key. Removed first: not running, then sharing a node, then on the head, then not leading."""
        node = self._node(rid)
        sharing = sum(node is not None and self._node(voter) == node for voter in self._voters)
        running, on_head = rid in self._group.running, node == self._fleet.head
        return running, -sharing, not on_head, rid == self._leader, -rid

    def _clear(self) -> MemberStep | None:
        running = sum(rid in self._group.running for rid in self._voters)
        if running * 2 <= len(self._voters):
            return None
        for rid, seat in self._group.retired.items():
            if seat.node in self._fleet.alive:
                text = f"the directory of replica {rid} on {seat.node} is removed"
                return self._say(Do.CLEAR, text, rid=rid, node=seat.node)
        return None

    # ------------------------------------------------------------ who comes
    def _fill(self) -> MemberStep | None:
        if not self._newcomers:
            return None
        rid = self._newcomers[0]
        node, learns = self._node(rid), rid in self._members.learners
        if rid not in self._group.running:
            return self._say(Do.WAIT, f"replica {rid} starts on {node} and copies the log")
        text = f"replica {rid} on {node} {'catches up' if learns else 'becomes a learner'}"
        return self._say(Do.CHANGE, text, rid=rid, add=(rid,))

    def _place(self) -> MemberStep | None:
        if self._need <= 0 or self._newcomers:
            return None
        if not self._may_fill:
            return self._say(Do.WAIT, f"{COPIES_MAX} other groups are filling a replica")
        node, problem = self._where()
        if node is None:
            return self._say(Do.WAIT, problem)
        rid = self._members.highest + 1
        return self._say(Do.PLACE, f"replica {rid} is placed on {node}", rid=rid, node=node)

    def _where(self) -> tuple[str | None, str]:
        """The node for the next new replica, or why there is none."""
        usable = self._fleet.usable
        targets = [target for rid in sorted(self._leaving) if (target := self._moved_to(rid)) is not None]
        for target in targets:
            if target in usable:
                return target, ""
        if self._need <= len(targets):
            return None, f"node {targets[0]} is down, drained or in maintenance"
        free = usable - set(self._nodes())
        if not free and self._need > len(self._leaving):  # as at the founding: more replicas than nodes
            free = usable
        if not free:
            return None, "every usable node already has a replica of this group"
        return min(free, key=self._rank), ""

    def _rank(self, node: str) -> tuple[int, bool, int, str]:
        here = sum(other == node for other in self._nodes())
        return here, node == self._fleet.head, self._fleet.load.get(node, 0), node

    # ------------------------------------------------------------ what is seen
    def _leaves(self, rid: int) -> bool:
        node = self._node(rid)
        moves = self._group.moves.get(rid, node) != node  # it may have been rebuilt there meanwhile
        return node is None or node in self._fleet.drained or moves

    def _doomed(self, rid: int) -> bool:
        node = self._node(rid)
        return node is None or node in self._fleet.drained or rid in self._lost

    def _moved_to(self, rid: int) -> str | None:
        """The node where this replica's replacement is still missing; None if there is none."""
        target = self._group.moves.get(rid)
        there = any(self._node(voter) == target for voter in self._voters)
        return None if target is None or there else target

    def _node(self, rid: int) -> str | None:
        seat = self._group.seats.get(rid)
        return None if seat is None else seat.node

    def _nodes(self) -> list[str]:
        return [seat.node for seat in self._group.seats.values()]

    def _say(
        self,
        do: Do,
        text: str,
        *,
        rid: int = -1,
        node: str = "",
        add: tuple[int, ...] = (),
        remove: tuple[int, ...] = (),
    ) -> MemberStep:
        return MemberStep(self._group.gid, do, text, rid, node, add, remove, self._members.version)


def best_leader(group: Group, fleet: ClusterNodes, voters: Collection[int]) -> int | None:
    """The running voter that should lead next; None if there is none.

    It has room, if possible, and is on the node with the fewest leaders, and not on the head if possible.
    """
    others = [
        rid
        for rid in voters
        if rid != group.leader and rid in group.running and group.seats[rid].node in fleet.usable
    ]

    def rank(rid: int) -> tuple[bool, int, bool, int]:
        node = group.seats[rid].node
        return rid in group.scarce, fleet.leads.get(node, 0), node == fleet.head, rid

    return min(others, key=rank, default=None)


def moves_done(group: Group) -> list[int]:
    """Replicas whose move is done: they are no longer members, or were rebuilt on the wanted node."""
    members = group.members
    if members is None or not members.applied:
        return []
    there = {rid for rid, node in group.moves.items() if rid in group.seats and group.seats[rid].node == node}
    return [r for r in group.moves if r in there or (r <= members.highest and r not in members.all)]


def lead_done(group: Group, fleet: ClusterNodes, lost: Collection[int]) -> bool:
    """Whether the wanted leader leads, or no longer can: no vote, lost, or on a node that is not usable."""
    members, rid = group.members, group.lead
    if rid is None or members is None or not members.applied:
        return False
    seat = group.seats.get(rid)
    closed = seat is None or seat.node in fleet.drained | fleet.maintained
    return rid == group.leader or rid not in members.voters or rid in lost or closed


# ------------------------------------------------------------------------------------------------------------
# Plans how to spread replicas and leaders over the nodes. Pure.
#
# Nothing moves without a request: copying a log uses disks and network, and only an operator knows a good
# time for it. A plan consists of single moves, each of which is an improvement by itself. The goals are, in
# this order: no two replicas of a group on one node, none on Ray's head, the same number of replicas on each
# node. Leaders move to nodes with fewer leaders. Groups whose replicas are not yet as wanted are left alone.

#: The cost of two replicas of a group on one node, and of a replica on the head. The only other cost is the
#: square of the number of replicas on each node.
SHARED: Final = 1_000_000
ON_HEAD: Final = 10_000
#: Moves in one plan. If more are needed, another plan follows when these are done.
SHIFTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Shift:
    """Replace a replica by one on another node. ``leads``: instead, the group's leadership moves to ``rid``,
    on ``to_node``."""

    gid: int
    rid: int
    from_node: str
    to_node: str
    leads: bool = False


def plan(groups: Sequence[Group], fleet: ClusterNodes) -> list[Shift]:
    """The moves to make, in this order; empty if all is well spread."""
    steady = [group for group in groups if is_steady(group)]
    nodes = {group.gid: {rid: seat.node for rid, seat in group.seats.items()} for group in groups}
    load = Counter(fleet.load)
    shifts: list[Shift] = []
    while len(shifts) < SHIFTS_MAX:
        found = _best(steady, nodes, load, fleet)
        if found is None:
            break
        shifts.append(found)
        nodes[found.gid][found.rid] = found.to_node
        load[found.from_node] -= 1
        load[found.to_node] += 1
    return shifts + _leaders(steady, fleet, {(shift.gid, shift.rid) for shift in shifts})


def is_steady(group: Group) -> bool:
    """Whether the group has the wanted replicas and no change is in progress."""
    members = group.members
    if members is None or group.leader is None or not members.applied or group.filling or group.moves:
        return False
    return len(members.voters) == group.wanted and set(members.voters) == set(group.seats)


def _best(
    groups: Sequence[Group],
    nodes: Mapping[int, Mapping[int, str]],
    load: Mapping[str, int],
    fleet: ClusterNodes,
) -> Shift | None:
    """The move that improves most; None if none improves anything."""
    best, most = None, 0
    for group in groups:
        here = nodes[group.gid]
        taken = Counter(here.values())
        for rid, node in here.items():
            for to in sorted(fleet.usable - set(taken)):
                gain = 2 * (load.get(node, 0) - load.get(to, 0) - 1)
                gain += SHARED * (taken[node] > 1)
                gain += ON_HEAD * ((node == fleet.head) - (to == fleet.head))
                if gain > most and node not in fleet.maintained:
                    best, most = Shift(group.gid, rid, node, to), gain
    return best


def _leaders(groups: Sequence[Group], fleet: ClusterNodes, moving: set[tuple[int, int]]) -> list[Shift]:
    """Moves of leadership to nodes with fewer leaders. Replicas that are about to move do not get to lead,
    nor those with too little room."""
    leads = Counter(fleet.leads)
    shifts = []
    for group in groups:
        assert group.leader is not None
        node = group.seats[group.leader].node
        others = {
            rid: seat.node
            for rid, seat in group.seats.items()
            if seat.node in fleet.usable
            and rid in group.running - group.scarce
            and (group.gid, rid) not in moving
        }
        to = min(others, key=lambda rid: (leads[others[rid]], others[rid] == fleet.head, rid), default=None)
        if to is not None and leads[others[to]] + 1 < leads[node]:
            shifts.append(Shift(group.gid, to, node, others[to], leads=True))
            leads[node] -= 1
            leads[others[to]] += 1
    return shifts
