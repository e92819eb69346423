"""Where replicas and leaders would be better: each move helps, and in the end there is no better one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.cluster.supervisor.member_steps import (
    SHIFTS_MAX,
    ClusterNodes,
    Group,
    Node,
    Seat,
    Shift,
    cluster_nodes,
    is_steady,
    plan,
)
from escrowmq.replication.calling.answers import MembersReport


def group_on(gid: int, *nodes: str, leader: int = 0) -> Group:
    rids = range(len(nodes))
    members = MembersReport(version=1, voters=list(rids), highest=len(nodes) - 1)
    seats = {rid: Seat(gid, rid, node) for rid, node in enumerate(nodes)}
    return Group(gid, len(nodes), seats, members, leader, frozenset(rids))


def fleet_with(groups: list[Group], names: list[str], head: str = "", **closed: set[str]) -> ClusterNodes:
    nodes = [Node(name, name, "", head=name == head) for name in names]
    return cluster_nodes(nodes, groups, closed.get("drained", ()), closed.get("maintained", ()))


def carried_out(groups: list[Group], shifts: list[Shift]) -> list[Group]:
    made = {group.gid: group for group in groups}
    for shift in shifts:
        group = made[shift.gid]
        if shift.leads:
            assert group.seats[shift.rid].node == shift.to_node
            made[shift.gid] = replace(group, leader=shift.rid)
            continue
        assert group.seats[shift.rid].node == shift.from_node
        seats = {**group.seats, shift.rid: Seat(shift.gid, shift.rid, shift.to_node)}
        made[shift.gid] = replace(group, seats=seats)
    return list(made.values())


def test_a_node_that_is_back_gets_replicas_again() -> None:
    groups = [group_on(gid, "a", "b", "c") for gid in range(4)]
    shifts = [shift for shift in plan(groups, fleet_with(groups, ["a", "b", "c", "d"])) if not shift.leads]
    assert len(shifts) == 3 and {shift.to_node for shift in shifts} == {"d"}
    assert len({shift.gid for shift in shifts}) == 3, "one of each group"


def test_the_head_is_left_where_others_are_free() -> None:
    groups = [group_on(0, "head", "b", "c")]
    fleet = fleet_with(groups, ["head", "b", "c", "d"], head="head")
    assert plan(groups, fleet) == [Shift(0, 0, "head", "d")]
    assert plan(groups, fleet_with(groups, ["head", "b", "c"], head="head")) == [], "three need three"


def test_no_leadership_moves_to_a_replica_without_room() -> None:
    groups = [group_on(gid, "a", "b", "c") for gid in range(2)]
    fleet = fleet_with(groups, ["a", "b", "c"])
    assert [(s.gid, s.rid, s.leads) for s in plan(groups, fleet)] == [(0, 1, True)]
    groups[0] = replace(groups[0], scarce=frozenset((1,)))
    assert [(s.gid, s.rid) for s in plan(groups, fleet)] == [(0, 2)]
    groups[0] = replace(groups[0], scarce=frozenset((1, 2)))
    assert [(s.gid, s.rid) for s in plan(groups, fleet)] == [(1, 1)]


def test_two_of_a_group_on_a_node_part_first() -> None:
    groups = [group_on(0, "a", "a", "b"), group_on(1, "c", "a", "b")]
    assert plan(groups, fleet_with(groups, ["a", "b", "c"]))[0].gid == 0


def test_leaders_are_spread() -> None:
    groups = [group_on(gid, "a", "b", "c") for gid in range(3)]
    shifts = plan(groups, fleet_with(groups, ["a", "b", "c"]))
    assert [shift.leads for shift in shifts] == [True, True]
    assert {shift.to_node for shift in shifts} == {"b", "c"}


def test_what_is_under_way_or_closed_is_left_alone() -> None:
    steady = group_on(0, "a", "b", "c")
    assert is_steady(steady)
    for other in (
        replace(steady, leader=None),
        replace(steady, wanted=5),
        replace(steady, moves={1: "d"}),
        replace(steady, seats={**steady.seats, 3: Seat(0, 3, "d")}),
        replace(steady, members=None),
    ):
        assert not is_steady(other) and plan([other], fleet_with([other], ["a", "b", "c", "d"])) == []
    groups = [replace(group_on(gid, "a", "b", "c"), leader=gid % 3) for gid in range(3)]
    assert plan(groups, fleet_with(groups, ["a", "b", "c", "d"], drained={"d"})) == []
    assert plan(groups, fleet_with(groups, ["a", "b", "c", "d"], maintained={"d"})) == []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    groups=st.lists(st.lists(st.sampled_from("abcde"), min_size=3, max_size=3), min_size=1, max_size=12),
    leaders=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    names=st.sets(st.sampled_from("abcdef"), min_size=3),
)
def test_it_ends_and_then_all_is_spread(groups: list[list[str]], leaders: list[int], names: set[str]) -> None:
    made = [
        group_on(gid, *nodes, leader=leaders[gid]) for gid, nodes in enumerate(groups) if set(nodes) <= names
    ]
    fleet = fleet_with(made, sorted(names), head="a")
    shifts = plan(made, fleet)
    assert len(shifts) < SHIFTS_MAX + len(made)
    after = carried_out(made, shifts)
    fleet = fleet_with(after, sorted(names), head="a")
    assert not [shift for shift in plan(after, fleet) if not shift.leads], "nothing is left to be moved"
    for group in after:
        nodes = Counter(seat.node for seat in group.seats.values())
        assert max(nodes.values()) == 1
        assert "a" not in nodes or len(names) == 3
    load = [fleet.load.get(name, 0) for name in names - {"a"}]
    assert max(load) - min(load) <= 1 + bool(len(names) == 3)
