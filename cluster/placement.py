"""Decides which replica lives on which node, from what the supervisor has seen. Pure.

A replica belongs to the node that holds its data. Nodes are identified by name, because Ray's node ids change
with every restart of a node. A replica moves only if its node stays away for long and the rest of its group
is well. It then starts empty, as a new incarnation with a new directory name, so that data left on the old
node can never be mistaken for current. The process on the old node may still be alive; the peers refuse it
once they have met its successor (replication/log/peer_marks.py).

A replica that its peers refuse is restarted on its node as a further incarnation. Either its disk was lost
and it came back with an empty directory, or the supervisor's records were lost and it used an incarnation's
number twice.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from escrowmq.replication.carried_settings import prepared

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
    """The place of a replica. ``incarnation`` increases whenever it starts over with an empty directory."""

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
