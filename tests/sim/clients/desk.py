"""How simulated clients reach the brokers: any replica that believes it leads, with losses and retries.

A request or its answer may be lost, and a replica may die with it. Then the client sends the same bytes to
the current leader again, until it gets an answer or dies. So a request can be in the log twice, and an answer
can belong to an attempt that was given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.replication.format.codec import Op
from escrowmq.replication.replica.validation import parse_request
from tests.sim.clients.workload import Cluster
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica

TIMEOUT_S = (0.4, 0.4, 1.5)
BACK_OFF_S = 0.15
LOST = 0.03  # share of requests, and of answers
Then = Callable[[list[Any]], None]


class Desk:
    """The connection from clients to brokers. ``stream``: name of its random stream, one for each desk."""

    def __init__(self, cluster: Cluster, stream: str = "desk") -> None:
        self.cluster, self.world = cluster, cluster.world
        self.rng = cluster.world.stream(f"{stream}{cluster.prefix}")
        self.answers: Counter[str] = Counter()
        self.waiting = 0  # requests whose client waits for an answer

    def later(self, delay_s: float, fn: Callable[..., None], *args: Any) -> None:
        self.world.later(delay_s, fn, *args)

    def replicas(self) -> list[tuple[SimReplica, BrokerApplication]]:
        """Replicas that answer, whether they believe they lead or not."""
        now = self.world.now
        return [
            (r, r.app)
            for r in self.cluster.replicas
            if r.up and now >= r.paused_until and isinstance(r.app, BrokerApplication)
        ]

    def leaders(self) -> list[tuple[SimReplica, BrokerApplication]]:
        return [(r, app) for r, app in self.replicas() if r.node.is_leader]

    def any_leader(self) -> tuple[SimReplica, BrokerApplication] | None:
        leaders = self.leaders()
        return self.rng.choice(leaders) if leaders else None

    def call(
        self,
        request: bytes,
        then: Then,
        alive: Callable[[], bool],
        once: bool = False,
        hears: Callable[[int], None] = lambda time_ms: None,
    ) -> Call:
        """Send a request until it is answered. ``alive``: whether the client lives and still wants an answer;
        ``once``: one attempt, with no wait for an answer (a one-way commit); ``hears``: gets the group's time
        from the answer."""
        call = Call(self, request, then, alive, once, hears)
        self.waiting += 1
        call.attempt()
        return call


class Call:
    """One request and all its attempts."""

    def __init__(
        self,
        desk: Desk,
        request: bytes,
        then: Then,
        alive: Callable[[], bool],
        once: bool,
        hears: Callable[[int], None],
    ) -> None:
        self._desk, self._request, self._then, self._hears = desk, request, then, hears
        self._alive, self._once = alive, once
        self._over = False
        self._number = 0
        self._ops: Sequence[Op] | None = None

    @property
    def repeated(self) -> bool:
        """Whether it was sent more than once, so that an earlier attempt may be carried out, whatever the
        answer says."""
        return self._number > 1

    def end(self) -> None:
        """The client no longer wants the answer."""
        if not self._over:
            self._over = True
            self._desk.waiting -= 1

    def attempt(self) -> None:
        if self._over or not self._alive():
            self.end()
            return
        desk = self._desk
        self._number += 1
        found = desk.any_leader()
        calm = desk.cluster.calm
        if found is not None and (calm or desk.rng.random() >= LOST):
            replica, app = found
            app.cluster = desk.cluster
            answered = False

            def done(status: tuple[Any, ...]) -> None:
                nonlocal answered
                assert not answered, "a request was answered twice"
                answered = True
                desk.answers[status[0]] += 1
                if calm or desk.rng.random() >= LOST:
                    # Not at once: the replica is in the middle of its tick, and an answer takes time.
                    desk.later(0.0005, self._answered, status)

            request = self._request
            if self._ops is None or replica.node.ready:  # a replica that does not lead ignores them
                self._ops = parse_request(request)
            ops = self._ops
            replica.guarded(lambda: app.replica.submit(request, ops, done))
            if replica.up:
                replica.kick()
        if self._once:
            self.end()
            return
        desk.later(desk.rng.choice(TIMEOUT_S), self._timed_out, self._number)

    def _timed_out(self, number: int) -> None:
        if number == self._number:
            self.attempt()

    def _answered(self, status: tuple[Any, ...]) -> None:
        if self._over:
            return
        if not self._alive():
            self.end()
        elif status[0] == "ok":
            self.end()
            if len(status) > 2:
                self._hears(status[2])
            self._then(status[1])
        else:
            self._number += 1  # this cancels its time-out
            self._desk.later(BACK_OFF_S * self._desk.rng.random(), self.attempt)
