"""What replicas answer stream consumers in virtual time, and the way of these calls.

The broker's own code answers: ``Reads`` over the simulated process, and its group service. A fetch that finds
nothing is looked at again until its time is over, in place of being parked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from escrowmq.actors.broker.group_service import GroupService
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.host.reads import Reads
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.state.machine import StateMachine
from tests.sim.across.wire import LONG_POLL_STEP_S, SimRunning, Wire
from tests.sim.environment.fibres import Fibres
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.group_service import service_of

if TYPE_CHECKING:
    from tests.sim.across.simulation import Part
    from tests.sim.group.replica import SimReplica

READS = {
    "offsets": "offsets",
    "topics": "topics",
    "committed": "committed",
    "fetch_ends": "fetch_ends",
    "held_places": "places",
    "failed_attempts": "attempts",
}
GROUPS: dict[str, Callable[[GroupService], Callable[..., Reply]]] = {
    "group_join": lambda groups: groups.join,
    "group_heartbeat": lambda groups: groups.heartbeat,
    "group_leave": lambda groups: groups.leave,
    "group_describe": lambda groups: groups.describe,
    "commit_offsets": lambda groups: groups.commit,
}


class _Running(SimRunning):
    """With what reads ask besides. In a fibre, as reads of a leader wait for a majority."""

    closed = False
    replica: Replica

    def __init__(self, replica: SimReplica, app: BrokerApplication) -> None:
        super().__init__(replica, app)
        self.driver, self.setup, self._process = self, replica.name, replica

    def check_open(self) -> None: ...

    def submit(self, fn: Callable[[], None]) -> None:
        self._process.guarded(fn)
        if self._process.up:
            self._process.kick()

    def confirmed(self, read: Callable[[StateMachine], Any], *, in_loop: bool = False) -> Reply:
        return RunningReplica.confirmed(cast(RunningReplica, self), read, in_loop=in_loop)


class _Failed:
    """An error in place of an answer."""

    def __init__(self, error: EscrowMQError) -> None:
        self.error = error


class StreamWire(Wire):
    """The way of stream consumers to all replicas; its luck is its own, so that other calls keep theirs."""

    def __init__(self, parts: list[Part], fibres: Fibres) -> None:
        super().__init__(parts, 0.0)
        self._rng = self._of_members = self._world.stream("wire-streams")
        self._fibres = fibres

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See ``ReplicaCalls``."""

        def answered(answer: Any, error: BaseException | None) -> None:
            if isinstance(answer, _Failed):
                done(None, answer.error)
            else:
                done(answer, error)

        super().call(gid, rid, method, args, answered)

    def _luck(self, method: str) -> random.Random:
        return self._rng

    def _method(
        self,
        replica: SimReplica,
        app: BrokerApplication,
        method: str,
        args: tuple[Any, ...],
        answer: Callable[[Any], None],
    ) -> None:
        if method in GROUPS:
            self._fibres.start(replica.name, self._coordinate, replica, app, method, args, answer)
        elif method == "fetch":
            self._fetch(replica, app, args, answer, self._world.now + args[2])
        elif method in READS:
            self._fibres.start(replica.name, self._read, replica, app, READS[method], args, answer)
        else:
            super()._method(replica, app, method, args, answer)

    def _read(
        self,
        replica: SimReplica,
        app: BrokerApplication,
        method: str,
        args: tuple[Any, ...],
        answer: Callable[[Any], None],
    ) -> None:
        """In a fibre: a leader has its lead confirmed, and its process may end meanwhile."""
        incarnation = replica.incarnation
        try:
            reply = getattr(Reads(cast(RunningReplica, _Running(replica, app))), method)(*args)
        except EscrowMQError as error:
            reply = _Failed(error)
        if replica.up and replica.incarnation == incarnation:
            answer(reply)

    def _coordinate(
        self,
        replica: SimReplica,
        app: BrokerApplication,
        method: str,
        args: tuple[Any, ...],
        answer: Callable[[Any], None],
    ) -> None:
        """In a fibre: a commit waits for the log, and its process may end meanwhile."""
        incarnation = replica.incarnation
        service = service_of(self._world, replica, app)
        reply = service.waiting(self._fibres, lambda groups: GROUPS[method](groups)(*args))
        if replica.up and replica.incarnation == incarnation:
            answer(reply)

    def _fetch(
        self,
        replica: SimReplica,
        app: BrokerApplication,
        args: tuple[Any, ...],
        answer: Callable[[Any], None],
        until: float,
    ) -> None:
        requests, max_bytes, _ = args
        found = replica.guarded(lambda: app.replica.fetch(requests, max_bytes))
        if found is None:
            return  # the process has ended, or mends what it has found
        if any(part[2] or part[5] for part in found) or self._world.now >= until:
            answer(found)
        else:
            replica.later(LONG_POLL_STEP_S, lambda: self._fetch(replica, app, args, answer, until))
