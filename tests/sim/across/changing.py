"""Operators who change the members of one of several groups. Their requests to a leader go through the
broker's own code (``MemberChanges``), with the version of the members that they have seen.

The leader refuses a change that can never be done, and does nothing for a request that arrives after another
step was taken: a step that it takes under members that the operator has not seen is a ``late-step``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from escrowmq.replication.calling.answers import Reply, StepTaken
from escrowmq.replication.format.membership import Members, id_number, in_order
from escrowmq.replication.host.member_changes import MemberChanges
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.raft.members import Goal, Step
from escrowmq.replication.raft.node import RaftNode
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.members import Change, Operators

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation


#: Steps that change the members.
STEPS = ("ADD", "PROMOTE", "REMOVE", "DROP")


class BrokerOperators(Operators):
    """The operators of one of several groups."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.given_up = 0

    def _ask_leader(self, change: Change, leader: SimReplica, version: int) -> None:
        assert isinstance(leader.app, BrokerApplication)
        for name in change.goal.add:
            self._place(change, name)
        changes = MemberChanges(cast(RunningReplica, _Running(leader, leader.app)))
        goal = Goal(change.goal.id, _numbers(change.goal.add), _numbers(change.goal.remove))
        answer: Future[Reply] = Future()
        late = version != leader.node.members.version
        answer.add_done_callback(lambda done: self._answered(change, leader, done.result(), late))
        leader.guarded(lambda: changes._take_step(goal, version, answer))
        leader.kick()

    def _answered(self, change: Change, leader: SimReplica, reply: Reply, late: bool) -> None:
        if late and reply[0] == "ok" and reply[1].act in STEPS:
            text = f"{leader.name} took the step {reply[1].act} of {change.goal} for an outdated look"
            self._sim.world.later(0.0, _report, text)  # a future would swallow the exception
        if change not in self.under_way:
            return  # another answer has ended this change
        status, *rest = reply
        change.refused += status in ("not_yet", "refused")
        if status == "refused":
            self._give_up(change, leader.node.members)
        elif status == "ok":
            taken: StepTaken = rest[0]
            change.steps += taken.act in STEPS
            if taken.act == "DONE":
                self._finish(change, leader.node.members)

    def _place(self, change: Change, name: str) -> None:
        """Create the process of a future member, before the log names it."""
        if name not in change.created and name not in self._sim.network.hosts:
            change.created.add(name)
            self._create(name)

    def _give_up(self, change: Change, members: Members) -> None:
        """End a change that can never be done: another change has used its number, or has removed a replica
        that should stay. A process that was created for it ends if it is not a member."""
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
    """The parts of a replica's process that ``MemberChanges`` needs."""

    def __init__(self, replica: SimReplica, app: BrokerApplication) -> None:
        self.node, self.replica = _Numbered(replica), app.replica


class _Numbered:
    """A node whose replicas are identified by their numbers alone, as in a broker: ``1`` for ``g0r1``."""

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


def _report(text: str) -> None:
    raise Violation(text, "late-step")


def _number(name: str) -> str:
    return str(id_number(name))


def _numbers(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_number(name) for name in names)
