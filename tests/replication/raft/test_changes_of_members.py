"""Members change in a running group: the test controls every message and every moment."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import SafetyViolation
from escrowmq.replication.format.membership import Members
from escrowmq.replication.raft.members import Act
from escrowmq.replication.raft.membership_changes import MembershipChanges
from escrowmq.replication.raft.pysync import Core
from tests.support.asking import Asked, ask
from tests.support.stage import OurMember, Stage, our_group


def join(stage: Stage, name: str) -> OurMember:
    """An empty replica that knows the members, and links to all of them."""
    stage.names.append(name)
    stage.awake.add(name)
    newcomer = OurMember(stage, name, joining=True)
    stage.add(newcomer)
    for other in stage.names[:-1]:
        if other in stage.members:
            stage.members[other].raft.told_of(name)
            stage.members[other].connect(name)
            newcomer.connect(other)
    return newcomer


def stop(stage: Stage, name: str) -> None:
    stage.names.remove(name)
    stage.awake.discard(name)
    stage.members[name].raft.close()


def voters(stage: Stage) -> set[tuple[str, ...]]:
    return {stage.members[name].raft.members.voters for name in stage.names}


def test_a_replica_is_replaced() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    newcomer = join(stage, "r3")
    assert ask(leader, Act.ADD, "r3").calls == [], "in force, and not yet applied"
    assert leader.raft.members.learners == ("r3",)
    stage.run(0.3)
    leader.propose(b"one")
    stage.run(0.2)
    assert newcomer.applied == [b"one"]
    promoted = ask(leader, Act.PROMOTE, "r3")
    stage.run(0.2)
    assert promoted.applied and voters(stage) == {("r0", "r1", "r2", "r3")}
    removed = ask(leader, Act.REMOVE, "r1")
    stage.run(0.2)
    assert removed.applied
    stop(stage, "r1")
    stage.run(0.2)
    assert voters(stage) == {("r0", "r2", "r3")}
    stage.elect("r3")


def test_a_learner_does_not_count_and_does_not_stand_for_election() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    join(stage, "r3")
    ask(leader, Act.ADD, "r3")
    stage.run(0.3)
    stage.isolate("r0", "r3")
    commit = leader.commit_index()
    leader.propose(b"one")
    stage.run(0.5)
    assert leader.commit_index() == commit, "two of three voters it takes, and there is one"
    stage.run(3.0)
    assert not stage.members["r3"].is_leader() and stage.members["r3"].journal.getVotedForNodeId() is None


def test_a_learner_gives_its_vote_to_who_counts_it() -> None:
    """The learner may not have heard yet that it is a voter, and its vote may be needed."""
    stage = our_group(2)
    leader = stage.elect("r0")
    join(stage, "r2")
    ask(leader, Act.ADD, "r2")
    stage.run(0.3)
    stage.route = lambda mail: mail.receiver != "r2"
    ask(leader, Act.PROMOTE, "r2")
    stage.run(0.1)
    stage.heal()
    stage.isolate("r1", "r2")
    stage.awake = {"r1", "r2"}
    assert stage.members["r2"].raft.members.learners == ("r2",)
    stage.run(3.0)
    assert stage.members["r1"].is_leader(), "with the vote of the one that did not know"


def test_the_change_before_must_be_applied() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    stage.isolate("r0")
    ask(leader, Act.ADD, "r3")
    assert "the previous change is not applied" in ask(leader, Act.REMOVE, "r1").why


def test_an_entry_of_the_own_term_must_be_applied() -> None:
    stage = our_group()
    stage.elect("r0")
    stage.route = lambda mail: mail.message["type"] != "next_node_idx"
    stage.awake = {"r1"}
    for _ in range(300):
        stage.run(0.01)
        if stage.members["r1"].is_leader():
            break
    assert "own term" in ask(stage.members["r1"], Act.REMOVE, "r2").why


def test_a_voter_that_is_needed_does_not_go() -> None:
    stage = our_group()
    stage.isolate("r2")
    leader = stage.elect("r0")
    assert "the voters have no sound majority" in ask(leader, Act.REMOVE, "r1").why
    removed = ask(leader, Act.REMOVE, "r2")
    stage.run(0.2)
    assert removed.applied


@pytest.mark.parametrize("mended", [True, False])
def test_a_voter_that_is_silent_is_not_counted_upon(monkeypatch: pytest.MonkeyPatch, mended: bool) -> None:
    """It has stored everything in this leadership, and comes back without its disk."""
    if not mended:
        monkeypatch.setattr(Core, "answers", lambda self, peer: True)
    stage = our_group()
    leader = stage.elect("r0")
    stage.isolate("r2")
    stage.awake.discard("r2")
    stage.run(0.5)
    removed = ask(leader, Act.REMOVE, "r1")
    assert (removed.calls != []) == mended
    stage.run(2.0)
    stage.add(empty := OurMember(stage, "r2", learner=True))
    for other in ("r0", "r1"):
        stage.members[other].raft.disconnected("r2")
        stage.members[other].connect("r2")
        empty.connect(other)
    stage.heal()
    stage.awake.add("r2")
    stage.run(10.0)
    leads = [name for name in stage.names if stage.members[name].raft.ready]
    if not mended:
        assert leads == [], "r0 needs the vote of r2, which needs a leader; r1's log is behind that of r0"
        return
    assert "the voters have no sound majority" in removed.why
    assert not empty.raft.rejoining
    going = "r1" if leads != ["r1"] else "r2"
    again = ask(stage.members[leads[0]], Act.REMOVE, going)
    stage.run(0.2)
    assert again.applied


def test_a_learner_that_is_silent_does_not_become_a_voter() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    join(stage, "r3")
    ask(leader, Act.ADD, "r3")
    stage.run(0.3)
    stage.isolate("r3")
    stage.run(0.5)
    assert "has not caught up" in ask(leader, Act.PROMOTE, "r3").why
    stage.heal()
    stage.run(0.3)
    promoted = ask(leader, Act.PROMOTE, "r3")
    stage.run(0.2)
    assert promoted.applied


def test_an_empty_learner_does_not_become_a_voter() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    ask(leader, Act.ADD, "r3")
    stage.run(0.5)
    assert "has not caught up" in ask(leader, Act.PROMOTE, "r3").why


def test_a_change_that_is_cut_off_is_undone() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    stage.isolate("r0")
    ask(leader, Act.REMOVE, "r1")
    assert leader.raft.members.voters == ("r0", "r2") and leader.raft.peers == ("r2",)
    stage.awake = {"r1", "r2"}
    stage.run(3.0)
    stage.heal()
    stage.awake = set(stage.names)
    stage.run(1.0)
    assert voters(stage) == {("r0", "r1", "r2")}
    assert not stage.members["r0"].is_leader()


def test_a_start_counts_by_the_tail_of_its_log() -> None:
    """Committed or not: the replica that appended it already counts by it."""
    stage = our_group()
    leader = stage.elect("r0")
    stage.isolate("r0")
    ask(leader, Act.REMOVE, "r1")
    leader.sync()
    again = OurMember(stage, "r0", disk=leader.disk)
    assert again.raft.applied_index == 1 and again.raft.members.voters == ("r0", "r2")


def test_one_that_was_removed_is_no_longer_heard() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    ask(leader, Act.REMOVE, "r2")
    stage.run(1.0)
    gone = stage.members["r2"]
    assert gone.raft.members.voters == ("r0", "r1", "r2"), "nobody tells it"
    term = leader.term()
    stage.awake = {"r2"}
    gone.raft._prevote.leader_lost()
    for _ in range(200):
        stage.run(0.01)
    assert leader.term() == term and leader.is_leader()


def test_a_group_of_one_grows() -> None:
    stage = our_group(1)
    stage.run(1.0)
    leader = stage.members["r0"]
    assert leader.is_leader()
    newcomer = join(stage, "r1")
    ask(leader, Act.ADD, "r1")
    stage.run(0.3)
    asked = ask(leader, Act.PROMOTE, "r1")
    stage.run(0.3)
    assert asked.applied and voters(stage) == {("r0", "r1")}
    stage.awake = {"r0"}
    leader.propose(b"both")
    stage.run(0.3)
    assert newcomer.journal.last_index == leader.journal.last_index


def test_whoever_joins_waits_for_a_leader() -> None:
    stage = our_group()
    newcomer = join(stage, "r3")
    stage.awake = {"r3"}
    stage.run(5.0)
    assert newcomer.term() == 0 and newcomer.raft.members.version == 0
    with pytest.raises(SafetyViolation):
        newcomer.raft.role_changed(0, 2)


def test_no_group_changes_its_members_in_stocks_own_way() -> None:
    """With it on, stock unpickles every entry whose first byte is 2: including ours."""
    member = our_group().members["r0"]
    assert member.raft._core.conf.dynamicMembershipChange is False
    stage = our_group()
    leader = stage.elect("r0")
    with pytest.raises(Exception, match="dynamicMembershipChange is disabled"):
        leader.raft._core.addNodeToCluster("r9")
    stage.run(0.3)
    assert leader.raft.members == Members(1, ("r0", "r1", "r2"), (), "", 2)


def four_and_a_learner_that_is_half_promoted() -> Stage:
    """r0 makes r4 a voter, which only r4 learns; then r1 leads, and r3 has heard nothing since."""
    stage = our_group(4)
    leader = stage.elect("r0")
    join(stage, "r4")
    ask(leader, Act.ADD, "r4")
    stage.run(0.3)
    stage.isolate("r0", "r4")
    assert ask(leader, Act.PROMOTE, "r4").calls == []
    stage.run(0.1)
    votes = ("pre_vote", "request_vote")
    stage.route = lambda mail: (
        mail.sender in ("r1", "r2", "r3")
        and mail.receiver in ("r1", "r2", "r3")
        and (mail.receiver != "r3" or mail.message["type"] in votes)
    )
    stage.elect("r1")
    stage.awake = {"r1", "r2"}
    return stage


def test_without_an_entry_of_the_own_term_an_old_change_could_still_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The defect of the first rules in the Raft thesis, as its author found it in 2015: two changes from one
    configuration, each committed by a different majority."""
    stage = four_and_a_learner_that_is_half_promoted()
    assert "own term" in ask(stage.members["r1"], Act.REMOVE, "r0").why

    monkeypatch.setattr(MembershipChanges, "own_term_applied", lambda self: True)
    stage = four_and_a_learner_that_is_half_promoted()
    usurper = stage.members["r1"]
    assert ask(usurper, Act.REMOVE, "r0").calls == []
    acknowledged = Asked()
    usurper.raft.propose(b"\0promised", acknowledged)
    stage.run(0.2)
    assert acknowledged.applied, "r1 and r2 are two of three"
    stage.isolate("r0", "r3", "r4")
    stage.awake = {"r0"}
    stage.run(1.0)  # it hears from r3 that its term is over
    stage.elect("r0")
    stage.members["r0"].propose(b"instead")
    stage.run(0.3)
    assert stage.members["r0"].applied == [b"instead"], "and r0, r3 and r4 are three of five"
