"""Defects C, L, O, and double votes: a leader that counts what it must not, or stays leader for too long.

Defect K is told in tests/scenarios/slow_disks.txt.
"""

from __future__ import annotations

import pytest
from pysyncobj import FAIL_REASON

from tests.controls.guards import taken_away
from tests.support.stage import Mail, OurMember, Stage, our_group, stock_group

FAST_FALLBACK = {"leaderFallbackTimeout": 1.0}


# ------------------------------------------------------------------ C: two membership changes at once
def test_c_stock_lets_an_isolated_leader_remove_the_majority_and_go_on_alone() -> None:
    stage = stock_group(dynamicMembershipChange=True, **FAST_FALLBACK)
    leader = stage.elect("r0")
    stage.isolate("r0")
    for other in leader.raft.otherNodes:
        leader.raft.removeNodeFromCluster(other)
    acknowledged: list[bytes] = []
    stage.awake = {"r0"}
    stage.tick("r0")  # both removals in one go
    leader.propose(b"alone", lambda result, error: acknowledged.append(result))
    stage.run(0.5)
    stage.awake = set(stage.names)
    new = stage.elect("r1")
    new.propose(b"together", lambda result, error: acknowledged.append(result))
    stage.run(0.5)
    assert acknowledged == [b"alone", b"together"], "both sides acknowledge"
    assert leader.applied != new.applied


def test_c_ours_refuses_every_stock_way_to_change_the_members() -> None:
    """With it on, stock unpickles every entry whose first byte is 2: including ours."""
    stage = our_group()
    leader = stage.elect("r0")
    core = leader.raft._core
    with pytest.raises(Exception, match="dynamicMembershipChange is disabled"):
        core.addNodeToCluster("r9")
    with pytest.raises(Exception, match="dynamicMembershipChange is disabled"):
        core.removeNodeFromCluster("r1")
    before, refusals = leader.last_index(), []
    core._applyCommand(b"anything", lambda result, reason: refusals.append(reason), 2)
    core.setCodeVersion(0, lambda result, reason: refusals.append(reason))
    stage.run(0.2)
    assert refusals == [FAIL_REASON.REQUEST_DENIED] * 2
    assert leader.last_index() == before


# ------------------------------------------------------------------ L: acks of an earlier leadership
def count_a_stale_ack(stage: Stage) -> tuple[Stage, list[object]]:
    """Five replicas. An ack of r1 for r0's first leadership arrives in its second one.

    In between, r1 followed another leader and no longer holds what it acknowledged then.
    """
    leader = stage.elect("r0")
    first = leader.last_index()
    stage.isolate("r0", "r1")
    stage.keep = lambda mail: (
        mail.message["type"] == "next_node_idx" and mail.message["next_node_idx"] > first + 1
    )
    for n in range(6):
        leader.propose(b"first %d" % n)
    stage.run(0.1)
    late = [mail for mail in stage.kept if mail.sender == "r1"][-1]
    assert late.message["next_node_idx"] == first + 7
    stage.keep = lambda mail: False

    stage.isolate("r0")  # the others continue without it, and overwrite the tail
    stage.elect("r2").propose(b"second")
    stage.run(0.5)
    stage.heal()
    stage.awake = set()
    stage.run(0.5)
    stage.awake = {"r2"}
    stage.run(0.5)
    again = stage.elect("r0")

    stage.isolate("r0", "r1")  # only two of five can hold what comes now ...
    stage.keep = lambda mail: True  # ... and nothing of it arrives anywhere yet
    outcomes: list[object] = []
    again.propose(b"third", lambda result, applied: outcomes.append(applied))
    stage.tick("r0")
    stage.hand_over(late)
    for peer in ("r2", "r3"):  # the same from two more, as a slow network would deliver them
        stage.hand_over(Mail(peer, late.receiver, late.message))
    stage.tick("r0")
    return stage, outcomes


def test_l_stock_counts_an_ack_of_an_earlier_term() -> None:
    stage, outcomes = count_a_stale_ack(stock_group(5))
    assert outcomes == [FAIL_REASON.SUCCESS]
    holders = [n for n, m in stage.members.items() if b"third" in m.applied]
    assert holders == ["r0"], "acknowledged, and on one replica of five"


def test_l_ours_drops_it() -> None:
    assert count_a_stale_ack(our_group(5))[1] == []


def test_l_ours_without_the_term_stamp_breaks_as_stock_does() -> None:
    with taken_away("ack-term"):
        assert count_a_stale_ack(our_group(5))[1] == [True]


def test_l_a_held_ack_is_dropped_when_the_term_changes() -> None:
    stage = our_group()
    stage.elect("r0").propose(b"x")
    follower: OurMember = stage.members["r1"]
    follower.disk_stalls = True
    stage.tick("r0")
    stage.deliver_all()
    stage.keep = lambda mail: mail.sender == "r1"
    follower.raft.deliver("r2", {"type": "stale_term", "term": follower.term() + 1})
    follower.disk_stalls = False
    follower.sync()
    assert stage.kept == []


# ------------------------------------------------------------------ votes
def elect_by_one_vote_delivered_twice(stage: Stage) -> Stage:
    """Five replicas, two candidates of one term; r1's single vote reaches r0 twice."""
    stage.keep = lambda mail: mail.message["type"] in ("request_vote", "pre_vote")
    for candidate in ("r0", "r4"):
        while not any(m.sender == candidate and m.message["type"] == "request_vote" for m in stage.kept):
            stage.awake = {candidate}
            stage.run(0.05)
            for mail in [m for m in stage.kept if m.message["type"] == "pre_vote"]:
                stage.kept.remove(mail)
                if mail.receiver not in ("r0", "r4"):
                    stage.hand_over(mail)
            stage.deliver_all()
    asked = {(m.sender, m.receiver): m for m in stage.kept if m.message["type"] == "request_vote"}
    assert {m.message["term"] for m in asked.values()} == {1}
    votes: list[Mail] = []
    stage.keep = lambda mail: mail.message["type"] == "response_vote" and not votes.append(mail)  # type: ignore[func-returns-value]
    stage.awake = set()
    stage.hand_over(asked["r0", "r1"])
    stage.hand_over(votes[0])
    stage.hand_over(votes[0])
    stage.hand_over(asked["r4", "r2"])
    stage.hand_over(asked["r4", "r3"])
    for mail in votes[1:]:
        stage.hand_over(mail)
    return stage


def leaders(stage: Stage) -> list[tuple[str, int]]:
    return [(name, member.term()) for name, member in stage.members.items() if member.is_leader()]


def test_stock_elects_two_leaders_of_one_term_when_a_vote_arrives_twice() -> None:
    assert leaders(elect_by_one_vote_delivered_twice(stock_group(5))) == [("r0", 1), ("r4", 1)]


def test_ours_counts_every_voter_once() -> None:
    assert leaders(elect_by_one_vote_delivered_twice(our_group(5))) == [("r4", 1)]


def test_ours_without_the_guard_elects_two_as_stock_does() -> None:
    with taken_away("vote-once"):
        stage = elect_by_one_vote_delivered_twice(our_group(5))
    assert leaders(stage) == [("r0", 1), ("r4", 1)]


# ------------------------------------------------------------------ O: an isolated leader steps down
def seconds_until_it_steps_down(stage: Stage) -> float:
    leader = stage.elect("r0")
    stage.isolate("r0")
    start = stage.now
    while leader.is_leader() and stage.now - start < 60:
        stage.run(0.1)
    return stage.now - start


def test_o_stock_leads_on_for_half_a_minute_without_a_majority() -> None:
    assert seconds_until_it_steps_down(stock_group()) > 25


def test_o_ours_steps_down_within_two_seconds() -> None:
    assert seconds_until_it_steps_down(our_group()) < 2


# ------------------------------------------------------------------ what a tick looks at
def test_a_leader_whose_first_entry_waits_does_not_look_at_the_log_before_it() -> None:
    """Stock looked at every entry of older terms after the commit index, in every tick: after a start, the
    whole log since the snapshot, in the thread that sends heartbeats."""
    stage = our_group()
    for member in stage.members.values():
        member.journal.setCurrentTerm(1, None)
        for index in range(member.last_index() + 1, 400):
            member.journal.add(b"\0old", index, 1)
        member.journal.sync()
        member.raft._core._SyncObj__raftCurrentTerm = 1
    for name in ("r1", "r2"):
        stage.members[name].disk_stalls = True
    leader = stage.elect("r0")
    looked: list[int] = []
    core = leader.raft._core
    entries = core._SyncObj__getEntries
    core._SyncObj__getEntries = lambda index, *rest: looked.append(index) or entries(index, *rest)
    stage.run(0.5)
    assert [core.match_index(peer) for peer in ("r1", "r2")] == [399, 399] and core.commit_index < 399
    assert not looked
    stage.members["r1"].disk_stalls = False
    stage.run(0.5)
    assert core.commit_index == leader.last_index() == 400
