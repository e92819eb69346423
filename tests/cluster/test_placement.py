"""Where replicas go: spread at first, back to their own node, elsewhere only late and only safely."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from escrowmq.cluster.supervisor.member_steps import (
    Condition,
    Node,
    ReplicaKey,
    Seat,
    Seen,
    decide,
    found_seats,
    unique_names,
)
from escrowmq.cluster.supervisor.watch import condition_of
from escrowmq.replication.calling.answers import ReplicaReport

NODES = [Node(f"n{i}", f"id{i}", f"10.0.0.{i}") for i in range(4)]


def seats_of(groups: int, replicas: int, nodes: list[Node]) -> dict[ReplicaKey, Seat]:
    return {seat.key: seat for seat in found_seats(groups, replicas, nodes)}


def all_running(seats: dict[ReplicaKey, Seat]) -> dict[ReplicaKey, Seen]:
    return {key: Seen(Condition.RUNNING) for key in seats}


def test_replicas_of_a_group_go_to_different_nodes_where_there_are_as_many() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        groups, replicas = rng.randint(1, 6), rng.choice((1, 3, 5))
        nodes = [Node(f"n{i}", str(i), "") for i in range(rng.randint(1, 9))]
        seats = found_seats(groups, replicas, nodes)
        for gid in range(groups):
            used = {seat.node for seat in seats if seat.gid == gid}
            assert len(used) == min(replicas, len(nodes)), f"seed {seed}"
        load = [sum(seat.node == node.name for seat in seats) for node in nodes]
        assert max(load) - min(load) <= 1, f"seed {seed}: {load}"


def test_a_replica_that_runs_is_left_alone_and_so_is_one_that_is_merely_silent() -> None:
    seats = seats_of(1, 3, NODES[:3])
    seen = all_running(seats)
    seen[0, 0], seen[0, 1] = Seen(Condition.SILENT), Seen(Condition.STARTING)
    assert decide(seats, seen, NODES, 1000.0, 600.0) == []


def test_a_replica_that_is_gone_starts_again_where_its_data_are() -> None:
    seats = seats_of(1, 3, NODES[:3])
    seen = {**all_running(seats), (0, 1): Seen(Condition.GONE)}
    (start,) = decide(seats, seen, NODES, 0.0, 600.0)
    assert (start.seat, start.node.name, start.moved) == (seats[0, 1], seats[0, 1].node, False)


def test_the_same_node_under_a_new_ray_id_is_the_same_node() -> None:
    seats = seats_of(1, 3, NODES[:3])
    seen = {**all_running(seats), (0, 1): Seen(Condition.GONE)}
    reborn = [Node("n1", "another-id", "10.0.0.99") if n.name == "n1" else n for n in NODES[:3]]
    (start,) = decide(seats, seen, reborn, 0.0, 600.0)
    assert start.node.node_id == "another-id"


def test_a_failed_start_waits_for_its_pause() -> None:
    seats = seats_of(1, 3, NODES[:3])
    seen = {**all_running(seats), (0, 1): Seen(Condition.GONE, retry_at=5.0)}
    assert decide(seats, seen, NODES, 4.9, 600.0) == []
    assert len(decide(seats, seen, NODES, 5.0, 600.0)) == 1


def test_a_replica_whose_node_stays_away_moves_late_to_a_node_without_its_group() -> None:
    seats = seats_of(1, 3, NODES[:3])
    home = seats[0, 1].node
    nodes = [node for node in NODES if node.name != home]
    seen = {**all_running(seats), (0, 1): Seen(Condition.GONE, node_missing_since=100.0)}

    assert decide(seats, seen, nodes, 699.0, 600.0) == []
    (start,) = decide(seats, seen, nodes, 700.0, 600.0)

    assert start.moved and start.node.name == "n3" == start.seat.node
    assert (start.seat.incarnation, start.seat.directory) == (1, "g0-r1-i1")


def test_no_move_where_every_node_has_a_replica_of_the_group_already() -> None:
    seats = seats_of(1, 3, NODES[:3])
    nodes = [node for node in NODES[:3] if node.name != seats[0, 1].node]
    seen = {**all_running(seats), (0, 1): Seen(Condition.GONE, node_missing_since=0.0)}
    assert decide(seats, seen, nodes, 9999.0, 600.0) == []


@pytest.mark.parametrize("other", [c for c in Condition if c is not Condition.RUNNING])
def test_no_move_unless_the_others_alone_are_a_running_majority(other: Condition) -> None:
    seats = seats_of(1, 3, NODES[:3])
    nodes = [node for node in NODES if node.name != seats[0, 1].node]
    seen = {**all_running(seats), (0, 1): Seen(Condition.GONE, node_missing_since=0.0), (0, 2): Seen(other)}
    assert not any(start.moved for start in decide(seats, seen, nodes, 9999.0, 600.0))


def test_two_lost_replicas_of_five_move_one_after_the_other() -> None:
    nodes = [Node(f"n{i}", str(i), "") for i in range(8)]
    seats = seats_of(1, 5, nodes[:5])
    away = {seats[0, 1].node, seats[0, 2].node}
    seen = {key: Seen(Condition.GONE, node_missing_since=0.0) if s.node in away else Seen(Condition.RUNNING)
            for key, s in seats.items()}  # fmt: skip
    left = [node for node in nodes if node.name not in away]
    starts = decide(seats, seen, left, 9999.0, 600.0)
    assert len([start for start in starts if start.moved]) == 1


def test_a_passing_outage_does_not_move_a_second_replica_while_the_first_one_learns() -> None:
    """The one that was moved takes part again, but counts for no majority before it holds everything."""
    nodes = [Node(f"n{i}", str(i), "") for i in range(5)]
    seats = seats_of(1, 3, nodes[:3])
    seats[0, 1] = Seat(0, 1, "n3", 1)
    seen = {
        (0, 0): Seen(Condition.RUNNING),
        (0, 1): Seen(condition_of(ReplicaReport(gid=0, rid=1, role="follower", learner=True))),
        (0, 2): Seen(Condition.GONE, node_missing_since=0.0),
    }
    left = [node for node in nodes if node.name not in ("n1", "n2")]
    assert decide(seats, seen, left, 9999.0, 600.0) == []
    seen[0, 1] = Seen(condition_of(ReplicaReport(gid=0, rid=1, role="follower")))
    (start,) = decide(seats, seen, left, 9999.0, 600.0)
    assert start.moved and start.seat.rid == 2


def test_a_learner_that_is_there_is_left_alone() -> None:
    seats = seats_of(1, 3, NODES[:3])
    seen = {**all_running(seats), (0, 1): Seen(Condition.LEARNING, node_missing_since=0.0)}
    assert decide(seats, seen, NODES, 9999.0, 600.0) == []


@pytest.mark.parametrize(("by", "number"), [(0, 1), (1, 2), (7, 8), (-1, 1)])
def test_a_replica_that_its_peers_refuse_starts_empty_where_it_is(by: int, number: int) -> None:
    """Above the incarnation that they know, or they would refuse that one, too."""
    seats = seats_of(1, 3, NODES[:3])
    report = ReplicaReport(gid=0, rid=1, role="starting", failure="Superseded(...)", superseded_by=by)
    seen = {**all_running(seats), (0, 1): Seen(condition_of(report), superseded_by=by)}
    (start,) = decide(seats, seen, NODES, 0.0, 600.0)
    assert start.moved and start.replaces
    assert start.seat == replace(seats[0, 1], incarnation=number)
    assert start.node.name == seats[0, 1].node


def test_a_refused_replica_waits_until_the_others_are_well() -> None:
    seats = seats_of(1, 3, NODES[:3])
    seen = {**all_running(seats), (0, 1): Seen(Condition.SUPERSEDED, superseded_by=1)}
    seen[0, 2] = Seen(Condition.LEARNING)
    assert decide(seats, seen, NODES, 0.0, 600.0) == []


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_refused_replica_waits_for_nothing_while_the_others_are_a_majority_of_full_members(
    size: int,
) -> None:
    """With fewer full members than that it stays where it is, for as long as that lasts: a refused one and a
    learner of three stand still side by side. No leader can come about among them whatever is started, since
    a majority has lost its disks; and the refused one's directory may hold what the others lack."""
    nodes = [Node(f"n{i}", str(i), "") for i in range(size)]
    seats = seats_of(1, size, nodes)
    for others in itertools.product(
        (Condition.RUNNING, Condition.LEARNING, Condition.SILENT), repeat=size - 1
    ):
        seen = {(0, rid): Seen(condition) for rid, condition in enumerate(others, 1)}
        seen[0, 0] = Seen(Condition.SUPERSEDED, superseded_by=1)
        started = {start.seat.rid for start in decide(seats, seen, nodes, 0.0, 600.0)}
        majority = 2 * others.count(Condition.RUNNING) > size
        assert started == ({0} if majority else set()), others


@pytest.mark.parametrize("lost", [Condition.GONE, Condition.SUPERSEDED])
@pytest.mark.parametrize(
    ("voters", "rid", "moves"),
    [
        ((0, 1, 2), 1, True),
        ((0, 1), 1, False),  # empty, it would wait for the other one to lead, which that cannot alone
        ((0, 1), 0, False),
        ((1,), 1, False),
        ((0, 1), 2, False),  # it has never voted: empty, it would wait for the replica that it is to replace
    ],
)
def test_a_copy_that_does_not_vote_is_no_reason_to_move_a_voter(
    lost: Condition, voters: tuple[int, ...], rid: int, moves: bool
) -> None:
    """All three run, as far as the supervisor sees; how many of them vote is told by the log."""
    seats = seats_of(1, 3, NODES[:3])
    nodes = [node for node in NODES if lost is Condition.SUPERSEDED or node.name != seats[0, rid].node]
    seen = {**all_running(seats), (0, rid): Seen(lost, node_missing_since=0.0, superseded_by=0)}
    starts = decide(seats, seen, nodes, 9999.0, 600.0, {0: [frozenset(voters)]})
    assert [start.seat.rid for start in starts] == ([rid] if moves else [])


def test_of_two_replicas_none_ever_starts_empty() -> None:
    seats = {(0, rid): Seat(0, rid, f"n{rid}") for rid in range(2)}
    seen = {(0, 0): Seen(Condition.RUNNING), (0, 1): Seen(Condition.GONE, node_missing_since=0.0)}
    nodes = [NODES[0], NODES[2]]
    assert decide(seats, seen, nodes, 9999.0, 600.0) == []
    assert decide(seats, seen, nodes, 9999.0, 600.0, {0: [{0, 1}]}) == []


def test_the_others_are_well_in_every_configuration_that_may_be_in_force() -> None:
    seats = {(0, rid): Seat(0, rid, f"n{rid}") for rid in range(4)}
    seen = {key: Seen(Condition.RUNNING) for key in seats}
    seen[0, 2], seen[0, 3] = Seen(Condition.GONE, node_missing_since=0.0), Seen(Condition.SILENT)
    nodes = [*NODES[:2], NODES[3], Node("spare", "s", "")]
    before, after = frozenset((0, 1, 2)), frozenset((0, 1, 2, 3))
    assert len(decide(seats, seen, nodes, 9999.0, 600.0, {0: [before]})) == 1
    assert decide(seats, seen, nodes, 9999.0, 600.0, {0: [before, after]}) == []


def test_every_incarnation_has_a_directory_of_its_own() -> None:
    names = {Seat(g, r, "n", i).directory for g in range(3) for r in range(3) for i in range(3)}
    assert len(names) == 27


def test_nodes_that_share_a_name_are_told_apart() -> None:
    twins = [Node("a", "11111111x", ""), Node("a", "22222222x", ""), Node("b", "3", "")]
    assert [node.name for node in unique_names(twins)] == ["a/11111111", "a/22222222", "b"]
