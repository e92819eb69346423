"""What operators may want, and that it is kept with the cluster's record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.cluster.settings import ClusterSettings
from escrowmq.cluster.supervisor.cluster_dir import CLUSTER_FILE, ClusterDir, ClusterRecord
from escrowmq.cluster.supervisor.desired_state import DesiredState, Move, Size
from escrowmq.cluster.supervisor.desired_state_checks import (
    NodeUse,
    uses,
    wanted_move,
    wanted_node,
    wanted_size,
)
from escrowmq.cluster.supervisor.member_steps import Group, Seat, moves_done
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.errors import ConfigError, Unavailable

SEATS = {(0, rid): Seat(0, rid, f"n{rid}") for rid in range(3)}
RECORD = ClusterRecord("c", "escrowmq", 1, 3, "f", SEATS)
NODES = {"n0", "n1", "n2", "n3"}
GROUP = Group(
    0,
    3,
    {rid: seat for (_, rid), seat in SEATS.items()},
    MembersReport(version=1, voters=[0, 1, 2], highest=2),
    0,
    frozenset((0, 1, 2)),
)


def test_what_is_wanted_outlasts_the_supervisor(tmp_path: Path) -> None:
    directory = ClusterDir(tmp_path, ClusterSettings(), None)
    wishes = DesiredState((Size(0, 5),), (Move(0, 1, "n4"),), ("n2",), ("n3",))
    directory.change(lambda record: replace(record.with_seats(list(SEATS.values())), wishes=wishes))
    directory.change(lambda record: record.with_retired((0, 2)))
    directory.close()
    again = ClusterDir(tmp_path, ClusterSettings(), None)
    assert again.record.wishes == wishes
    assert set(again.record.seats) == {(0, 0), (0, 1)} and again.record.retired == (SEATS[0, 2],)
    again.change(lambda record: record.without_retired((0, 2)))
    again.close()


def test_a_record_of_before_there_were_wishes_wants_what_the_group_began_with(tmp_path: Path) -> None:
    directory = ClusterDir(tmp_path, ClusterSettings(), None)
    directory.keep(directory.record.with_seats(list(SEATS.values())))
    directory.close()
    content = json.loads((tmp_path / CLUSTER_FILE).read_text())
    del content["wishes"], content["retired"]
    (tmp_path / CLUSTER_FILE).write_text(json.dumps(content))
    again = ClusterDir(tmp_path, ClusterSettings(), None)
    assert again.record.wishes == DesiredState() and again.record.wishes.size(0, again.record.replicas) == 3
    again.close()


def test_what_does_not_change_the_record_is_not_written(tmp_path: Path) -> None:
    directory = ClusterDir(tmp_path, ClusterSettings(), None)
    directory.change(lambda record: record)
    assert not (tmp_path / CLUSTER_FILE).exists()
    directory.close()


@pytest.mark.parametrize(("gid", "replicas"), [(1, 3), (-1, 3), (True, 3), (0, 2), (0, 9), (0, 0), (0, True)])
def test_a_size_that_makes_no_sense_is_refused(gid: int, replicas: int) -> None:
    with pytest.raises(ConfigError):
        wanted_size(RECORD, gid, replicas)


def test_a_size_said_again_takes_the_place_of_the_first() -> None:
    wishes = replace(RECORD, wishes=wanted_size(RECORD, 0, 5)).wishes.with_size(0, 1)
    assert wishes.sizes == (Size(0, 1),) and wishes.size(0, 3) == 1 and wishes.size(1, 3) == 3


@pytest.mark.parametrize(
    ("rid", "node", "why"),
    [
        (7, "n3", "replica 7 is not a voter of group 0"),
        (1, "n9", "node 'n9' is not up"),
        (1, "n0", "has a replica of group 0 already"),
        (1, "n1", "has a replica of group 0 already"),
    ],
)
def test_a_move_that_could_never_come_about_is_refused(rid: int, node: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        wanted_move(RECORD, [GROUP], NODES, 0, rid, node)


def test_a_move_is_kept_until_the_replica_is_no_member() -> None:
    wishes = wanted_move(RECORD, [GROUP], NODES, 0, 1, "n3")
    record = replace(RECORD, wishes=wishes)
    assert wanted_move(record, [GROUP], NODES, 0, 1, "n3") == wishes, "said again"
    with pytest.raises(ConfigError, match="or will get one"):
        wanted_move(record, [GROUP], NODES, 0, 2, "n3")
    group = replace(GROUP, moves=wishes.moves_of(0))
    assert moves_done(group) == [] and moves_done(replace(group, members=None)) == []
    after = MembersReport(version=4, voters=[0, 2, 3], highest=3)
    assert moves_done(replace(group, members=after)) == [1]
    assert wishes.without_moves(0, [1]) == DesiredState()
    with pytest.raises(Unavailable):
        wanted_move(RECORD, [replace(GROUP, members=None)], NODES, 0, 1, "n3")


def test_nothing_moves_to_a_closed_node() -> None:
    closed = replace(RECORD, wishes=wanted_node(RECORD, [GROUP], NODES, "n3", NodeUse.DRAINED))
    with pytest.raises(ConfigError, match="node open n3"):
        wanted_move(closed, [GROUP], NODES, 0, 1, "n3")


def test_a_node_without_which_a_group_stands_still_is_not_taken_out_for_a_while() -> None:
    worse = replace(GROUP, running=frozenset((0, 1)))
    with pytest.raises(ConfigError, match=r"groups \[0\] have no running majority"):
        wanted_node(RECORD, [worse], NODES, "n1", NodeUse.MAINTAINED)
    assert wanted_node(RECORD, [worse], NODES, "n1", NodeUse.MAINTAINED, force=True).maintained == ("n1",)
    one = replace(RECORD, wishes=wanted_node(RECORD, [GROUP], NODES, "n1", NodeUse.MAINTAINED))
    with pytest.raises(ConfigError, match="no running majority"):
        wanted_node(one, [GROUP], NODES, "n2", NodeUse.MAINTAINED)


def test_a_node_has_one_use() -> None:
    drained = replace(RECORD, wishes=wanted_node(RECORD, [GROUP], NODES, "n1", NodeUse.DRAINED))
    assert uses(drained.wishes, NODES)["n1"] is NodeUse.DRAINED
    both = replace(drained, wishes=wanted_node(drained, [GROUP], NODES, "n1", NodeUse.MAINTAINED))
    assert both.wishes == DesiredState(maintained=("n1",))
    assert wanted_node(both, [GROUP], NODES, "n1", NodeUse.OPEN) == DesiredState()
    with pytest.raises(ConfigError, match="unknown node 'n9'"):
        wanted_node(RECORD, [GROUP], NODES, "n9", NodeUse.DRAINED)
