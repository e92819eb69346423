"""Spreading replicas and leaders over the nodes: what would be better elsewhere. Pure.

Nothing moves by itself: a copy of a log costs disks and network, and when that is welcome an operator knows.
A plan is made of single moves, each of which makes things better than they were before it: first no two
replicas of a group on a node, then none on Ray's head, then as many replicas on each node as on the others.
Leaders go where fewer lead. Groups that are not as they are wanted yet are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from escrowmq.cluster.member_steps import Fleet, Group

#: What it costs that two replicas of a group share a node, and that one is on the head; beside them, the
#: square of the number of replicas on each node.
SHARED: Final = 1_000_000
ON_HEAD: Final = 10_000
#: More is planned again when this is done.
SHIFTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Shift:
    """A replica is replaced by one on another node; or, with ``leads``, lets that one's replica lead."""

    gid: int
    rid: int
    from_node: str
    to_node: str
    leads: bool = False


def plan(groups: Sequence[Group], fleet: Fleet) -> list[Shift]:
    """What is to be done, in this order; []: all is well spread."""
    steady = [group for group in groups if is_steady(group)]
    places = {group.gid: {rid: seat.node for rid, seat in group.seats.items()} for group in groups}
    load = Counter(fleet.load)
    shifts: list[Shift] = []
    while len(shifts) < SHIFTS_MAX:
        found = _best(steady, places, load, fleet)
        if found is None:
            break
        shifts.append(found)
        places[found.gid][found.rid] = found.to_node
        load[found.from_node] -= 1
        load[found.to_node] += 1
    return shifts + _leaders(steady, fleet, {(shift.gid, shift.rid) for shift in shifts})


def is_steady(group: Group) -> bool:
    """Whether it has what is wanted, and nothing is under way."""
    members = group.members
    if members is None or group.leader is None or not members.applied or group.filling or group.moves:
        return False
    return len(members.voters) == group.wanted and set(members.voters) == set(group.seats)


def _best(
    groups: Sequence[Group], places: Mapping[int, Mapping[int, str]], load: Mapping[str, int], fleet: Fleet
) -> Shift | None:
    """The move that helps most; None: none does."""
    best, most = None, 0
    for group in groups:
        here = places[group.gid]
        taken = Counter(here.values())
        for rid, node in here.items():
            for to in sorted(fleet.usable - set(taken)):
                gain = 2 * (load.get(node, 0) - load.get(to, 0) - 1)
                gain += SHARED * (taken[node] > 1)
                gain += ON_HEAD * ((node == fleet.head) - (to == fleet.head))
                if gain > most and node not in fleet.maintained:
                    best, most = Shift(group.gid, rid, node, to), gain
    return best


def _leaders(groups: Sequence[Group], fleet: Fleet, moving: set[tuple[int, int]]) -> list[Shift]:
    """Leads that go to nodes with fewer; those that are about to move are not asked to lead."""
    leads = Counter(fleet.leads)
    shifts = []
    for group in groups:
        assert group.leader is not None
        node = group.seats[group.leader].node
        others = {
            rid: seat.node
            for rid, seat in group.seats.items()
            if seat.node in fleet.usable and rid in group.running and (group.gid, rid) not in moving
        }
        to = min(others, key=lambda rid: (leads[others[rid]], others[rid] == fleet.head, rid), default=None)
        if to is not None and leads[others[to]] + 1 < leads[node]:
            shifts.append(Shift(group.gid, to, node, others[to], leads=True))
            leads[node] -= 1
            leads[others[to]] += 1
    return shifts
