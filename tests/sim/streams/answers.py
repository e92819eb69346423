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
from escrowmq.replication.host.running import RunningReplica
from escrowmq.replication.replica.replica import Replica
from tests.sim.across.wire import LONG_POLL_STEP_S, SimRunning, Wire
from tests.sim.broker_app import BrokerApplication
from tests.sim.fibres import Fibres
from tests.sim.group_service import service_of

if TYPE_CHECKING:
    from tests.sim.across.simulation import Part
    from tests.sim.replica import SimReplica

READS = frozenset(("offsets", "topics", "committed", "fetch_ends"))
GROUPS: dict[str, Callable[[GroupService], Callable[..., Reply]]] = {
    "group_join": lambda groups: groups.join,
    "group_heartbeat": lambda groups: groups.heartbeat,
    "group_leave": lambda groups: groups.leave,
    "commit_offsets": lambda groups: groups.commit,
}


class _Running(SimRunning):
    """With what reads ask besides."""

    closed = False
    replica: Replica

    def check_open(self) -> None: ...


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
        reads = Reads(cast(RunningReplica, _Running(replica, app)))
        if method in GROUPS:
            self._fibres.start(replica.name, self._coordinate, replica, app, method, args, answer)
        elif method == "fetch":
            self._fetch(replica, app, args, answer, self._world.now + args[2])
        elif method == "held_places":
            answer(reads.places(*args))
        elif method in READS:
            try:
                answer(getattr(reads, method)(*args))
            except EscrowMQError as error:
                answer(_Failed(error))
        else:
            super()._method(replica, app, method, args, answer)

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
