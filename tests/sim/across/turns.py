"""A client's channels in virtual time: the router's turns are events of the world, not of a thread."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.client.router import MemberWatch
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.wakeup import Wakeup
from tests.sim.across.wire import Wire
from tests.sim.environment.world import World
from tests.sim.faults.plan import members_change

TURN_S = 0.0001  # from a wake-up to the turn
PAUSE_S_MIN = 0.0005


class _Asking(Wakeup):
    """A wake-up that asks for a turn."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__()
        self._ask = ask

    def set(self) -> None:
        self._ask()


class _WhileAlive:
    """The calls of one client; a process that has died in the middle of a turn makes no more calls."""

    def __init__(self, turns: WorldTurns, wire: Wire) -> None:
        self._turns, self._wire = turns, wire

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        if not self._turns.dead:
            self._wire.call(gid, rid, method, args, done)

    def close(self) -> None: ...


class WorldTurns(ClientLoop):
    """The turns of one client. ``dead``: its process has ended, and it takes no more turns."""

    def __init__(
        self, world: World, wire: Wire, info: ClusterInfo, config: ChannelConfig, rng: random.Random
    ) -> None:
        super().__init__(info, config, _WhileAlive(self, wire), clock=lambda: world.now, rng=rng)
        self._world, self.dead = world, False
        self._asked = False
        self._wake_at = float("inf")
        self.wakeup = _Asking(self._soon)
        if members_change():  # otherwise clients have nothing to learn, and schedules do not change
            self.attach(MemberWatch(self.channels, self.calls.call, self.post, world.now))

    def _soon(self) -> None:
        if not self._asked and not self.dead:
            self._asked = True
            self._world.later(TURN_S, self._run)

    def _woken(self, at: float) -> None:
        if at == self._wake_at:
            self._wake_at = float("inf")
            self._soon()

    def _run(self) -> None:
        self._asked = False
        if self.dead:
            return
        wake = self.turn()
        if self._posted or self._answers:
            self._soon()
        elif wake < float("inf") and not self._asked:
            at = max(wake, self._world.now + PAUSE_S_MIN)
            if at < self._wake_at:
                self._wake_at = at
                self._world.later(at - self._world.now, self._woken, at)


class StoppableTurns(WorldTurns):
    """Those of a process that may be stopped for a while."""

    stopped_until = 0.0

    def _run(self) -> None:
        if self._world.now < self.stopped_until:
            self._world.later(self.stopped_until - self._world.now, self._run)
        else:
            super()._run()
