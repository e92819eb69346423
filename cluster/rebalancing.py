"""Plans how to spread replicas and leaders over the nodes. Pure.

Nothing moves without a request: copying a log uses disks and network, and only an operator knows a good time
for it. A plan consists of single moves, each of which is an improvement by itself. The goals are, in this
order: no two replicas of a group on one node, none on Ray's head, the same number of replicas on each node.
Leaders move to nodes with fewer leaders. Groups whose replicas are not yet as wanted are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from escrowmq.cluster.member_steps import Fleet, Group

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


def plan(groups: Sequence[Group], fleet: Fleet) -> list[Shift]:
    """The moves to make, in this order; empty if all is well spread."""
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
    """Whether the group has the wanted replicas and no change is in progress."""
    members = group.members
    if members is None or group.leader is None or not members.applied or group.filling or group.moves:
        return False
    return len(members.voters) == group.wanted and set(members.voters) == set(group.seats)


def _best(
    groups: Sequence[Group], places: Mapping[int, Mapping[int, str]], load: Mapping[str, int], fleet: Fleet
) -> Shift | None:
    """The move that improves most; None if none improves anything."""
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
