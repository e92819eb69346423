"""Which step a broker group takes next, so that it comes to have the replicas that are wanted. Pure.

The leader's log decides what a step may be (replication/raft/members.py); here it is decided what is to come
and what is to go, and where. One step at a time for each group, from what is seen now and from nothing that
was remembered: so it goes on after any interruption, and turns round when somebody wants something else.

* Whoever is to come takes the next number, on a node that was chosen; it is filled as a learner, and votes
  when the leader finds that it has caught up. Then, and not before, goes the one in whose place it came.
* No voter goes unless those that stay are a running majority of themselves.
* What was removed is ended when its removal is applied; its directory goes when a majority of those that
  remained was seen running. Until then it may be a copy that is missed.
* A number that was given to a seat and is not wanted any more is used up in the log all the same, as a
  learner that is dropped: another process of that number could be taken for it.
* Replicas avoid nodes that hold one of their group, and Ray's head.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from escrowmq.cluster.placement import Node, Seat
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.format.membership import VOTERS_MAX
from escrowmq.replication.host.member_changes import LEVEL

#: Groups that fill a replica at the same time. A copy takes a leader's disk and network.
COPIES_MAX: Final = 2


class Do(enum.Enum):
    """What a step does."""

    PLACE = "place"  # give the next number a seat on ``node``, and start it
    CHANGE = "change members"  # ask the leader for one step towards ``add`` and ``remove``
    HAND_OVER = "hand over"  # ask the leader to let replica ``rid`` lead
    RETIRE = "retire"  # it is no member any more: end its process, never start it again
    CLEAR = "clear"  # remove the directory of a retired one, and forget it
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class MemberStep:
    """``text`` says it to people, and is the id of a change in the log. ``version``: of the members for which
    it is the next step."""

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
    """One group as it is wanted and as it is seen.

    ``wanted``: voters. ``moves``: replica -> node that is to have another one in its place. ``seats``: those
    that are to run; ``retired``: those that were members, whose directories are still there. ``members``: as
    a ready leader, ``leader``, tells them; None: there is none. ``running``: replicas that run, as full
    members or not members yet, in the incarnation of their seat. ``away_since``: since when others do not.
    ``level``: the format level that the leader's state has reached. ``lead``: who is to lead it once; None:
    nobody in particular.
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
    level: int = LEVEL
    lead: int | None = None

    @property
    def filling(self) -> bool:
        """Whether a replica has a seat, or a place in the log, that does not vote yet."""
        members = self.members
        if members is None:
            return False
        return bool(members.learners) or any(rid > members.highest for rid in self.seats)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes, by name. ``load``: seats on each, of all groups; ``leads``: leaders on each."""

    alive: frozenset[str]
    head: str | None = None
    drained: frozenset[str] = frozenset()
    maintained: frozenset[str] = frozenset()
    load: Mapping[str, int] = field(default_factory=dict)
    leads: Mapping[str, int] = field(default_factory=dict)

    @property
    def usable(self) -> frozenset[str]:
        """Nodes that may get replicas, and lead."""
        return self.alive - self.drained - self.maintained


def fleet_of(
    nodes: Sequence[Node], groups: Iterable[Group], drained: Collection[str], maintained: Collection[str]
) -> Fleet:
    """As the supervisor has seen them."""
    known = list(groups)
    leaders = [
        group.seats[group.leader].node
        for group in known
        if group.leader is not None and group.leader in group.seats
    ]
    return Fleet(
        frozenset(node.name for node in nodes),
        next((node.name for node in nodes if node.head), None),
        frozenset(drained),
        frozenset(maintained),
        Counter(seat.node for group in known for seat in group.seats.values()),
        Counter(leaders),
    )


def next_steps(groups: Sequence[Group], fleet: Fleet, now: float, patience_s: float) -> list[MemberStep]:
    """For each group that is not as it is wanted: its next step, or what it waits for."""
    filling = sum(group.filling for group in groups)
    load = Counter(fleet.load)
    steps = []
    for group in groups:
        seen = Fleet(fleet.alive, fleet.head, fleet.drained, fleet.maintained, load, fleet.leads)
        step = next_step(group, seen, now, patience_s, may_fill=filling < COPIES_MAX)
        if step is not None:
            steps.append(step)
            if step.do is Do.PLACE:
                filling += 1
                load[step.node] += 1
    return steps


def next_step(
    group: Group, fleet: Fleet, now: float, patience_s: float, *, may_fill: bool = True
) -> MemberStep | None:
    """None: it is as it is wanted. ``patience_s``: a newcomer that is away for longer is given up."""
    members = group.members
    if members is None or group.leader is None:
        return MemberStep(group.gid, Do.WAIT, "nobody leads")
    if not members.applied:
        return MemberStep(group.gid, Do.WAIT, "the last change is not applied yet")
    return _Look(group, members, group.leader, fleet, lost_of(group, now, patience_s), may_fill).step()


def lost_of(group: Group, now: float, patience_s: float) -> frozenset[int]:
    """Replicas that are given up."""
    return frozenset(rid for rid, since in group.away_since.items() if now - since >= patience_s)


class _Look:
    """One look at one group."""

    def __init__(
        self,
        group: Group,
        members: MembersReport,
        leader: int,
        fleet: Fleet,
        lost: frozenset[int],
        may_fill: bool,
    ) -> None:
        self._group, self._members, self._leader = group, members, leader
        self._fleet, self._lost, self._may_fill = fleet, lost, may_fill
        self._voters = tuple(members.voters)
        coming = sorted(rid for rid in group.seats if rid > members.highest)
        self._newcomers = [*members.learners, *coming]
        self._leaving = {rid for rid in self._voters if self._leaves(rid)}
        #: So many are still to come.
        self._need = group.wanted - len(self._voters) + len(self._leaving)

    def step(self) -> MemberStep | None:
        waits = None
        for part in (
            self._retire,
            self._drop,
            self._hand_over,
            self._spread,
            self._remove,
            self._fill,
            self._place,
            self._clear,
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
                return self._say(Do.RETIRE, f"replica {rid} on {seat.node} is ended: it was removed", rid=rid)
        return None

    def _drop(self) -> MemberStep | None:
        """A newcomer that is lost, or not wanted any more."""
        wanted = [rid for rid in self._newcomers if not self._doomed(rid)][: max(self._need, 0)]
        for rid in self._newcomers:
            if rid in wanted:
                continue
            text = f"replica {rid} is dropped: it is {'lost' if self._doomed(rid) else 'not needed any more'}"
            if rid in self._members.learners:
                return self._say(Do.CHANGE, text, rid=rid, remove=(rid,))
            return self._say(Do.CHANGE, text, rid=rid, add=(rid,))  # so that its number is used up
        return None

    def _hand_over(self) -> MemberStep | None:
        seat = self._group.seats.get(self._leader)
        if seat is None or seat.node not in self._fleet.drained | self._fleet.maintained:
            return None
        to = best_leader(self._group, self._fleet, self._voters)
        if to is None:
            return None
        return self._say(
            Do.HAND_OVER, f"replica {to} takes the lead over from {self._leader} on {seat.node}", rid=to
        )

    def _spread(self) -> MemberStep | None:
        """The lead goes where somebody wants it."""
        to = self._group.lead
        if to is None or lead_done(self._group, self._fleet, self._lost):
            return None
        if to not in self._group.running:
            return self._say(Do.WAIT, f"replica {to} is to take the lead over, and does not run", rid=to)
        return self._say(Do.HAND_OVER, f"replica {to} takes the lead over from {self._leader}", rid=to)

    def _remove(self) -> MemberStep | None:
        surplus = len(self._voters) - self._group.wanted
        ready = self._group.running.intersection(self._members.learners)
        full = len(self._voters) >= VOTERS_MAX and self._need > 0 and bool(ready)  # it cannot vote before
        if surplus <= 0 and not full:
            return None
        candidates = self._leaving or set(self._voters)
        if self._need > 0 and not full:  # somebody else has come; those whose successor has not, stay
            candidates = {rid for rid in self._leaving if self._moved_to(rid) is None}
        going = [rid for rid in candidates if self._may_go(rid)]
        if going:
            rid = min(going, key=self._dispensable)
            return self._say(Do.CHANGE, f"replica {rid} is removed", rid=rid, remove=(rid,))
        if candidates:
            return self._say(Do.WAIT, "nobody can be removed: those that stay were no running majority")
        return None

    def _may_go(self, rid: int) -> bool:
        others = [voter for voter in self._voters if voter != rid]
        return sum(voter in self._group.running for voter in others) * 2 > len(others)

    def _dispensable(self, rid: int) -> tuple[bool, int, bool, bool, int]:
        """The first goes: one that does not run, that shares its node, that is on the head, does not lead."""
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
            return self._say(Do.WAIT, f"replica {rid} starts on {node}, and copies the log")
        text = f"replica {rid} on {node} {'catches up' if learns else 'becomes a learner'}"
        return self._say(Do.CHANGE, text, rid=rid, add=(rid,))

    def _place(self) -> MemberStep | None:
        if self._need <= 0 or self._newcomers:
            return None
        if self._group.level < LEVEL:
            return self._say(Do.WAIT, f"format level {LEVEL} comes when all replicas are upgraded")
        if not self._may_fill:
            return self._say(Do.WAIT, f"{COPIES_MAX} other groups fill a replica")
        node, problem = self._where()
        if node is None:
            return self._say(Do.WAIT, problem)
        rid = self._members.highest + 1
        return self._say(Do.PLACE, f"replica {rid} is placed on {node}", rid=rid, node=node)

    def _where(self) -> tuple[str | None, str]:
        """The node of whoever comes next, or why there is none."""
        usable = self._fleet.usable
        targets = [target for rid in sorted(self._leaving) if (target := self._moved_to(rid)) is not None]
        for target in targets:
            if target in usable:
                return target, ""
        if self._need <= len(targets):
            return None, f"node {targets[0]} is not there, or closed"
        free = usable - set(self._nodes())
        if not free and self._need > len(self._leaving):  # as at the founding: more replicas than nodes
            free = usable
        if not free:
            return None, "no open node is without a replica of this group"
        return min(free, key=self._rank), ""

    def _rank(self, node: str) -> tuple[int, bool, int, str]:
        here = sum(other == node for other in self._nodes())
        return here, node == self._fleet.head, self._fleet.load.get(node, 0), node

    # ------------------------------------------------------------ what is seen
    def _leaves(self, rid: int) -> bool:
        node = self._node(rid)
        moves = self._group.moves.get(rid, node) != node  # it may have been built anew there meanwhile
        return node is None or node in self._fleet.drained or moves

    def _doomed(self, rid: int) -> bool:
        node = self._node(rid)
        return node is None or node in self._fleet.drained or rid in self._lost

    def _moved_to(self, rid: int) -> str | None:
        """The node that is still to get a voter for this one; None: none, or it has."""
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


def best_leader(group: Group, fleet: Fleet, voters: Collection[int]) -> int | None:
    """Another running voter that may lead: on the node with the fewest leaders, not on the head if possible;
    None: there is none."""
    others = [
        rid
        for rid in voters
        if rid != group.leader and rid in group.running and group.seats[rid].node in fleet.usable
    ]

    def rank(rid: int) -> tuple[int, bool, int]:
        node = group.seats[rid].node
        return fleet.leads.get(node, 0), node == fleet.head, rid

    return min(others, key=rank, default=None)


def moves_done(group: Group) -> list[int]:
    """Replicas that are to be moved and are members no more, or were built anew where they are to be."""
    members = group.members
    if members is None or not members.applied:
        return []
    there = {rid for rid, node in group.moves.items() if rid in group.seats and group.seats[rid].node == node}
    return [r for r in group.moves if r in there or (r <= members.highest and r not in members.all)]


def lead_done(group: Group, fleet: Fleet, lost: Collection[int]) -> bool:
    """Whether who is to lead does, or cannot any more: it votes no longer, is lost, or its node is closed."""
    members, rid = group.members, group.lead
    if rid is None or members is None or not members.applied:
        return False
    seat = group.seats.get(rid)
    closed = seat is None or seat.node in fleet.drained | fleet.maintained
    return rid == group.leader or rid not in members.voters or rid in lost or closed
