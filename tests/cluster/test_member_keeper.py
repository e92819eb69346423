"""The supervisor's part in changes of members: what it records before it acts, and which replicas it asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from escrowmq.cluster.settings import ClusterSettings
from escrowmq.cluster.supervisor.cluster_dir import ClusterDir
from escrowmq.cluster.supervisor.desired_state import Lead, Move
from escrowmq.cluster.supervisor.member_keeper import MemberKeeper
from escrowmq.cluster.supervisor.member_steps import Condition, Node, ReplicaKey, Seat
from escrowmq.cluster.supervisor.watch import Track, Watch
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport, StepTaken

NODES = [Node(f"n{i}", f"id{i}", "", head=i == 0) for i in range(4)]


class Handle:
    """Stands for a broker: notes what it is asked, and gives prepared answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answer: Any = ("ok", StepTaken("WAIT", -1, MembersReport(version=1, voters=[0])))

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any) -> Any:
            self.asked.append((method, *args))
            return self.answer

        return SimpleNamespace(remote=remote)


class Rig:
    """Groups of three on n0 to n2, as the supervisor keeps and sees them; replica 0 leads."""

    def __init__(self, path: Path, groups: int = 1) -> None:
        self.directory = ClusterDir(path, ClusterSettings(groups=groups), None)
        seats = [Seat(gid, rid, f"n{rid}") for gid in range(groups) for rid in range(3)]
        self.directory.keep(self.directory.record.with_seats(seats))
        self.tracks: dict[ReplicaKey, Track] = {seat.key: Track(seat) for seat in seats}
        self.handle, self.ended = Handle(), list[tuple[Seat, bool]]()
        watch = cast(Watch, SimpleNamespace(end=self.end))
        lock = threading.Lock()
        self.now, self.removals, self.in_use = 0.0, 0, ""
        self.keeper = MemberKeeper(
            self.directory, watch, self.tracks, lock, path, 600.0,
            clock=lambda: self.now, remove=self.remove,
            wait=lambda *_, **__: None, get=lambda answer, **_: answer,
        )  # fmt: skip
        self.members(1, [0, 1, 2], 2)

    def end(self, seat: Seat) -> None:
        """Stands for ``Watch.end``; notes whether the seat was removed from the record before."""
        self.ended.append((seat, seat.key not in self.directory.record.seats))

    def remove(self, *about: Any) -> str:
        self.removals += 1
        return self.in_use

    def members(self, version: int, voters: list[int], highest: int) -> None:
        """All that have a seat run, and say this."""
        told = MembersReport(version=version, voters=voters, highest=highest)
        for (gid, rid), track in self.tracks.items():
            role = "leader" if rid == 0 else "follower"
            track.condition = Condition.RUNNING
            track.status = ReplicaReport(gid=gid, rid=rid, role=role, ready=rid == 0, members=told)
            track.handle = self.handle

    def turn(self) -> None:
        self.keeper.turn(NODES)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.directory.close()


def move_1_to_n3(rig: Rig) -> None:
    rig.keeper.wish(lambda record: record.wishes.with_moves([Move(0, 1, "n3")]))


def test_a_seat_is_kept_before_anything_starts_there(rig: Rig) -> None:
    move_1_to_n3(rig)
    rig.turn()
    assert rig.directory.record.seats[0, 3] == rig.tracks[0, 3].seat == Seat(0, 3, "n3")
    assert rig.handle.asked == [], "the process is started first"


def test_the_leader_is_asked_until_it_is_so_and_then_the_old_one_is_no_more(rig: Rig) -> None:
    move_1_to_n3(rig)
    rig.turn()
    rig.members(1, [0, 1, 2], 2)
    rig.turn()
    assert rig.handle.asked == [("change_members", "replica 3 on n3 becomes a learner", (3,), (), 1)]
    rig.members(3, [0, 1, 2, 3], 3)
    rig.turn()
    assert rig.handle.asked[-1] == ("change_members", "replica 1 is removed", (), (1,), 3)
    rig.members(4, [0, 2, 3], 3)
    rig.turn()
    assert rig.directory.record.wishes.moves == (), "it is done"
    assert rig.ended == [(Seat(0, 1, "n1"), True)], "taken off the seats before its process was ended"
    assert (0, 1) not in rig.tracks and rig.directory.record.retired == (Seat(0, 1, "n1"),)

    rig.in_use = "in use"
    rig.turn()
    rig.turn()  # the answer came: once more
    assert rig.removals == 2 and rig.directory.record.retired
    assert "in use" in rig.keeper.changes(NODES)[0]["problem"]
    rig.in_use = ""
    rig.turn()
    rig.turn()
    assert rig.directory.record.retired == () and rig.keeper.changes(NODES) == []


def test_what_the_leader_refuses_is_shown_and_nobody_is_hurried(rig: Rig) -> None:
    rig.keeper.wish(lambda record: record.wishes.with_node("n0", drained=False, maintained=True))
    rig.handle.answer = ("refused", "not now")
    assert rig.keeper.busy
    rig.turn()
    assert rig.handle.asked == [("hand_over", 1)]
    rig.turn()
    assert "not now" in rig.keeper.changes(NODES)[0]["problem"] and not rig.keeper.busy


def test_what_a_leader_does_not_do_yet_is_asked_again_soon_and_is_no_problem(rig: Rig) -> None:
    move_1_to_n3(rig)
    rig.turn()
    rig.members(1, [0, 1, 2], 2)
    rig.handle.answer = ("not_yet", "the previous change is not applied yet")
    rig.turn()
    rig.turn()
    (line,) = rig.keeper.changes(NODES)
    assert line["problem"] is None and rig.keeper.problems() == {}
    assert line["step"].endswith("(not yet: the previous change is not applied yet)")
    assert rig.keeper.busy and len(rig.handle.asked) == 2
    rig.handle.answer = ("refused", "no number is reused")
    rig.turn()
    rig.turn()
    (line,) = rig.keeper.changes(NODES)
    assert "no number is reused" in line["problem"] and "not yet" not in line["step"]
    assert list(rig.keeper.problems()) == [0] and not rig.keeper.busy


def test_a_plan_to_spread_is_kept(rig: Rig) -> None:
    planned = rig.keeper.rebalance(NODES, False)
    assert [(line["replica"], line["to_node"]) for line in planned] == [(0, "n3")], "the head is left"
    assert rig.directory.record.wishes.moves == ()
    rig.keeper.rebalance(NODES, True)
    assert rig.directory.record.wishes.moves_of(0) == {0: "n3"}


def test_a_plan_to_spread_leaders_is_kept(tmp_path: Path) -> None:
    rig = Rig(tmp_path, groups=4)
    planned = rig.keeper.rebalance(NODES, True)
    moves = {(shift["group"], shift["replica"]) for shift in planned if shift["leads"]}
    wishes = rig.directory.record.wishes
    assert moves and {(gid, wishes.lead_of(gid)) for gid, _ in moves} == moves
    rig.directory.close()


def test_a_lead_that_is_to_go_elsewhere_is_kept_until_it_has_been_there(rig: Rig, tmp_path: Path) -> None:
    """A supervisor that had restarted had forgotten it."""
    rig.keeper.wish(lambda record: record.wishes.with_leads([Lead(0, 2)]))
    rig.directory.close()
    again = Rig(tmp_path)
    try:
        assert again.directory.record.wishes.lead_of(0) == 2
        again.turn()
        again.turn()
        assert again.handle.asked == [("hand_over", 2)], "once, while it is under way"
        told = again.tracks[0, 2].status
        assert told is not None
        again.tracks[0, 2].status = msgspec.structs.replace(
            told, role="leader", ready=True, term=told.term + 1
        )
        again.turn()
        assert again.directory.record.wishes.leads == () and again.keeper.changes(NODES) == []
    finally:
        again.directory.close()


def test_a_replica_that_does_not_take_over_is_asked_ever_more_rarely_and_holds_up_nothing(rig: Rig) -> None:
    """Its log is damaged, say. Each attempt stops the group's writes for a moment."""
    rig.keeper.wish(lambda record: record.wishes.with_leads([Lead(0, 2)]))
    rig.handle.answer = ("ok", None)
    asked_at = []
    for _ in range(4_000):
        before = len(rig.handle.asked)
        rig.turn()
        asked_at += [rig.now] * (len(rig.handle.asked) - before)
        rig.now += 1.0
    assert asked_at == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030, 3630]
    assert rig.keeper.changes(NODES) and not rig.keeper.busy, "still wanted, and not in a hurry"
    move_1_to_n3(rig)
    rig.turn()
    assert (0, 3) in rig.tracks, "a move goes on beside it"


def test_nodes_are_shown_with_what_is_there(rig: Rig) -> None:
    rig.keeper.wish(lambda record: record.wishes.with_node("n9", drained=True, maintained=False))
    shown = {line["node"]: line for line in rig.keeper.node_uses(NODES)}
    assert shown["n0"] == {
        "node": "n0", "use": "open", "there": True, "head": True, "replicas": 1, "leaders": 1
    }  # fmt: skip
    assert (shown["n9"]["use"], shown["n9"]["there"], shown["n3"]["replicas"]) == ("drained", False, 0)


def test_whose_disk_has_too_little_room_to_lead_is_read_from_its_report(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    said = {
        0: {"free_bytes": 125, "reserve_bytes": 100},
        1: {"free_bytes": 124, "reserve_bytes": 100},
        2: {"free_bytes": 900, "reserve_bytes": 100, "disk_full": True},
    }
    for (_, rid), track in rig.tracks.items():
        assert track.status is not None
        track.status = msgspec.structs.replace(track.status, **said[rid])
    assert rig.keeper.groups()[0].scarce == {1, 2}
