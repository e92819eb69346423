"""An entry known to be damaged before it is committed is not counted among the copies that commit it.

The journals are real; damage to an entry is only noted by hand, as no test needs its bytes.
"""

from __future__ import annotations

from escrowmq.replication.log.holes import Hole
from escrowmq.replication.raft import guards
from tests.controls.guards import taken_away
from tests.support.stage import OurMember, Stage, our_group


def damaged(member: OurMember, index: int) -> Hole:
    """From now on the replica knows that it cannot read this entry."""
    hole = Hole(1, index, index, 0, 100)
    member.journal.holes.note(hole)
    return hole


def one_follower_with_a_damaged_entry() -> tuple[Stage, list[object], Hole]:
    """r2 is away. r1 has written an entry, its answer was lost, and it finds the entry damaged."""
    stage = our_group()
    leader, follower = stage.elect("r0"), stage.members["r1"]
    stage.route = lambda mail: (
        "r2" not in mail[:2] and (mail.sender != "r1" or mail.message["type"] != "next_node_idx")
    )
    outcomes: list[object] = []
    leader.propose(b"x", lambda result, applied: outcomes.append(applied))
    stage.run(0.1)
    assert outcomes == [] and follower.journal.durable_index == leader.last_index()
    hole = damaged(follower, leader.last_index())
    stage.isolate("r2")
    return stage, outcomes, hole


def test_a_follower_does_not_acknowledge_what_it_has_found_damaged() -> None:
    """If the leader's disk were then lost, so would be the only sound copy of an acknowledged entry."""
    stage, outcomes, _ = one_follower_with_a_damaged_entry()
    stage.run(1.0)
    leader = stage.members["r0"]
    assert outcomes == [] and leader.is_leader(), "its heartbeats are answered all the same"


def test_it_acknowledges_all_as_soon_as_the_entry_is_mended() -> None:
    stage, outcomes, hole = one_follower_with_a_damaged_entry()
    leader, follower = stage.members["r0"], stage.members["r1"]
    leader.propose(b"y", lambda result, applied: outcomes.append(applied))
    stage.run(0.3)
    assert outcomes == [] and follower.journal.durable_index == leader.last_index()
    follower.journal.holes.forget(hole, mended=True)
    stage.run(0.2)
    assert outcomes == [True, True]


def test_without_the_rule_an_entry_is_acknowledged_of_which_one_sound_copy_is_there() -> None:
    stage, outcomes, hole = one_follower_with_a_damaged_entry()
    with taken_away("sound-acks"):
        stage.run(0.2)
    assert outcomes == [True] and stage.members["r2"].last_index() < hole.first


def test_damage_to_what_is_committed_holds_up_nothing() -> None:
    """A replica with an old damaged entry, whose repair may take long, is a full member."""
    stage = our_group()
    leader = stage.elect("r0")
    for value in (b"a", b"b", b"c"):
        leader.propose(value)
    stage.run(0.2)
    damaged(stage.members["r1"], leader.last_index() - 1)
    stage.isolate("r2")
    outcomes: list[object] = []
    leader.propose(b"x", lambda result, applied: outcomes.append(applied))
    stage.run(0.2)
    assert outcomes == [True]


def test_a_restarted_follower_learns_first_that_a_damaged_entry_is_committed() -> None:
    """After a restart its commit index is unknown, so its log is acknowledged up to the damage until the
    leader's next message gives the index; the damage need not be repaired for that."""
    stage = our_group()
    leader = stage.elect("r0")
    for value in (b"a", b"b", b"c"):
        leader.propose(value)
    stage.run(0.2)
    old, at = stage.members["r1"], leader.last_index() - 1
    leader.raft.disconnected("r1")
    again = OurMember(stage, "r1", disk=old.disk)
    stage.add(again)
    for peer in ("r0", "r2"):
        again.connect(peer)
    damaged(again, at)
    assert guards.sound_index(again.journal, again.commit_index()) == at - 1
    leader.connect("r1")
    stage.isolate("r2")
    outcomes: list[object] = []
    leader.propose(b"x", lambda result, applied: outcomes.append(applied))
    stage.run(0.3)
    assert outcomes == [True] and again.commit_index() >= at


def test_a_leader_does_not_count_its_own_damaged_entry() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    stage.isolate("r2")
    stage.members["r1"].disk_stalls = True
    outcomes: list[object] = []
    leader.propose(b"x", lambda result, applied: outcomes.append(applied))
    stage.run(0.1)
    hole = damaged(leader, leader.last_index())
    stage.members["r1"].disk_stalls = False
    stage.run(0.3)
    assert outcomes == [], "r1 alone has a sound copy"
    leader.journal.holes.forget(hole, mended=True)
    stage.run(0.2)
    assert outcomes == [True]
