"""A leader hands out nothing that was acknowledged before the call, even if it was deposed and does not know.

Each scene is played with one part of the rule taken away, too: then the acknowledged message is handed out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.replicator import Replicator
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest, LeaseDispatcher
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition
from tests.controls.round_faults import (
    a_link_that_is_up_again,
    an_answer_of_a_learner,
    an_answer_of_an_earlier_round,
    hands_out_before_it_is_ready,
)
from tests.support.final_ranges import FinalSet
from tests.support.stage import Mail, OurMember, Stage

LEASED_FOR_S = 0.3


class SharingMember(OurMember):
    """A replica whose only state is which of ten messages are acknowledged: it applies ``ack N``."""

    def __init__(self, stage: Stage, name: str, **named: Any) -> None:
        super().__init__(stage, name, **named)
        self._stage, index = stage, PartitionIndex()
        index.append(1, 0, 100, 10, 0)
        partition = Partition(0, "orders", 0, index, 1)
        state = SimpleNamespace(
            applied_index=0,
            topics=SimpleNamespace(
                topics={"orders": SimpleNamespace(partitions={0: partition})}, slots={0: partition}
            ),
            shares=SimpleNamespace(full=False, get=lambda group, partition: self.final()),
        )
        self.desk = LeaseDispatcher(
            cast(StateMachine, state), lambda frame, partition: None, lambda: ("not_leader",)
        )
        self.desk.attach(self.raft)

    def final(self) -> FinalSet:
        found = FinalSet()
        for command in self.applied:
            found.add(int(command[4:]), int(command[4:]))
        return found

    def tick(self) -> None:
        super().tick()
        if not self.raft.ready:
            self.desk.resign()
        self.desk.step(self.now_ms())

    def deliver(self, mail: Mail) -> None:
        super().deliver(mail)
        self.desk.step(self.now_ms())

    def now_ms(self) -> int:
        return int(self._stage.now * 1000)

    def asked(self) -> Asked:
        asked = Asked()
        self.desk.acquire(
            AcquireRequest("mail", "m", ("orders",), 1, 1 << 20, 30_000, self.now_ms(), asked.answers.append),
            self.now_ms(),
        )
        self.desk.step(self.now_ms())
        return asked


class Asked:
    """A call for one message."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    @property
    def offset(self) -> int | None:
        """What it got; None: nothing (yet)."""
        rows = self.answers[0][1] if self.answers and self.answers[0][0] == "ok" else []
        return rows[0].taken[0].first if rows else None


def group() -> tuple[Stage, SharingMember]:
    """r0 leads, and has handed out message 0 of those that all can see."""
    stage = Stage(["r0", "r1", "r2"])
    for name in stage.names:
        stage.add(SharingMember(stage, name))
    stage.open()
    leader = stage.elect("r0")
    first = leader.asked()
    stage.run(0.02)
    assert first.offset == 0
    leader.desk.release("mail", "m", "orders", 0, [(0, 9)])
    return stage, leader


def deposed(stage: Stage, *, break_links: bool = True) -> None:
    """r1 leads with r2, and message 0 is acknowledged there. r0 hears nothing of it."""
    stage.isolate("r0")
    if break_links:  # they see at once that r0 is gone
        for name in ("r1", "r2"):
            stage.members[name].raft.disconnected("r0")
    acknowledge(stage, "r1")
    assert stage.members["r0"].is_leader(), "it does not know"


def acknowledge(stage: Stage, name: str) -> None:
    member = stage.members[name]
    stage.awake = {name}
    for _ in range(100):
        stage.run(0.01)
        if member.raft.ready:
            break
    assert member.raft.ready
    member.propose(b"ack 0")
    stage.run(0.03)
    assert member.applied == [b"ack 0"]
    stage.awake = set(stage.names)


def test_a_leader_answers_once_a_majority_has_answered() -> None:
    stage, leader = group()
    asked = leader.asked()
    assert not asked.answers, "not before anybody has answered"
    stage.run(0.01)
    assert asked.offset == 0


def test_one_round_serves_all_who_wait_for_it() -> None:
    stage, leader = group()
    before = leader.desk.rounds
    asked = [leader.asked() for _ in range(5)]
    stage.run(0.01)
    assert [each.offset for each in asked] == [0, 1, 2, 3, 4]
    assert leader.desk.rounds == before + 2, "that of the first, and one for those who came during it"


def test_a_single_replica_asks_nobody() -> None:
    stage = Stage(["r0"])
    stage.add(SharingMember(stage, "r0"))
    stage.open()
    assert stage.elect("r0").asked().offset == 0


# ------------------------------------------------------------------ scenes, and what is taken away


def a_lease_of_leadership(patch: pytest.MonkeyPatch) -> None:
    """Who answered within the minimum election time-out elects nobody else: but a broken link ends that."""
    answered, heard_at = Replicator.answered, dict[str, float]()

    def note(self: Replicator, peer: str, message: RaftMessage) -> None:
        answered(self, peer, message)
        heard_at[peer] = self._clock()

    patch.setattr(Replicator, "answered", note)
    patch.setattr(
        Replicator,
        "leads_since",
        lambda self, check: any(self._clock() - at < LEASED_FOR_S for at in heard_at.values()),
    )


def deposed_long_ago(stage: Stage) -> Asked:
    deposed(stage, break_links=False)
    return asked_alone(stage)


def deposed_when_links_broke(stage: Stage) -> Asked:
    deposed(stage)
    return asked_alone(stage)


def deposed_during_the_round(stage: Stage) -> Asked:
    """The question is lost with the link. When r0 has a link to r2 again, r2 follows r1."""
    stage.isolate("r0")
    asked: Asked = stage.members["r0"].asked()
    deposed(stage)
    assert asked.offset is None
    stage.members["r0"].raft.disconnected("r2")
    stage.members["r0"].connect("r2")
    stage.awake = {"r0"}
    stage.run(0.05)
    return asked


def deposed_with_the_help_of_a_lost_disk(stage: Stage) -> Asked:
    """r2 elected r1, stored the ack, and has lost its disk since. It knows of no later term."""
    deposed(stage)
    stage.add(again := SharingMember(stage, "r2", learner=True))
    leader = stage.members["r0"]
    leader.raft.disconnected("r2")
    leader.connect("r2")
    again.connect("r0")
    stage.isolate("r1")
    stage.awake = {"r0", "r2"}
    asked: Asked = leader.asked()
    stage.run(0.05)
    assert leader.is_leader()
    return asked


def elected_and_not_ready(stage: Stage) -> Asked:
    """r0 has acknowledged; r1 has that entry in its log, and does not know yet that it is committed."""
    first, second, third = (stage.members[name] for name in stage.names)
    first.propose(b"ack 0")
    while not first.applied:
        stage.run(0.01)
    assert not second.applied
    stage.isolate("r0")
    for member in (second, third):
        member.raft.disconnected("r0")
    stage.awake, third.disk_stalls = {"r1"}, True  # r2 votes, and takes no entry
    while not second.is_leader():
        stage.run(0.01)
    asked: Asked = second.asked()
    stage.run(0.03)
    return asked


def asked_alone(stage: Stage) -> Asked:
    """By a client that reaches only r0, which reaches nobody."""
    stage.awake = {"r0"}
    asked: Asked = stage.members["r0"].asked()
    stage.run(0.03)
    return asked


SCENES: list[tuple[Callable[[Stage], Asked], Callable[[pytest.MonkeyPatch], None]]] = [
    (deposed_long_ago, an_answer_of_an_earlier_round),
    (deposed_when_links_broke, a_lease_of_leadership),
    (deposed_during_the_round, a_link_that_is_up_again),
    (deposed_with_the_help_of_a_lost_disk, an_answer_of_a_learner),
    (elected_and_not_ready, hands_out_before_it_is_ready),
]


@pytest.mark.parametrize(("scene", "fault"), SCENES)
def test_what_was_acknowledged_before_the_call_is_not_handed_out(
    scene: Callable[[Stage], Asked], fault: object
) -> None:
    stage, _ = group()
    assert scene(stage).offset is None


@pytest.mark.parametrize(("scene", "fault"), SCENES)
def test_planted_without_that_part_of_the_rule_it_is(
    monkeypatch: pytest.MonkeyPatch,
    scene: Callable[[Stage], Asked],
    fault: Callable[[pytest.MonkeyPatch], None],
) -> None:
    fault(monkeypatch)
    stage, _ = group()
    assert scene(stage).offset == 0


def test_who_waits_at_a_deposed_leader_is_sent_away() -> None:
    stage, _ = group()
    deposed(stage)
    asked = asked_alone(stage)
    stage.run(2.0)
    assert asked.answers == [("not_leader",)]
