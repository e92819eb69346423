"""Which replica leads, which may be a candidate, which steps down, and which must not vote yet."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.raft.node import RaftConfig
from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.rejoin import Rejoin
from tests.sim.disk import SimDisk
from tests.support.stage import Mail, OurMember, Stage, our_group


def test_a_replica_that_was_cut_off_comes_back_without_deposing_the_leader() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    term = leader.term()
    stage.isolate("r2")
    stage.run(5)
    assert stage.members["r2"].term() == term, "it asks before it raises its term"
    stage.heal()
    stage.run(2)
    assert leader.is_leader()
    assert leader.term() == term


def test_a_leader_of_an_old_term_learns_of_the_new_one_from_any_follower() -> None:
    """Otherwise a replica in a later term that cannot win would ignore the leader forever."""
    stage = our_group()
    leader = stage.elect("r0")
    stage.members["r2"].raft.deliver("r1", {"type": "stale_term", "term": leader.term() + 3})
    stage.run(3)
    leaders = [m for m in stage.members.values() if m.is_leader()]
    assert len(leaders) == 1
    assert {m.term() for m in stage.members.values()} == {leaders[0].term()}
    assert leaders[0].term() >= 4


def test_a_dead_leader_is_replaced_within_a_second() -> None:
    stage = our_group()
    stage.elect("r0")
    stage.awake = {"r1", "r2"}
    stage.isolate("r0")
    stage.run(1.3)
    assert any(stage.members[n].is_leader() for n in ("r1", "r2"))


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


@pytest.mark.parametrize("apart", [0, 1, 2])
def test_two_that_ask_at_the_same_time_do_not_split_the_vote(apart: int) -> None:
    """A dead leader's links break at all followers at once: every fourth fail-over took a second election."""
    stage = our_group()
    stage.elect("r0")
    stage.isolate("r0")
    for name in ("r1", "r2"):
        stage.members[name].raft.disconnected("r0")
    first, second = ("r2", "r1") if apart else ("r1", "r2")
    stage.members[first].raft._core.campaign_at_next_tick()
    stage.members[second].raft._core.hold_election(1.0)
    stage.awake = {"r1", "r2"}
    stage.run(apart * 0.01)
    stage.members[second].raft._core.campaign_at_next_tick()
    stage.run(0.1)
    assert [stage.members[name].is_leader() for name in ("r1", "r2")].count(True) == 1
    assert {stage.members[name].term() for name in ("r1", "r2")} == {2}


def test_one_that_asked_too_early_is_agreed_with_later() -> None:
    """The other one still heard the leader when it was asked, and was refused when it asked itself."""
    stage = our_group()
    stage.elect("r0")
    stage.isolate("r0")
    first, second = stage.members["r1"].raft, stage.members["r2"].raft
    first.disconnected("r0")
    first._core.campaign_at_next_tick()
    stage.awake = {"r1", "r2"}
    stage.run(0.03)
    assert not stage.members["r1"].is_leader(), "r2 has just heard from the leader"
    second.disconnected("r0")
    second._core.campaign_at_next_tick()
    stage.run(0.05)
    assert stage.members["r1"].is_leader()


def test_one_that_asks_in_vain_gives_way_after_a_moment() -> None:
    stage = our_group()
    stage.elect("r0")
    stage.isolate("r0")
    for name in ("r1", "r2"):
        stage.members[name].raft.disconnected("r0")
    stage.route = lambda mail: mail.sender == "r2"  # r1 hears and is not heard
    stage.members["r1"].raft._core.campaign_at_next_tick()
    stage.members["r2"].raft._core.hold_election(0.2)
    stage.awake = {"r1", "r2"}
    stage.run(0.19)
    stage.isolate("r0")
    stage.members["r1"].raft._core.hold_election(5.0)
    stage.run(0.7)
    assert stage.members["r2"].is_leader()


def test_one_broken_connection_to_the_leader_deposes_nobody() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    term = leader.term()
    for _ in range(20):
        stage.members["r1"].raft.disconnected("r0")
        stage.run(0.2)
        stage.members["r1"].raft.connected("r0")
        stage.run(0.1)
    assert leader.is_leader() and {m.term() for m in stage.members.values()} == {term}


# ------------------------------------------------------------------ entries still to be applied
def one_with_much_to_apply(slow: str = "r1") -> Stage:
    """``slow`` has 300 committed entries, applies 100 of them per second, and r0 leads."""
    stage = Stage(["r0", "r1", "r2"])
    for name in stage.names:
        stage.add(OurMember(stage, name, RaftConfig(apply_chunk=1 if name == slow else 256)))
    leader = stage.open().elect("r0")
    for n in range(300):
        leader.propose(b"%d" % n)
    stage.run(0.1)
    assert stage.members[slow].commit_index() > 250 > 50 > len(stage.members[slow].applied)
    return stage


def test_a_replica_with_much_to_apply_leaves_the_lead_to_one_that_is_ready() -> None:
    """It was elected at once, and answered nothing for as long as it still applied: 1.5 s after a restart."""
    stage = one_with_much_to_apply()
    stage.awake = {"r1"}  # the other one's time-out is longer
    stage.isolate("r0")
    stage.run(0.7)
    stage.awake = {"r1", "r2"}
    stage.run(0.7)
    assert stage.members["r2"].raft.ready
    assert stage.members["r2"].term() == 2, "nobody has stood before"


def test_a_replica_with_much_to_apply_leads_once_it_is_ready_if_no_other_stands() -> None:
    stage = one_with_much_to_apply()
    stage.awake = {"r1"}
    stage.isolate("r0")
    stage.run(2.0)
    assert not stage.members["r1"].is_leader()
    stage.run(1.5)
    assert stage.members["r1"].is_leader() and len(stage.members["r1"].applied) == 300


def test_a_handover_goes_to_another_one_if_the_first_has_much_to_apply() -> None:
    """The first one declined until time was up, and nothing was accepted meanwhile."""
    stage = one_with_much_to_apply("r2")
    stage.members["r0"].raft.transfer_leadership()
    stage.run(0.5)
    assert stage.members["r1"].is_leader()


def test_a_handover_waits_for_what_its_target_has_to_apply() -> None:
    stage = one_with_much_to_apply()
    leader = stage.members["r0"]
    leader.raft.transfer_leadership("r1")
    stage.run(1.2)
    assert leader.is_leader() and not leader.raft.transferring, "given up, and it serves on"
    stage.run(2.5)
    leader.raft.transfer_leadership("r1")
    stage.run(0.1)
    assert stage.members["r1"].is_leader()


# ------------------------------------------------------------------ handover
def test_a_handover_takes_milliseconds_and_loses_nothing() -> None:
    stage = our_group()
    leader: OurMember = stage.elect("r0")
    outcomes: list[object] = []
    for n in range(20):
        leader.propose(b"%d" % n, lambda result, applied: outcomes.append(applied))
    leader.raft.transfer_leadership("r2")
    leader.propose(b"too late", lambda result, applied: outcomes.append(applied))
    assert outcomes == [False], "refused, not lost: the client goes to the next leader"
    stage.run(0.1)
    assert stage.members["r2"].is_leader()
    assert outcomes[1:] in ([True] * 20, [None] * 20)
    stage.run(0.5)
    assert len(stage.members["r2"].applied) == 20


def test_a_handover_that_cannot_be_is_given_up_and_proposals_flow_again() -> None:
    stage = our_group(config=RaftConfig(transfer_timeout_s=0.5))
    leader: OurMember = stage.elect("r0")
    stage.isolate("r2")
    leader.propose(b"r2 lacks this")
    stage.run(0.1)
    leader.raft.transfer_leadership("r2")
    stage.run(0.3)
    assert leader.raft.transferring
    stage.run(0.4)
    outcomes: list[object] = []
    leader.propose(b"again", lambda result, applied: outcomes.append(applied))
    stage.run(0.2)
    assert outcomes == [True]


def test_a_handover_to_a_replica_that_is_not_connected_holds_up_nothing() -> None:
    stage = our_group()
    leader: OurMember = stage.elect("r0")
    leader.raft.disconnected("r2")
    leader.raft.transfer_leadership("r2")
    stage.run(0.02)
    outcomes: list[object] = []
    leader.propose(b"at once", lambda result, applied: outcomes.append(applied))
    stage.run(0.2)
    assert outcomes == [True] and leader.is_leader()


def test_a_leader_whose_disk_hangs_hands_over_to_one_whose_disk_works() -> None:
    stage = our_group()
    leader: OurMember = stage.elect("r0")
    leader.disk_stalls = True
    leader.propose(b"x")
    stage.run(1.5)
    assert leader.is_leader(), "a slow sync is not a broken disk"
    assert leader.applied == []
    stage.run(1.5)
    assert not leader.is_leader()
    assert stage.members["r1"].applied == stage.members["r2"].applied == [b"x"]
    leader.disk_stalls = False
    stage.run(0.5)
    assert leader.applied == [b"x"]


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


# ------------------------------------------------------------------ votes survive restarts
def test_a_restarted_replica_does_not_vote_twice_in_a_term() -> None:
    stage = our_group(5)
    stage.awake = set()
    voter: OurMember = stage.members["r1"]
    ask = {"type": "request_vote", "term": 9, "last_log_index": 50, "last_log_term": 8}
    votes: list[Mail] = []
    stage.keep = lambda mail: votes.append(mail) or True  # type: ignore[func-returns-value]
    stage.hand_over(Mail("r0", "r1", dict(ask)))
    assert [m.receiver for m in votes] == ["r0"]
    voter.disk.power_cut()
    again = OurMember(stage, "r1", disk=voter.disk)
    stage.add(again)
    for peer in ("r0", "r2"):
        again.connect(peer)
    stage.hand_over(Mail("r2", "r1", dict(ask)))
    assert [m.receiver for m in votes] == ["r0"]
    assert again.term() == 9


# ------------------------------------------------------------------ a lost disk
def replace_disk(stage: Stage, name: str) -> OurMember:
    """The replica's machine is replaced by an empty one; both ends know that the connection is a new one."""
    learner = OurMember(stage, name, disk=SimDisk(random.Random(99)), learner=True)
    stage.add(learner)
    for other, member in stage.members.items():
        if other != name:
            member.raft.disconnected(name)
            member.raft.connected(name)
            learner.connect(other)
    return learner


def test_a_replica_with_a_new_disk_helps_nobody_to_forget() -> None:
    """r0 and r2 have an acknowledged entry, r1 does not. r2 loses its disk, r0 is away: r1 must not win."""
    stage = our_group()
    leader = stage.elect("r0")
    stage.isolate("r1")
    outcomes: list[object] = []
    leader.propose(b"precious", lambda result, applied: outcomes.append(applied))
    stage.run(0.3)
    assert outcomes == [True]
    stage.isolate("r0")
    stage.awake = {"r1", "r2"}
    learner = replace_disk(stage, "r2")
    stage.run(5)
    assert not any(stage.members[n].is_leader() for n in ("r1", "r2"))
    assert learner.raft.rejoining

    stage.heal()
    stage.awake = set(stage.names)
    stage.run(3)
    assert not learner.raft.rejoining, "a full member again"
    assert learner.applied == [b"precious"]
    assert [m.applied for m in stage.members.values()] == [[b"precious"]] * 3


def test_what_a_learner_stores_counts_for_nothing_until_it_has_heard_from_all() -> None:
    """It may have promised its vote to a later leader, which only the silent replica knows of."""
    stage = our_group()
    leader = stage.elect("r0")
    stage.isolate("r1")
    stage.awake = {"r0", "r2"}
    learner = replace_disk(stage, "r2")
    outcomes: list[object] = []
    leader.propose(b"x", lambda result, applied: outcomes.append(applied))
    stage.run(0.8)
    assert learner.last_index() == leader.last_index(), "it does store"
    assert outcomes == []
    stage.run(2)
    assert not leader.is_leader(), "without a majority that counts, the leader steps down"
    stage.heal()
    stage.awake = set(stage.names)
    stage.run(3)
    assert not learner.raft.rejoining


def a_leader_between_two_terms() -> tuple[OurMember, OurMember, list[object]]:
    """r0 leads in term 1; r1 and r2 elect another one in term 2, unheard by r0. One of them loses its disk
    and asks both; of the new leader it gets only the answer. r0 proposes. Returns r0, the learner,
    outcomes."""
    stage = our_group()
    old = stage.elect("r0")
    stage.isolate("r0")
    stage.awake = {"r1", "r2"}
    for name in ("r1", "r2"):
        stage.members[name].raft.disconnected("r0")  # so they ask at once; r0 does not notice
    for _ in range(90):
        stage.run(0.01)
        if leading := [name for name in ("r1", "r2") if stage.members[name].is_leader()]:
            break
    (new,) = leading
    other = "r2" if new == "r1" else "r1"
    assert old.is_leader() and old.term() < stage.members[new].term()
    stage.awake = {"r0", new, other}

    def route(mail: Mail) -> bool:
        if {mail.sender, mail.receiver} == {"r0", new}:
            return False
        return (mail.sender, mail.receiver) != (new, other) or mail.message["type"] == "rejoin_answer"

    stage.route = route
    learner = replace_disk(stage, other)
    outcomes: list[object] = []
    old.propose(b"lost", lambda result, applied: outcomes.append(applied))
    for _ in range(60):
        stage.run(0.01)
        if not learner.raft.rejoining or not old.is_leader():
            break
    stage.run(0.1)
    return old, learner, outcomes


def test_a_learner_that_was_told_of_a_later_term_waits_for_its_leader() -> None:
    """What it stores for the leader of the earlier term is no majority: the later one has another entry."""
    _, learner, outcomes = a_leader_between_two_terms()
    assert learner.raft.rejoining and outcomes in ([], [None])


def test_planted_a_learner_that_ignores_later_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers_of_one_term(self: Rejoin) -> bool:
        target = self._target
        if target is None or not self._target_is_current():
            return False
        for peer, answer in self._answers.items():
            self._answers[peer] = answer._replace(term=min(answer.term, target[1]))
        return complete(self)

    complete = Rejoin._complete
    monkeypatch.setattr(Rejoin, "_complete", answers_of_one_term)
    _, learner, outcomes = a_leader_between_two_terms()
    assert not learner.raft.rejoining and outcomes == [True], "it is acknowledged, and will be lost"


def test_what_the_lost_disk_had_acknowledged_counts_no_longer() -> None:
    """Five replicas: when r1's disk is lost, an entry is on r0 and r1 only. One more copy is no majority."""
    stage = our_group(5)
    leader = stage.elect("r0")
    stage.isolate("r0", "r1")
    outcomes: list[object] = []
    leader.propose(b"x", lambda result, applied: outcomes.append(applied))
    stage.run(0.1)
    stage.route = lambda mail: {mail.sender, mail.receiver} <= {"r0", "r1", "r2"}
    replace_disk(stage, "r1")
    stage.awake = {"r0"}
    stage.members["r1"].raft.tick()
    stage.deliver_all()
    stage.run(0.4)
    assert stage.members["r2"].last_index() == leader.last_index()
    assert outcomes == [], "durable on r0 and r2 alone"


# ------------------------------------------------------------------ standing still
def test_a_group_at_rest_changes_neither_leader_nor_term() -> None:
    stage = our_group()
    stage.elect("r0")
    stage.run(1)

    def seen() -> list[tuple[bool, bool, str | None, int]]:
        nodes = [stage.members[name].raft for name in stage.names]
        return [(node.is_leader, node.ready, node.leader_id, node.term) for node in nodes]

    before = seen()
    assert before == [(True, True, "r0", 1), (False, False, "r0", 1), (False, False, "r0", 1)]
    stage.run(2)
    assert seen() == before


# ------------------------------------------------------------------ ready, as other threads see it
def look_while_it_becomes_leader(stage: Stage, member: OurMember) -> list[tuple[bool, list[bytes]]]:
    """``ready`` and what is applied, as threads see them between the role and the term's first entry."""
    seen: list[tuple[bool, list[bytes]]] = []
    raft = member.raft
    begin = raft._replicator.begin

    def look() -> None:
        seen.append((raft.ready, list(member.applied)))
        begin()

    raft._replicator.begin = look  # type: ignore[method-assign]
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


def test_an_opening_entry_that_outlives_its_leadership_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above, with the fix removed."""
    monkeypatch.setattr(Core, "leadership_ended", lambda self: None)
    assert a_leader_again()[-1][0]
