"""A replica was replaced and its old process has answered the leader until now. The leader must not remove
another voter on the strength of these answers: the successor is empty, and the group would need it."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.members import Act
from tests.support.asking import ask
from tests.support.stage import OurMember, Stage

NEW = Incarnation(1, "new")


class Three(Stage):
    """r0, r1 and r2, which have shown each other their incarnations."""

    def __init__(self) -> None:
        super().__init__(["r0", "r1", "r2"])
        self.owns = {name: Incarnation(0, name) for name in self.names}
        for name in self.names:
            self.add(self.member(name))
        for name in self.names:
            for other in self.names:
                if other != name:
                    self.meet(name, other)

    def member(self, name: str, **named: Any) -> OurMember:
        return OurMember(self, name, marks=Incarnations(self.owns[name]), **named)

    def meet(self, name: str, other: str) -> None:
        """One end of a link: the greeting said who the other end is."""
        raft = self.members[name].raft
        assert raft.marks.admit(other, self.owns[other]) is None
        raft.connected(other)

    def replace_r1(self) -> None:
        """The links lead to the successor from now on; it has not asked anything yet."""
        self.owns["r1"] = NEW
        self.members["r1"] = self.member("r1", learner=True)
        for other in ("r0", "r2"):
            self.members[other].raft.disconnected("r1")
            self.meet(other, "r1")
            self.meet("r1", other)


@pytest.mark.parametrize("linked", [False, True])
def test_a_process_that_was_replaced_is_not_counted_upon(linked: bool) -> None:
    """The leader has heard of the successor and still has its link with the old process, or has just got a
    link with the successor. Then the successor is cut off for a while."""
    stage = Three()
    leader = stage.elect("r0")
    leader.propose(b"one")
    stage.run(0.2)
    if linked:
        stage.replace_r1()
    else:
        leader.raft.marks.learn([("r1", *NEW)])
    removed = ask(leader, Act.REMOVE, "r2")
    assert removed.calls != []
    if not linked:
        stage.replace_r1()
    stage.isolate("r1")
    stage.run(2.0)
    stage.heal()
    stage.run(10.0)
    leads = [name for name in stage.names if stage.members[name].raft.ready]
    assert "the voters have no sound majority" in removed.why
    assert leads and not stage.members["r1"].raft.rejoining
    again = ask(stage.members[leads[0]], Act.REMOVE, "r2" if leads != ["r2"] else "r1")
    stage.run(0.2)
    assert again.applied
