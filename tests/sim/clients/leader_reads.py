"""Simulated readers who ask leaders what only a leader may answer: ends of partitions, positions of groups.

Whoever believes to lead is asked, deposed leaders and those that stand still included. An answer must have
everything that was acknowledged to anybody before the question (linearizable reads).
"""

from __future__ import annotations

from functools import partial

from tests.sim.clients.desk import Desk
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica

#: Shares of the workload's steps in which somebody asks.
ASKS = 0.3


class LeaderReads:
    """All readers of one group."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._rng = desk.world.stream(f"leader-reads{desk.cluster.prefix}")
        self.confirmed = self.refused = 0

    def act(self) -> None:
        """Ask each replica that believes it leads. Where its process stands still, the call waits for it."""
        if self._rng.random() >= ASKS:
            return
        before, world = self._desk.cluster.checker.acknowledged_to, self._desk.world
        for replica in self._desk.cluster.replicas:
            if replica.up and replica.node.is_leader and isinstance(replica.app, BrokerApplication):
                wait_s = max(0.0, replica.paused_until - world.now)
                world.later(wait_s, self._arrive, replica, replica.app, before)

    def _arrive(self, replica: SimReplica, app: BrokerApplication, before: int) -> None:
        if replica.up and replica.app is app:
            replica.guarded(partial(app.replica.confirm, partial(self._told, replica, app, before)))
            if replica.up:
                replica.kick()

    def _told(self, replica: SimReplica, app: BrokerApplication, before: int, leads: bool) -> None:
        if not leads:
            self.refused += 1
            return
        self.confirmed += 1
        applied = app.replica.state.applied_index
        if applied < before:
            raise Violation(
                f"{replica.name} answers a read of a leader from entry {applied}; {before} had been "
                "acknowledged before the question",
                "stale-read",
            )
