"""Which replica leads: what depends on many moments, on room on disks, or on threads.

The rest of elections is told in tests/scenarios.
"""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import SafetyViolation
from tests.support.stage import OurMember, Stage, our_group


def test_a_leader_whose_connections_break_is_replaced_before_any_time_out() -> None:
    for idle in range(20):
        stage = our_group()
        leader = stage.elect("r0")
        stage.run(idle * 0.037)
        stage.awake = {"r1", "r2"}
        stage.isolate("r0")
        for name in ("r1", "r2"):
            stage.members[name].raft.disconnected("r0")
        stage.run(0.29)
        assert [n for n in ("r1", "r2") if stage.members[n].is_leader()], f"after {idle}"
        assert leader.term() < max(stage.members[n].term() for n in ("r1", "r2"))


# ------------------------------------------------------------------ handover
def test_a_leader_whose_disk_lacks_room_hands_over_to_one_that_has_room() -> None:
    """It refuses new work, so nothing waits for its disk: it led on, and refused, as long as that took."""
    stage = our_group()
    leader: OurMember = stage.elect("r0")
    leader.raft.readiness.short_of_room = stage.members["r2"].raft.readiness.short_of_room = True
    stage.run(1.5)
    assert leader.is_leader(), "room may be made any moment"
    stage.run(1.5)
    assert stage.members["r1"].is_leader()
    stage.run(20.0)
    assert stage.members["r1"].is_leader() and leader.term() == 2, "the lead stays there"


def test_the_lead_does_not_wander_among_full_disks() -> None:
    stage = our_group()
    leader: OurMember = stage.elect("r0")
    for member in stage.members.values():
        member.raft.readiness.short_of_room = True
    seen: list[bool] = []
    for _ in range(600):
        stage.run(0.1)
        seen.append(leader.raft.transferring)
    assert leader.is_leader() and leader.term() == 1
    assert 1 <= sum(seen) / 10 <= 4, "seconds of a minute in which it tried, and refused proposals"
    for member in stage.members.values():
        member.raft.readiness.short_of_room = False
    stage.run(2.0)
    outcomes: list[object] = []
    leader.propose(b"again", lambda result, applied: outcomes.append(applied))
    stage.run(0.2)
    assert outcomes == [True]


@pytest.mark.parametrize("why", ["planned", "to one", "hangs"])
def test_followers_without_room_take_the_lead_over_for_any_other_reason(why: str) -> None:
    """Decisions continue below the reserve. A leader that stops, or whose disk hangs, could not make any."""
    stage = our_group()
    leader: OurMember = stage.elect("r0")
    for member in stage.members.values():
        member.raft.readiness.short_of_room = True
    if why == "hangs":
        leader.disk_stalls = True
        leader.propose(b"x")
        stage.run(6.0)
    else:
        leader.raft.transfer_leadership("r2" if why == "to one" else None)
        stage.run(1.0)
    assert not leader.is_leader()


def test_the_lead_does_not_go_to_and_fro_where_there_is_hardly_any_room() -> None:
    stage = our_group()
    leader: OurMember = stage.elect("r0")
    leader.raft.readiness.short_of_room = True
    for name in ("r1", "r2"):
        stage.members[name].raft.readiness.little_room = True
    stage.run(20.0)
    assert leader.is_leader() and leader.term() == 1


# ------------------------------------------------------------------ ready, as other threads see it
def look_while_it_becomes_leader(stage: Stage, member: OurMember) -> list[tuple[bool, list[bytes]]]:
    """``ready`` and what is applied, as threads see them between the role and the term's first entry."""
    seen: list[tuple[bool, list[bytes]]] = []
    raft = member.raft
    begin = raft.replicator.begin

    def look() -> None:
        seen.append((raft.ready, list(member.applied)))
        begin()

    raft.replicator.begin = look  # type: ignore[method-assign]
    return seen


def a_leader_again() -> list[tuple[bool, list[bytes]]]:
    """r0 leads, then r1, then r0: it holds an entry that r1 has answered, and has not applied it."""
    stage = our_group()
    stage.elect("r0").propose(b"one")
    stage.run(0.2)
    other, again = stage.elect("r1"), stage.members["r0"]
    stage.route = lambda mail: (
        mail.receiver != "r0"
        or mail.message["type"] != "append_entries"
        or bool(mail.message.get("entries"))  # it never hears how far r1 has committed
    )
    told: list[object] = []
    other.propose(b"topic", lambda result, applied: told.append(applied))
    for _ in range(3):
        stage.run(0.01)
    assert told == [True] and b"topic" not in again.applied and again.last_index() == other.last_index()
    seen = look_while_it_becomes_leader(stage, again)
    stage.heal()
    stage.isolate("r1")
    stage.awake = {"r0"}
    for _ in range(300):
        stage.run(0.01)
        if seen:
            break
    assert seen and b"topic" not in seen[-1][1]
    return seen


def test_who_leads_for_the_second_time_is_not_ready_before_its_new_entry_is_applied() -> None:
    """Topics, positions and the leader's offsets are answered in other threads than the one that elects."""
    assert not a_leader_again()[-1][0]


def test_a_newcomer_that_is_elected_all_the_same_stops() -> None:
    newcomer = OurMember(our_group(), "r3", joining=True)
    with pytest.raises(SafetyViolation):
        newcomer.raft.role_changed(0, 2)
