"""Which replica lives on which node: pure decisions over what the supervisor has seen.

A replica belongs to the node that holds its data, known by the node's name, since Ray's node ids
change with every restart of a node. It moves only when its node stays away for long and the rest of
its group is well; then it starts empty, as a new incarnation with a directory of its own name, so
that data left behind on the old node can never be taken for current. The process on the old node may be alive
all the same: the peers refuse it once they have met its successor (replication/log/peer_marks.py).

A replica that its peers refuse is started anew where it is, as a further incarnation: its disk was lost and
it came back with an empty directory, or our own records were lost and we have counted an incarnation twice.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

ReplicaKey = tuple[int, int]
#: Of no group is it known who votes.
NOT_KNOWN: Mapping[int, Sequence[Collection[int]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Node:
    """A live Ray node. ``name`` is what ``ray start --node-name`` gave it; by default its IP address.
    ``head``: Ray's control store is there."""

    name: str
    node_id: str
    ip: str
    head: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a replica lives. ``incarnation`` grows with every move to another node."""

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
        """Name of its directory below the node's data directory."""
        suffix = f"-i{self.incarnation}" if self.incarnation else ""
        return f"g{self.gid}-r{self.rid}{suffix}"


class Condition(enum.Enum):
    """What the supervisor last saw of a replica's process."""

    RUNNING = "running"  # and a full member: it votes, and what it acknowledges counts
    LEARNING = "learning"  # takes part, but has lost its log and counts for no majority yet
    SUPERSEDED = "superseded"  # its peers know a later incarnation of it, so it never takes part again
    STARTING = "starting"  # answers, but recovers or copies a log
    SILENT = "silent"  # exists, but does not answer: busy, or being restarted by Ray
    GONE = "gone"  # does not exist (any more)


@dataclass(frozen=True, slots=True)
class Seen:
    """A replica as last seen, and since when its node is missing; not to be started before ``retry_at``.

    ``superseded_by``: the incarnation that its peers know instead of it.
    """

    condition: Condition
    node_missing_since: float | None = None
    retry_at: float = 0.0
    superseded_by: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """Start the replica of ``seat`` on ``node``; ``moved`` if the seat is new and must be kept first.

    ``replaces``: the process that bears its name is of no use any more, and is ended before.
    """

    seat: Seat
    node: Node
    moved: bool = False
    replaces: bool = False


def unique_names(nodes: Sequence[Node]) -> list[Node]:
    """Nodes that share a name get their id added: they can be told apart, but not be known again."""
    count = Counter(node.name for node in nodes)
    return [n if count[n.name] == 1 else replace(n, name=f"{n.name}/{n.node_id[:8]}") for n in nodes]


def found_seats(groups: int, replicas: int, nodes: Sequence[Node]) -> list[Seat]:
    """First placement: the replicas of a group on different nodes where there are as many."""
    seats: list[Seat] = []
    for gid in range(groups):
        for rid in range(replicas):
            seats.append(Seat(gid, rid, _emptiest(gid, seats, nodes).name))
    return seats


def _emptiest(gid: int, seats: Collection[Seat], nodes: Sequence[Node]) -> Node:
    """The node with fewest replicas of this group, then fewest of all, then first by name."""
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
    """What to start now. At most one move per group at a time. ``voters``: by group, who votes in each
    configuration of members that may be in force; every seat votes in a group that is not named there.
    ``closed``: names of nodes to which nothing moves."""
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
    """One move of a group at a time, and only while its others are well, whatever configuration is in
    force."""
    under_way = any(start.moved and start.seat.gid == seat.gid for start in starts)
    everybody = [rid for gid, rid in seats if gid == seat.gid]
    possible = voters.get(seat.gid) or [everybody]
    return not under_way and all(_others_are_well(seat, among, seen) for among in possible)


def _others_are_well(seat: Seat, voters: Collection[int], seen: Mapping[ReplicaKey, Seen]) -> bool:
    """Whether the other voters alone are a majority of full members, so that nothing acknowledged is lost
    with this one. A learner does not count: it may wait for what only this one knows, and could not elect a
    leader. Nor does a replica that holds a copy and does not vote yet. So none of two voters ever starts
    empty: it would wait for the other one to lead, which that could not without its vote.

    One that does not vote is not moved: empty, and as a further incarnation, it would wait for all voters,
    and so for the one that it is to replace. It is dropped, and another number takes its place.
    """
    others = [seen.get((seat.gid, rid)) for rid in voters if rid != seat.rid]
    running = sum(other is not None and other.condition is Condition.RUNNING for other in others)
    return seat.rid in voters and running * 2 > len(voters)


def _sits_at(gid: int, node: str, seats: Mapping[ReplicaKey, Seat]) -> bool:
    return any(seat.gid == gid and seat.node == node for seat in seats.values())
