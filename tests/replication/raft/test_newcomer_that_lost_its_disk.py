"""A newcomer voted, acknowledged, and lost its disk within the second in which a deposed leader does not know
that it is deposed: according to that leader's log, the newcomer never voted."""

from __future__ import annotations

from typing import Any

from escrowmq.replication.raft.members import Act
from escrowmq.replication.raft.membership_changes import has_promised_nothing, votes_in
from tests.support.asking import Asked, ask
from tests.support.stage import Mail, OurMember, Stage


def with_a_newcomer() -> Stage:
    """r0 leads r0, r1 and r2, and has added the learner r3, which only r1 can reach."""
    stage = Stage(["r0", "r1", "r2"])
    for name in stage.names:
        stage.add(OurMember(stage, name))
    stage.open()
    leader = stage.elect("r0")
    ask(leader, Act.ADD, "r3")
    stage.run(0.3)
    return stage


def bring(stage: Stage, **named: Any) -> OurMember:
    """Starts a process of r3."""
    if "r3" not in stage.names:
        stage.names.append("r3")
        stage.awake.add("r3")
    stage.add(member := OurMember(stage, "r3", **named))
    for other in ("r0", "r1", "r2"):
        stage.members[other].raft.told_of("r3")
        stage.members[other].raft.disconnected("r3")
        stage.members[other].connect("r3")
        member.connect(other)
    return member


def asked(stage: Stage, leader: str) -> bool | None:
    """As ``MemberChanges.never_voted``, over 100 ms."""
    node = stage.members[leader].raft
    check = node.check_lead()
    stage.run(0.1)
    if not node.leads_since(check):
        return None
    return not votes_in("r3", stage.members[leader].journal.members.since(0))


def test_only_a_leader_that_a_majority_still_answers_can_say_who_never_voted() -> None:
    stage = with_a_newcomer()
    bring(stage, joining=True)
    leader = stage.members["r0"].raft
    check = leader.check_lead()
    assert not leader.leads_since(check), "not before anybody has answered"
    assert asked(stage, "r0") is True
    assert asked(stage, "r1") is None, "no leader"
    stage.isolate("r0", "r3")
    assert leader.is_leader and asked(stage, "r0") is None, "of a learner's answer there is no majority"
    stage.isolate("r0", "r1")
    assert asked(stage, "r0") is True


def test_what_was_committed_with_the_lost_disk_stays() -> None:
    stage = with_a_newcomer()
    deposed = stage.members["r0"]

    # r1 leads without r0's knowledge, makes r3 a voter, and removes r2.
    stage.isolate("r0")
    stage.awake = {"r1"}
    lead(stage, "r1")
    first_disk = bring(stage, joining=True)
    stage.isolate("r0")
    stage.run(0.3)
    one = stage.members["r1"]
    until_taken(stage, one, Act.PROMOTE, "r3")
    until_taken(stage, one, Act.REMOVE, "r2")
    assert one.raft.members.voters == ("r0", "r1", "r3")
    of_members = one.last_index()

    # With r3 it commits: r2 is no longer a member, and r0 is away.
    stage.route = lambda mail: {mail.sender, mail.receiver} == {"r1", "r3"}
    first = Asked()
    one.raft.propose(b"\0A", first)
    stage.run(0.2)
    assert first.applied and first_disk.applied[-1:] == [b"A"]

    # r3 loses its disk, and copies the log of r0, which has not noticed anything.
    assert deposed.is_leader(), "within the second"
    stage.isolate("r0", "r3")
    copied = deposed.disk.frozen()
    begins = has_promised_nothing("r3", deposed.journal.members.since(0), lambda: asked(stage, "r0"))
    assert begins is None
    bring(stage, disk=copied, joining=True, learner=not begins)

    # What r1 had sent about members reaches r0 late, and r1 is away by then.
    stage.route = lambda mail: late(mail, of_members)
    stage.awake = {"r1"}
    stage.run(0.5)
    stage.route = lambda mail: {mail.sender, mail.receiver} == {"r0", "r3"}
    stage.awake = {"r0"}
    stage.run(3.0)
    second = Asked()
    deposed.raft.propose(b"\0B", second)
    stage.run(0.5)
    assert deposed.raft.members.voters == ("r0", "r1", "r3")
    assert not second.applied, "it would be committed in the place of what was acknowledged"


def late(mail: Mail, last: int) -> bool:
    """From r1 to r0, up to an entry; and the answers."""
    if {mail.sender, mail.receiver} != {"r0", "r1"}:
        return False
    entries = mail.message.get("entries")
    if entries:
        mail.message["entries"] = [entry for entry in entries if entry[1] <= last]
    return True


def lead(stage: Stage, name: str) -> None:
    for _ in range(200):
        stage.run(0.01)
        if stage.members[name].raft.ready:
            return
    raise AssertionError(f"{name} does not lead")


def until_taken(stage: Stage, leader: OurMember, act: Act, replica: str) -> None:
    for _ in range(100):
        asked = ask(leader, act, replica)
        stage.run(0.02)
        if asked.applied:
            return
    raise AssertionError(f"{act} of {replica}: {asked.calls}")
