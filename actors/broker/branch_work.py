"""Makes a broker bring transactions over several groups to their end: the shell around replica/branches.py.

A router of its own, with its one thread, calls the other groups; all decisions are made in the replica's
thread. While nothing waits, it only checks every STEP_S whether there is work, without disturbing the leader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.errors import Closed, Overloaded
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.replica.branches import Branches
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import Result

#: Pause between two checks of a leader, and of a follower, for which it only has to notice that it leads.
STEP_S, IDLE_S = 0.05, 0.25
#: Time for one call to another group, through its fail-overs; after it come a pause and then a new call.
CALL_S = 10.0


class BranchWork:
    """For one running replica, from its start to ``close``. See the module's docstring."""

    def __init__(
        self,
        running: RunningReplica,
        info: ClusterInfo,
        *,
        report: Callable[[str], None],
        calls: ReplicaCalls | None = None,
    ) -> None:
        """``calls``: how replicas are reached; None: by Ray."""
        self._running = running
        self.branches = Branches(running.replica.state, self, report)
        self._led = False
        self._next = 0.0
        name = f"escrowmq-branches-{running.gid}-{running.rid}"
        self._router = Router(info, calls=calls, clock=time.monotonic, name=name)
        self._router.attach(self)

    def close(self) -> None:
        """End all calls. Unfinished work is left to the next leader."""
        self._router.close()

    # ------------------------------------------------------------ the router's thread

    def pump(self, now: float) -> float:
        """See :class:`escrowmq.actors.client.client_loop.Source`."""
        if now >= self._next:
            leads = self._running.node.ready and not self._running.closed
            self._next = now + (STEP_S if leads else IDLE_S)
            if leads != self._led or (leads and self.branches.has_work()):
                self._led = leads
                self._soon(self._step)
        return self._next

    def stopped(self, detail: str) -> None:
        """See :class:`escrowmq.actors.client.client_loop.Source`."""

    def _soon(self, work: Callable[[], None]) -> None:
        try:
            self._running.driver.submit(work)
        except (Overloaded, Closed):  # the next step finds the work again
            return

    # ------------------------------------------------------------ the replica's thread

    def _step(self) -> None:
        if self._running.node.ready:
            self.branches.step(self._running.now_ms())
        else:
            self.branches.resign()

    def call(self, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """See :class:`escrowmq.replication.replica.branches.Links`."""

        def answered(future: Future[Any]) -> None:
            answer = None if future.exception() is not None else future.result()
            self._running.later(lambda: done(answer if type(answer) is list else None))

        try:
            future = self._router.leader_call(gid, method, *args, timeout_s=CALL_S)
        except Closed:
            return
        future.add_done_callback(answered)

    def write(self, request: bytes, done: Callable[[Sequence[Result] | None], None]) -> None:
        """See :class:`escrowmq.replication.replica.branches.Links`."""
        ops = parse_request(request, from_broker=True)
        self._running.replica.submit(request, ops, lambda reply: done(reply[1] if reply[0] == "ok" else None))
