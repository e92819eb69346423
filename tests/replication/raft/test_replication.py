"""How entries get from a leader to its followers: probing, rewinding, windows, chunks, and limits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.raft.node import RaftConfig, RaftNode
from escrowmq.replication.raft.replicator import PeerProgress, quorum_index
from tests.sim.environment.disk import SimDisk
from tests.support.stage import Mail, OurMember, Stage, our_group


def divergent(entries: int, **config: Any) -> Stage:
    """r0 has a long uncommitted tail that only it has; later r1 leads the others, with as many entries."""
    stage = our_group(config=RaftConfig(**config))
    old = stage.elect("r0")
    stage.isolate("r0")
    for n in range(entries):
        old.propose(b"divergent %d" % n)
    stage.tick("r0")
    new = stage.elect("r1")
    for n in range(entries):
        new.propose(b"true %d" % n)
    stage.run(1)
    return stage


def test_a_conflicting_tail_is_passed_over_term_by_term_not_entry_by_entry() -> None:
    stage = divergent(500)
    refusals: list[Mail] = []
    stage.keep = lambda mail: bool(mail.message.get("reset")) and refusals.append(mail)  # type: ignore[func-returns-value]
    stage.heal()
    stage.awake = {"r1"}
    stage.run(1)
    assert stage.members["r0"].commit_index() == stage.members["r1"].commit_index()
    stage.run(1)
    assert len(refusals) <= 3  # stock: 500, one per heartbeat


def test_a_new_leader_probes_with_empty_messages_until_one_is_accepted() -> None:
    stage = divergent(50)
    seen: list[tuple[str, int]] = []

    def look(mail: Mail) -> bool:
        if mail.receiver == "r0" and mail.message["type"] == "append_entries":
            seen.append(("entries" if mail.message["entries"] else "probe", mail.message["prevLogIdx"]))
        elif mail.sender == "r0" and mail.message["type"] == "next_node_idx":
            seen.append(("accepted" if mail.message["success"] else "refused", mail.message["next_node_idx"]))
        return True

    stage.route = look
    stage.awake = {"r1"}
    stage.run(0.5)
    first_entries = next(n for n, (kind, _) in enumerate(seen) if kind == "entries")
    assert "accepted" in [kind for kind, _ in seen[:first_entries]]


def test_what_is_under_way_to_a_peer_stays_within_the_window() -> None:
    stage = our_group(config=RaftConfig(send_batch_bytes=1000, window_bytes=4000))
    leader: OurMember = stage.elect("r0")
    stage.keep = lambda mail: mail.message["type"] == "next_node_idx"  # no answer arrives
    for _ in range(100):
        leader.propose(bytes(499))
    stage.run(0.2)
    in_flight = [peer.in_flight_bytes for peer in leader.raft.progress()]
    assert in_flight == [4000, 4000]
    answers, stage.keep = stage.kept, lambda mail: False
    for mail in answers:
        stage.hand_over(mail)
    stage.run(0.5)
    assert len(leader.applied) == 100


def test_lost_messages_are_noticed_at_the_next_heartbeat() -> None:
    stage = our_group()
    leader = stage.elect("r0")
    stage.route = lambda mail: not mail.message.get("entries")
    leader.propose(b"x")
    stage.run(0.02)
    stage.heal()
    stage.run(0.15)
    assert leader.applied == [b"x"]


def test_a_refusal_of_an_older_message_does_not_rewind_again() -> None:
    state = PeerProgress(next=100, match=10)
    assert state.refused(hint=50, seq=7, sent_seq=9)
    assert state.next == 50
    assert not state.refused(hint=20, seq=8, sent_seq=9), "sent before the rewind"
    assert state.next == 50
    assert state.refused(hint=5, seq=10, sent_seq=12)
    assert state.next == 11, "never below what is known to match"


@pytest.mark.parametrize("others", [[], [4], [9], [4, 9], [9, 9], [1, 2, 3], [1, 9, 9, 9]])
def test_the_quorum_index_agrees_with_counting(others: list[int]) -> None:
    own = 6
    counted = max(
        i for i in range(11) if sum(x >= i for x in [own, *others]) * 2 > len(others) + 1
    )  # fmt: skip
    assert quorum_index(own, others) == counted


def test_a_backlog_is_applied_in_chunks() -> None:
    """Stock applies everything in one tick, during which no call is served and election time-outs expire."""
    stage = our_group(config=RaftConfig(apply_chunk=10))
    leader: OurMember = stage.elect("r0")
    for _ in range(100):
        leader.propose(b"x")
    stage.tick("r0")
    stage.deliver_all()
    counts = []
    while leader.raft.readiness.more_to_apply() or not counts:
        before = len(leader.applied)
        stage.tick("r0")
        counts.append(len(leader.applied) - before)
    assert counts == [10] * 10


# ------------------------------------------------------------------ where logs no longer connect
def short_of_log(drop_to: int, tail: bytes | None) -> Stage:
    """r2 missed most entries (``tail``: and has one of its own); the others dropped up to ``drop_to``."""
    stage = Stage(["r0", "r1", "r2"])
    for name in stage.names:
        stage.add(OurMember(stage, name, segment_bytes=200))
    stage.open()
    if tail is not None:
        old = stage.elect("r2")
        stage.isolate("r2")
        old.propose(tail)
        stage.tick("r2")
    stage.isolate("r2")
    leader = stage.elect("r0")
    for n in range(40):
        leader.propose(b"%d" % n)
    stage.run(0.5)
    for name in ("r0", "r1"):
        assert stage.members[name].journal.drop_before(drop_to) > 2
        stage.members[name].journal.sync()
    stage.heal()
    stage.run(2)
    return stage


@pytest.mark.parametrize("tail", [None, b"its own"])
def test_a_follower_learns_that_the_leaders_log_starts_too_late_for_it(tail: bytes | None) -> None:
    stage = short_of_log(30, tail)
    follower: OurMember = stage.members["r2"]
    assert follower.raft.too_far_behind
    assert not stage.members["r1"].raft.too_far_behind
    leader = next(m for m in stage.members.values() if m.is_leader())
    assert [p.peer for p in leader.raft.progress() if p.too_far_behind] == ["r2"]
    term = leader.term()
    stage.run(3)
    assert leader.term() == term, "it does not disturb the group while it waits for repair"
    assert follower.applied == []


def test_logs_that_meet_behind_the_leaders_first_entry_are_found_to_meet() -> None:
    """The follower's hint goes back a whole term, to before the leader's log; their logs meet later."""
    stage = Stage(["r0", "r1", "r2"])
    for name in stage.names:
        stage.add(OurMember(stage, name, segment_bytes=200))
    stage.open()
    leader: OurMember = stage.elect("r0")
    for n in range(40):
        leader.propose(b"%d" % n)
    stage.run(0.5)
    lagging: OurMember = stage.members["r2"]
    stage.isolate("r2")
    for n in range(40):
        leader.propose(b"more %d" % n)
    stage.run(0.3)
    # r2 restarts: it knows no commit index, so it can only point at where its last term begins.
    restarted = OurMember(stage, "r2", disk=lagging.disk, segment_bytes=200)
    stage.add(restarted)
    for peer in ("r0", "r1"):
        restarted.connect(peer)
    leader.journal.drop_before(35)
    stage.members["r1"].journal.drop_before(35)
    stage.run(2)  # r0 and r1 continue; a new leadership would start probing at its end
    stage.heal()
    stage.members["r0"].raft.disconnected("r2")
    stage.members["r0"].raft.connected("r2")
    stage.run(1)
    assert not restarted.raft.too_far_behind
    assert restarted.applied == leader.applied


def test_a_checkpoint_that_does_not_fit_the_log_is_refused() -> None:
    stage = our_group()
    journal = SegmentJournal(SimDisk(random.Random(0)))
    for index in range(1, 6):
        journal.add(b"\1", index, 0)
    with pytest.raises(CorruptLog, match="restore the replica from a peer"):
        RaftNode(
            "r0", ["r1", "r2"], journal, stage.members["r0"], lambda *_: None,
            clock=stage.clock, rng=random.Random(0), applied_index=9,
        )  # fmt: skip
