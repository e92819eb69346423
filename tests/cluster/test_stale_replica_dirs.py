"""Directories of replaced replicas: which may go, and that nothing else is ever removed."""

from __future__ import annotations

import json
from pathlib import Path

from escrowmq.cluster.supervisor.member_steps import Condition, Seat
from escrowmq.cluster.supervisor.stale_replica_dirs import (
    Find,
    leftovers,
    look,
    remove,
    remove_replica,
    removed_replicas,
)
from escrowmq.cluster.supervisor.watch import Track
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport
from escrowmq.replication.log.datadir import DataDir, Identity

SEATS = {seat.key: seat for seat in (Seat(0, 0, "a"), Seat(0, 1, "d", 2), Seat(0, 2, "c"))}


def listed(*finds: Find, voting: bool = True) -> list[tuple[str, bool]]:
    """(directory, may it go)."""
    found = leftovers(finds, "c1", SEATS, {(0, 1)} if voting else ())
    return [(one.directory, not one.keep) for one in found]


def test_a_directory_may_go_when_its_successor_votes() -> None:
    assert listed(Find("b", "c1", 0, 1, 0), Find("b", "c1", 0, 1, 1)) == [("g0-r1", True), ("g0-r1-i1", True)]


def test_before_that_it_may_be_the_only_other_copy() -> None:
    (one,) = leftovers([Find("b", "c1", 0, 1, 0)], "c1", SEATS, ())
    assert one.keep == "incarnation 2 does not vote yet" and (one.successor, one.successor_node) == (2, "d")


def test_a_directory_in_use_a_later_one_and_those_of_others_are_no_leftovers() -> None:
    assert (
        listed(
            Find("d", "c1", 0, 1, 2),  # its seat
            Find("e", "c1", 0, 1, 3),  # later than we know: our own records are old
            Find("b", "c2", 0, 1, 0),  # another cluster's
            Find("b", "c1", 7, 1, 0),  # of a group that we do not have
            Find("a", "c1", 0, 0, 0),
        )
        == []
    )


def test_a_member_votes_only_in_the_incarnation_of_its_seat() -> None:
    def track(condition: Condition, incarnation: int | None) -> Track:
        report = (
            None
            if incarnation is None
            else ReplicaReport(gid=0, rid=1, role="follower", incarnation=incarnation)
        )
        return Track(SEATS[0, 1], condition=condition, status=report)

    assert track(Condition.RUNNING, 2).votes
    assert not track(Condition.RUNNING, 1).votes, "the process that is being replaced still answered"
    assert not track(Condition.LEARNING, 2).votes
    assert not track(Condition.GONE, None).votes


def test_the_directory_of_a_removed_replica_may_go_when_most_voters_run() -> None:
    members = {0: MembersReport(version=4, voters=[0, 2, 3], highest=3)}
    finds = [Find("b", "c1", 0, 1, 0), Find("c", "c1", 0, 2, 0), Find("d", "c1", 0, 4, 0)]
    assert removed_replicas(finds, members, {(0, 0), (0, 3)}) == {(0, 1): ""}, "4 has not come yet"
    (kept,) = removed_replicas(finds, members, {(0, 0)}).values()
    assert "no majority" in kept and removed_replicas(finds, {}, {(0, 0)}) == {}
    (one,) = leftovers(finds[:1], "c1", {}, (), {(0, 1): kept})
    assert (one.directory, one.successor, one.keep) == ("g0-r1", -1, kept)
    assert leftovers([Find("b", "c2", 0, 1, 0)], "c1", {}, (), {(0, 1): ""}) == []


def test_all_that_a_removed_replica_has_left_goes_and_nothing_else(tmp_path: Path) -> None:
    replica_directory(tmp_path).close()
    for name, rid, incarnation in (("g0-r1-i2", 1, 2), ("g0-r11", 11, 0), ("g1-r1", 1, 0)):
        DataDir(tmp_path / name, Identity("c1", int(name[1]), rid, incarnation)).close()
    assert remove_replica(str(tmp_path), 0, 1, "c1") == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g0-r11", "g1-r1"]
    held = replica_directory(tmp_path)
    assert "uses it" in remove_replica(str(tmp_path), 0, 1, "c1")
    held.close()
    assert "belongs to cluster" in remove_replica(str(tmp_path), 0, 1, "c2")


def replica_directory(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "g0-r1", Identity("c1", 0, 1))
    (tmp_path / "g0-r1" / "00000001.log").write_bytes(b"messages")
    return made


def test_a_directory_is_removed_whole_and_a_second_time_is_fine(tmp_path: Path) -> None:
    replica_directory(tmp_path).close()
    (tmp_path / "g0-r1-i1").mkdir()
    assert [remove(str(tmp_path), "g0-r1", "c1") for _ in range(2)] == ["", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["g0-r1-i1"]


def test_one_that_a_process_uses_stays(tmp_path: Path) -> None:
    """The process on a node that hangs may go on at any time."""
    running = replica_directory(tmp_path)
    try:
        assert "uses it" in remove(str(tmp_path), "g0-r1", "c1")
        assert (tmp_path / "g0-r1" / "00000001.log").exists()
    finally:
        running.close()


def test_one_of_another_cluster_or_without_an_identity_stays(tmp_path: Path) -> None:
    replica_directory(tmp_path).close()
    assert "cluster 'c1'" in remove(str(tmp_path), "g0-r1", "c2")
    (tmp_path / "g0-r1" / "identity.json").write_text("{")
    assert "cannot be read" in remove(str(tmp_path), "g0-r1", "c1")
    assert (tmp_path / "g0-r1" / "00000001.log").exists()


def test_what_a_crash_leaves_of_a_removal_is_nobodys_and_goes_with_the_next(tmp_path: Path) -> None:
    replica_directory(tmp_path).close()
    (tmp_path / "g0-r1").rename(tmp_path / "g0-r1.removed")
    assert look(str(tmp_path), "b") == [], "nobody founds or adopts with it"
    replica_directory(tmp_path).close()
    assert json.loads((tmp_path / "g0-r1" / "identity.json").read_text())["cluster_id"] == "c1"
    assert remove(str(tmp_path), "g0-r1", "c1") == ""
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_leaves_of_a_removal_is_listed_and_may_go(tmp_path: Path) -> None:
    """Once nobody ever came back to it."""
    for name, rid in (("g0-r1", 1), ("g0-r7-i2", 7), ("g0-r8", 8)):
        cluster_id = "c2" if rid == 8 else "c1"
        DataDir(tmp_path / name, Identity(cluster_id, 0, rid, 2 if rid == 7 else 0)).close()
        (tmp_path / name).rename(tmp_path / f"{name}.removed")
    (tmp_path / "g0-r1.removed" / "identity.json").unlink()
    found = leftovers(look(str(tmp_path), "b", half_removed=True), "c1", SEATS, ())
    assert [(one.directory, one.keep) for one in found] == [("g0-r1.removed", ""), ("g0-r7-i2.removed", "")]
    assert [remove(str(tmp_path), one.directory, "c1") for one in found] == ["", ""]
    assert "cluster 'c2'" in remove(str(tmp_path), "g0-r8.removed", "c1"), "another cluster's"
    assert [path.name for path in tmp_path.iterdir()] == ["g0-r8.removed"]


def test_a_removed_replicas_directory_goes_although_the_first_attempt_was_interrupted(tmp_path: Path) -> None:
    replica_directory(tmp_path).close()
    (tmp_path / "g0-r1").rename(tmp_path / "g0-r1.removed")
    DataDir(tmp_path / "g0-r1-i1", Identity("c1", 0, 1, 1)).close()
    (tmp_path / "g0-r1-i1").rename(tmp_path / "g0-r1-i1.removed")
    assert remove_replica(str(tmp_path), 0, 1, "c1") == "" and list(tmp_path.iterdir()) == []
