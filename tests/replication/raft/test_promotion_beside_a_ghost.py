"""A replica was replaced and its old process lives on, seen only by a learner: a learner is not asked when
the successor begins to count. The learner becomes a voter only when it has closed its link with the old
process, or learns with every vote that it gets who was replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.members import Act
from tests.support.asking import Asked, ask
from tests.support.stage import Mail, Message, OurMember, Stage

OLD, NEW = Incarnation(0, "old"), Incarnation(1, "new")


class TwoOfOne(Stage):
    """r0, r1 and r2 with the learner r3. ``faithful``: those that still talk with r1's old process, the
    ghost."""

    def __init__(self) -> None:
        super().__init__(["r0", "r1", "r2"])
        self.ghost: OurMember | None = None
        self.faithful: set[str] = set()
        self.owns: dict[str, Incarnation] = {name: Incarnation(0, name) for name in ("r0", "r2", "r3")}
        self.owns["r1"] = OLD
        for name in self.names:
            self.add(self.member(name))
        for name in self.names:
            for other in self.names:
                if other != name:
                    self.meet(name, other)

    def member(self, name: str, **named: Any) -> OurMember:
        marks = Incarnations(self.owns[name])
        return OurMember(self, name, marks=marks, drop_link=lambda peer: self.dropped(name, peer), **named)

    def meet(self, name: str, other: str) -> None:
        """One end of a link: the greeting said who the other end is."""
        raft = self.members[name].raft
        assert raft.marks.admit(other, self.owns[other]) is None
        raft.connected(other)

    def dropped(self, name: str, peer: str) -> None:
        """A link to a replaced process is closed; another one is made to its successor."""
        if name not in self.faithful or peer != "r1":
            return
        self.faithful.discard(name)
        self.members[name].raft.disconnected(peer)
        self.members[name].raft.connected(peer)
        self.meet(peer, name)

    def hand_over(self, mail: Mail) -> None:
        if mail.receiver == "r1" and mail.sender in self.faithful:
            assert self.ghost is not None
            self.ghost.deliver(mail)
        else:
            super().hand_over(mail)

    def replace_r1(self) -> OurMember:
        """r0 and r2 meet the successor, r3 keeps its link with the old process."""
        ghost = self.ghost = self.members["r1"]
        ghost._stage = _OnlyToTheFaithful(self)
        self.faithful = {"r3"}
        self.owns["r1"] = NEW
        successor = self.members["r1"] = self.member("r1", learner=True)
        for other in ("r0", "r2"):
            self.members[other].raft.disconnected("r1")
            self.meet(other, "r1")
            self.meet("r1", other)
        return successor


class _OnlyToTheFaithful:
    def __init__(self, stage: TwoOfOne) -> None:
        self._stage = stage

    def post(self, sender: str, receiver: str, message: Message) -> bool:
        if receiver in self._stage.faithful:
            self._stage.mail.append(Mail(sender, receiver, dict(message)))
        return True


def with_a_learner() -> TwoOfOne:
    stage = TwoOfOne()
    leader = stage.elect("r0")
    stage.names.append("r3")
    stage.awake.add("r3")
    stage.add(stage.member("r3", joining=True))
    for other in ("r0", "r1", "r2"):
        stage.members[other].raft.told_of("r3")
        stage.meet(other, "r3")
        stage.meet("r3", other)
    ask(leader, Act.ADD, "r3")
    stage.run(0.3)
    leader.propose(b"one")
    stage.run(0.2)
    return stage


def test_a_learner_votes_when_it_has_confirmed_who_was_replaced() -> None:
    stage = with_a_learner()
    leader = stage.members["r0"].raft
    assert leader.caught_up("r3")
    stage.route = lambda mail: mail.message["type"] != "marks_held"
    successor = stage.replace_r1()
    stage.run(1.0)
    assert not successor.raft.rejoining, "it counts again"
    assert not leader.caught_up("r3")
    assert "has not confirmed" in ask(stage.members["r0"], Act.PROMOTE, "r3").why
    assert stage.members["r3"].raft.marks.of("r1") == NEW and not stage.faithful
    stage.heal()
    stage.run(0.3)
    assert leader.caught_up("r3") and ask(stage.members["r0"], Act.PROMOTE, "r3").calls == []


def test_every_vote_tells_who_was_replaced() -> None:
    """Also in a group whose members never changed."""
    stage, votes = TwoOfOne(), list[Message]()
    stage.route = lambda mail: mail.message["type"] != "response_vote" or not votes.append(mail.message)  # type: ignore[func-returns-value]
    stage.elect("r0")
    told = [{peer: Incarnation(*mark) for peer, *mark in vote["marks"]} for vote in votes]
    assert told and all(marks["r0"] == Incarnation(0, "r0") for marks in told)


def test_what_another_disk_of_the_learner_has_confirmed_does_not_count() -> None:
    stage = with_a_learner()
    stage.replace_r1()
    stage.run(1.0)
    leader = stage.members["r0"].raft
    assert leader.caught_up("r3")
    leader.marks.admit("r3", Incarnation(1, "another"))
    assert not leader.caught_up("r3")


def test_there_are_never_two_majorities() -> None:
    """The votes at r3's election would also have told it."""
    stage = with_a_learner()
    stage.replace_r1()
    stage.run(1.0)
    assert ask(stage.members["r0"], Act.PROMOTE, "r3").calls == []
    stage.run(0.3)
    two = stage.elect("r2")
    stage.run(0.3)
    assert two.raft.members.voters == ("r0", "r1", "r2", "r3")
    removed = ask(two, Act.REMOVE, "r0")
    stage.run(0.3)
    assert removed.applied
    stage.names.remove("r0")
    stage.awake.discard("r0")
    three = stage.elect("r3")

    ghost = stage.ghost
    assert ghost is not None
    first, second = Asked(), Asked()
    # r3 reaches only the ghost, if that.
    through = {("r3", "r1")} if stage.faithful else set()
    stage.route = lambda mail: (mail.sender, mail.receiver) in through
    three.raft.propose(b"\0A", first)
    stage.awake = {"r3"}
    for _ in range(30):
        stage.run(0.01)
        ghost.tick()
    stage.faithful = set()
    stage.members["r2"].raft.disconnected("r3")
    stage.members["r1"].raft.disconnected("r3")
    stage.route = lambda mail: {mail.sender, mail.receiver} == {"r1", "r2"}
    two = stage.elect("r2")
    stage.awake = {"r2"}
    two.raft.propose(b"\0B", second)
    stage.run(0.3)
    assert second.applied
    assert not first.applied, "without the successor r3 has no majority"
    assert b"A" not in two.applied


def promoted_unheard(stage: TwoOfOne, *, lost: bool) -> None:
    """r0 makes r3 a voter, which only r3 learns. ``lost``: the entry is not on r0's own disk either, and r0
    restarts without it."""
    leader = stage.members["r0"]
    leader.disk_stalls = lost
    stage.isolate("r0", "r3")
    stage.awake = {"r0"}
    assert ask(leader, Act.PROMOTE, "r3").calls == []
    stage.run(0.05)
    assert "r3" in stage.members["r3"].raft.members.voters
    if lost:
        leader.raft.close()
        leader.disk.power_cut()
        stage.names.remove("r3")
        stage.add(stage.member("r0", disk=leader.disk))
        stage.names.append("r3")
        stage.members["r0"].raft.told_of("r3")
        for other in ("r1", "r2", "r3"):
            stage.meet("r0", other)
        assert "r3" not in stage.members["r0"].raft.members.voters


def only(*pairs: tuple[str, str], kinds: Callable[[str], bool] = lambda kind: True) -> Callable[[Mail], bool]:
    """Lets messages pass between these pairs, and drops all others."""
    return lambda mail: (
        kinds(mail.message["type"])
        and ((mail.sender, mail.receiver) in pairs or (mail.receiver, mail.sender) in pairs)
    )


@pytest.mark.parametrize("lost", [False, True], ids=["r0 holds the entry", "r0 has lost the entry"])
def test_there_are_never_two_after_a_promotion_that_only_the_learner_heard_of(lost: bool) -> None:
    stage = with_a_learner()
    promoted_unheard(stage, lost=lost)
    stage.route = only(("r1", "r2"), kinds=lambda kind: kind != "append_entries")
    two = stage.elect("r2")

    successor = stage.replace_r1()
    asking, all_of_it = only(("r0", "r1"), kinds=lambda kind: "rejoin" in kind), only(("r1", "r2"))
    stage.route = lambda mail: asking(mail) or all_of_it(mail)
    stage.awake = {"r1", "r2"}
    stage.run(1.0)
    assert not successor.raft.rejoining, "it counts again"
    second = Asked()
    two.raft.propose(b"\0B", second)
    stage.run(0.3)
    assert second.applied

    stage.route, stage.awake = only(), {"r0"}
    stage.run(1.5)  # it no longer leads
    stage.route, stage.awake = only(("r0", "r3"), ("r1", "r3")), {"r3"}
    three, first = stage.members["r3"], Asked()
    for _ in range(300):
        stage.run(0.01)
        if three.is_leader():
            three.raft.propose(b"\0A", first)
            stage.run(0.3)
            break
    assert not three.is_leader()
    assert not first.applied, "two majorities would have committed two things"
    assert not stage.faithful, "a voter has told it of the successor"
