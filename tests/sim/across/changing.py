"""Operators who change the members of one of several groups: what they ask a leader goes through the broker's
own code (``MemberChanges``), with the version of the members that they have seen.

So it needs the format level of the log's entries of members, refuses what can never be, and does nothing for
a question that comes when another step was taken instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from escrowmq.replication.calling.answers import Reply, StepTaken
from escrowmq.replication.format.membership import Members, id_number, in_order
from escrowmq.replication.host.member_changes import LEVEL, MemberChanges
from escrowmq.replication.host.running import RunningReplica
from escrowmq.replication.raft.members import Goal, Step
from escrowmq.replication.raft.node import RaftNode
from tests.sim.broker_app import BrokerApplication
from tests.sim.members import Change, Operators

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica
    from tests.sim.simulation import Simulation


class BrokerOperators(Operators):
    """Those of one of several groups. ``changeable``: it will reach the format level that this takes."""

    def __init__(self, simulation: Simulation, *, changeable: bool) -> None:
        super().__init__(simulation)
        self.given_up = 0
        self._changeable = changeable

    def begin(self, rng: random.Random) -> str:
        return super().begin(rng) if self._changeable else ""

    def _ask_leader(self, change: Change, leader: SimReplica, version: int) -> None:
        assert isinstance(leader.app, BrokerApplication)
        if leader.app.replica.state.level >= LEVEL:  # before that the supervisor places nobody
            for name in change.goal.add:
                self._place(change, name)
        changes = MemberChanges(cast(RunningReplica, _Running(leader, leader.app)))
        goal = Goal(change.goal.id, _numbers(change.goal.add), _numbers(change.goal.remove))
        answer: Future[Reply] = Future()
        answer.add_done_callback(lambda done: self._answered(change, leader, done.result()))
        leader.guarded(lambda: changes._take_step(goal, version, answer))
        leader.kick()

    def _answered(self, change: Change, leader: SimReplica, reply: Reply) -> None:
        if change not in self.under_way:
            return  # another answer has ended it
        status, *rest = reply
        change.refused += status in ("not_yet", "refused", "unsupported")
        if status == "refused":
            self._give_up(change, leader.node.members)
        elif status == "ok":
            taken: StepTaken = rest[0]
            change.steps += taken.act in ("ADD", "PROMOTE", "REMOVE", "DROP")
            if taken.act == "DONE":
                self._finish(change, leader.node.members)

    def _place(self, change: Change, name: str) -> None:
        """A process for one that is to come, before the log knows of it."""
        if name not in change.created and name not in self._sim.network.hosts:
            change.created.add(name)
            self._create(name)

    def _give_up(self, change: Change, members: Members) -> None:
        """It was asked for what can never be: another change has used the number up, or took who was to
        stay. A process that was placed for it and is no member ends."""
        self.under_way.remove(change)
        self.given_up += 1
        for name in in_order(change.created):
            left = next((r for r in self._sim.replicas if r.name == name), None)
            if left is not None and name not in members.all:
                self._sim.retire(left)
                left.give_up("its number was passed over")
        self.wanted = {replica.name for replica in self._sim.replicas}
        for other in self.under_way:
            self.wanted = self.wanted - {*other.goal.remove} | {*other.goal.add} - {*self._removed}


class _Running:
    """What ``MemberChanges`` needs of the process around a replica."""

    def __init__(self, replica: SimReplica, app: BrokerApplication) -> None:
        self.node, self.replica = _Numbered(replica), app.replica


class _Numbered:
    """A node as it is where replicas have numbers, and no names before them."""

    def __init__(self, replica: SimReplica) -> None:
        self._node: RaftNode = replica.node
        self._before = replica.name[: -len(_number(replica.name))]
        self.id = _number(replica.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    @property
    def members(self) -> Members:
        told = self._node.members
        return Members(
            told.version, _numbers(told.voters), _numbers(told.learners), told.change_id, told.highest
        )

    def caught_up(self, learner: str) -> bool:
        return self._node.caught_up(self._before + learner)

    def change_members(self, step: Step, change_id: str, done: Callable[[Any, bool | None], None]) -> None:
        self._node.change_members(Step(step.act, self._before + step.replica), change_id, done)


def _number(name: str) -> str:
    return str(id_number(name))


def _numbers(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_number(name) for name in names)
