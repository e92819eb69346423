"""Calls of clients to replicas, in place of Ray, with losses and with copies that arrive much later.

A call may or may not reach a replica, its answer may or may not come back, and the end of a replica is
noticed some time later or never. Nothing is retried here; the clients' own channels do that.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer
from escrowmq.replication.calling.answers import Leadership, Reply
from escrowmq.replication.errors import EscrowMQError, InvalidMessage
from escrowmq.replication.host.due_checks import DueChecks
from escrowmq.replication.host.inspection import Inspection
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import StateMachine
from tests.sim.across import share_calls
from tests.sim.group.broker_app import BrokerApplication, number_of
from tests.sim.group.supervisor import members_of

if TYPE_CHECKING:
    from tests.sim.across.simulation import Part
    from tests.sim.group.replica import SimReplica

WAY_S = 0.0005
LOST = 0.02  # share of requests, and of answers
#: Time until a caller learns that a process has ended. If it does not learn it, its own time-out has to help.
DEATH_NOTICED_S = (0.05, 0.5, 2.0)
DEATH_UNNOTICED = 0.3
#: Delay of a copy: it usually arrives after the decision and, with small tables, after that is forgotten.
COPY_LATER_S = (0.3, 1.5, 4.0)
LONG_POLL_STEP_S = 0.05


class ProcessLost(EscrowMQError):
    """Ray's error for a process that has ended."""


class SimRunning:
    """The running process as needed for answering questions about a replica; events replace its thread."""

    def __init__(self, replica: SimReplica, app: BrokerApplication) -> None:
        self.node, self.replica = replica.node, app.replica
        self.checks_due = _NoWait()
        self.now_ms, self.journal = app.now_ms, replica.journal

    def led(self, read: Callable[[], Any]) -> Reply:
        return ("ok", read()) if self.node.ready else self.replica.not_leader()

    def if_leading(self, read: Callable[[StateMachine], Any]) -> Reply:
        return ("ok", read(self.replica.state)) if self.node.ready else self.replica.not_leader()

    def later(self, work: Callable[[], None]) -> None:
        work()

    def leaving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def leave(self, error: EscrowMQError) -> EscrowMQError:
        return error  # whoever guards the replica ends it


class _NoWait:
    """Replaces waiting for due checks: it looks once, and ``Wire`` looks again later."""

    def wait_for(self, attempt: Callable[[], Reply | None], wait_s: float) -> Reply | None:
        return attempt()


class Wire:
    """The connection from clients to all replicas of all groups."""

    def __init__(self, parts: list[Part], late_copies: float) -> None:
        self._parts, self._late = parts, late_copies
        self._world = parts[0].world
        self._rng = self._world.stream("wire")
        self._of_members = self._world.stream("wire-members")  # separate: other calls keep their stream
        self.answers: Counter[str] = Counter()

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See ``ReplicaCalls``."""
        part, calm = self._parts[gid], self._parts[gid].calm
        if not calm and (part.clients_cut or self._luck(method).random() < LOST):
            return
        if rid == SUPERVISOR_RID:
            self._world.later(WAY_S, self._ask_supervisor, part, method, done)
            return
        self._world.later(WAY_S, self._arrive, part, rid, method, args, done)
        if method == "submit" and not calm and self._rng.random() < self._late and self.may_repeat(args[0]):
            pause = self._rng.choice(COPY_LATER_S) * (0.5 + self._rng.random())
            self._world.later(pause, self._copy_arrives, part, args)

    def close(self) -> None: ...

    def may_repeat(self, request: bytes) -> bool:
        """Whether a copy of a request may arrive much later."""
        return True

    def _luck(self, method: str) -> random.Random:
        return self._of_members if method in ("members", "members_of") else self._rng

    def _ask_supervisor(self, part: Part, method: str, done: OnAnswer) -> None:
        """Ask the supervisor, which knows the members of every group."""
        assert method == "members_of"
        self._world.later(WAY_S, done, part.supervisor.members(), None)

    def _copy_arrives(self, part: Part, args: tuple[Any, ...]) -> None:
        """Deliver a copy to the present leader; nothing waits for its answer."""
        leading = [r for r in part.replicas if r.up and r.node.ready and not part.world.now < r.paused_until]
        if leading and not part.copies_over:
            part.many.struck("late-copy", leading[0].name)
            self._do(part, leading[0], "submit", args, lambda answer, error: None)

    def _arrive(self, part: Part, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        replica = part.numbered(rid)
        if replica is None or not replica.up:
            self._gone(part, done)
        elif self._world.now < replica.paused_until:  # it waits in the process's queue
            wait_s = replica.paused_until - self._world.now + WAY_S
            self._world.later(wait_s, self._arrive, part, rid, method, args, done)
        else:
            self._do(part, replica, method, args, done)

    def _gone(self, part: Part, done: OnAnswer) -> None:
        if part.calm or self._rng.random() >= DEATH_UNNOTICED:
            pause = self._rng.choice(DEATH_NOTICED_S)
            self._world.later(pause, done, None, ProcessLost("the process is gone"))

    def _do(
        self, part: Part, replica: SimReplica, method: str, args: tuple[Any, ...], done: OnAnswer
    ) -> None:
        incarnation, ended = replica.incarnation, False

        def answer(reply: Any) -> None:
            nonlocal ended
            assert not ended, "a call was answered twice"
            ended = True
            if method == "submit":
                self.answers[reply[0]] += 1
            lost = part.clients_cut or self._luck(method).random() < LOST
            if part.calm or not lost:
                self._world.later(WAY_S, done, reply, None)

        def look() -> None:
            if ended:
                return
            if replica.incarnation != incarnation or not replica.up:
                self._gone(part, done)
            else:
                self._world.later(0.5, look)

        app = replica.app
        assert isinstance(app, BrokerApplication)
        app.cluster = part
        replica.guarded(lambda: self._method(replica, app, method, args, answer))
        if replica.up:
            replica.kick()
        if not ended:
            self._world.later(0.5, look)

    # -------------------------------------------------------------- what a replica answers

    def _method(
        self,
        replica: SimReplica,
        app: BrokerApplication,
        method: str,
        args: tuple[Any, ...],
        answer: Callable[[Any], None],
    ) -> None:
        running = cast(RunningReplica, SimRunning(replica, app))
        if method in ("submit", "follow"):
            self._submit(replica, app, args[0], answer, from_broker=method == "follow")
        elif method == "whoami":
            node = replica.node
            leader = None if node.leader_id is None else number_of(node.leader_id)
            answer(Leadership(node.ready, leader, node.term))
        elif method == "members":
            answer(members_of(replica))
        elif method in share_calls.METHODS:
            share_calls.share_call(replica, running, method, args, answer)
        elif method == "due_pairs":
            self._due_pairs(replica, DueChecks(running), args, answer, self._world.now + args[-1])
        elif hasattr(DueChecks, method):
            answer(getattr(DueChecks(running), method)(*args))
        else:
            answer(getattr(Inspection(running), method)(*args))

    def _submit(
        self,
        replica: SimReplica,
        app: BrokerApplication,
        request: bytes,
        answer: Callable[[Any], None],
        *,
        from_broker: bool,
    ) -> None:
        group_and_count = app.replica.state.gid, app.replica.state.groups
        try:
            ops = parse_request(request, from_broker=from_broker, group_and_count=group_and_count)
        except InvalidMessage as error:
            answer(("malformed", str(error)))
            return
        if replica.node.readiness.disk_full:
            answer(("disk_full", 0.1))
        else:
            app.replica.submit(request, ops, answer)

    def _due_pairs(
        self,
        replica: SimReplica,
        due: DueChecks,
        args: tuple[Any, ...],
        answer: Callable[[Any], None],
        until: float,
    ) -> None:
        """A long poll, simulated by looking repeatedly."""
        status, *rest = due.due_pairs(*args)
        if status != "ok" or rest[0].pairs or self._world.now >= until:
            answer((status, *rest))
        else:
            replica.later(LONG_POLL_STEP_S, lambda: self._due_pairs(replica, due, args, answer, until))
