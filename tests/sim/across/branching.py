"""A group leader's work on transactions over several groups, in virtual time, with the real class and calls.

An object belongs to one life of a replica: answers to calls that are pending at its end are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.replica.branches import Branches
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import Result
from tests.sim.across.turns import WorldTurns
from tests.sim.clients.workload import ReplicaContext
from tests.sim.group.broker_app import BrokerApplication

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

STEP_S = 0.05
CALL_S = 2.0


class SimBranches:
    """The work on branches in one life of one replica."""

    def __init__(self, app: BrokerApplication, context: ReplicaContext, clients: AcrossWorkload) -> None:
        self._app, self._context, self._clients = app, context, clients
        world, scene = clients.many.world, clients.scene
        info = ClusterInfo("sim", "sim", scene.groups, scene.size)
        self._turns = WorldTurns(world, clients.wire, info, ChannelConfig(), context.rng)
        self.branches = Branches(app.replica.state, self, lambda text: None)  # the history's checker judges
        app.beside.append(self.branches)
        context.later(STEP_S, self._step)

    def end(self) -> None:
        """The replica's process is gone."""
        self._turns.dead = True

    def _step(self) -> None:
        self._context.later(STEP_S, self._step)
        raft = self._app.replica.raft
        if raft is None or not raft.ready:
            self.branches.resign()
            return
        self.branches.step(self._app.now_ms())

    def _too_large(self, request: object) -> bool:
        """Whether the other broker, or this one's log, refuses the request because of its size."""
        most = self._clients.scene.request_bytes
        large = isinstance(request, bytes) and len(request) > most
        self._clients.did["too large for a broker"] += large
        return large

    def call(self, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """See ``Links``."""
        if self._too_large(args[0]):
            self._context.later(0.0, lambda: done(None))
            return

        def answered(future: Future[Any]) -> None:
            answer = None if future.exception() is not None else future.result()
            self._context.later(0.0, lambda: done(answer if type(answer) is list else None))

        self._turns.leader_call(gid, method, *args, timeout_s=CALL_S).add_done_callback(answered)

    def write(self, request: bytes, done: Callable[[Sequence[Result] | None], None]) -> None:
        """See ``Links``."""
        if self._too_large(request):
            self._context.later(0.0, lambda: done(None))
            return
        ops = parse_request(request, from_broker=True)
        self._app.replica.submit(request, ops, lambda reply: done(reply[1] if reply[0] == "ok" else None))
