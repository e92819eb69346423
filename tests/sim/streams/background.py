"""Runs the parts of a client in virtual time: a part that blocks, and the application, in fibres.

The router's turns and the fetches are events of the world. A part that waits for others (the membership) is a
fibre, and so is the code that calls the client. Nothing here takes real time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from escrowmq.actors.client.background import Step
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.wakeup import ObservableCondition, Waiter, Wakeup
from escrowmq.actors.consumer import core
from escrowmq.actors.producer.transactions import transaction
from tests.sim.across.turns import WorldTurns
from tests.sim.across.wire import Wire
from tests.sim.environment.fibres import Fibre, Fibres, fibres_of_running
from tests.sim.environment.world import World

_blocks = Future.result


def _result(future: Future[Any], timeout: float | None = None) -> Any:
    """As ``Future.result``; a fibre that waits for it gives the world its turn. (Clients make futures in many
    places, and each of them has a deadline of its own.)"""
    fibres = fibres_of_running()
    if fibres is not None and not future.done():
        fibre = fibres.current()
        future.add_done_callback(lambda future: fibres.wake(fibre))
        while not future.done():
            fibres.wait()
    return _blocks(future, timeout)


Future.result = _result  # type: ignore[method-assign]


class _FibreWaiter(Waiter):
    """As ``Waiter``; a fibre that waits for it gives the world its turn."""

    __slots__ = ("_fibre", "_fibres")

    def __init__(self) -> None:
        super().__init__()
        self._fibres = fibres_of_running()
        self._fibre = None if self._fibres is None else self._fibres.current()

    def done(self, value: Any) -> None:
        super().done(value)
        if self._fibres is not None and self._fibre is not None:
            self._fibres.wake(self._fibre)

    def wait(self, timeout_s: float) -> bool:
        """Every wait has a deadline of its own, in virtual time."""
        if self._fibres is None:
            return super().wait(timeout_s)
        while not super().wait(0.0):
            self._fibres.wait()
        return True


transaction.Waiter = _FibreWaiter  # type: ignore[attr-defined]

STEP_S = 0.0001  # from a wake-up to the step
PAUSE_S_MIN = 0.0005


class Process:
    """One process of an application, with one client. The ``Background`` of that client."""

    def __init__(self, world: World, fibres: Fibres, wire: Wire, name: str) -> None:
        self.world, self.fibres, self.wire, self.name = world, fibres, wire, name
        self.rng = world.stream(name)
        self.dead = False
        self.stopped_until = 0.0

    def die(self) -> None:
        """Nothing of it runs any more."""
        self.dead = True
        self.fibres.kill(self.name)

    def sleep(self, seconds: float) -> None:
        """In a fibre of the application; also through a stop of the process."""
        self.fibres.wait(seconds)
        while self.world.now < self.stopped_until:
            self.fibres.wait(self.stopped_until - self.world.now)

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See ``ReplicaCalls``. Answers wait while the process is stopped."""
        if not self.dead:
            self.wire.call(gid, rid, method, args, lambda answer, error: self._deliver(done, answer, error))

    def _deliver(self, done: OnAnswer, answer: Any, error: BaseException | None) -> None:
        left_s = self.stopped_until - self.world.now
        if left_s > 0:
            self.world.later(left_s, self._deliver, done, answer, error)
        elif not self.dead:
            done(answer, error)

    def close(self) -> None:
        """See ``ReplicaCalls``."""

    # -------------------------------------------------------------- Background

    @property
    def clock(self) -> Callable[[], float]:
        """See ``Background``."""
        return lambda: self.world.now

    def wall_s(self) -> float:
        """See ``Background``."""
        return self.world.now

    def worker(
        self,
        step: Step,
        name: str,
        waited_for: Callable[[], bool] | None = None,
        *,
        blocks: bool = False,
        wakeup: Wakeup | None = None,
    ) -> SimWorker:
        """See ``Background``."""
        return SimWorker(self, step, blocks)

    def condition(self, lock: threading.Lock | None = None) -> FibreCondition:
        """See ``Background``."""
        return FibreCondition(self.fibres)

    def passed(self, until: float) -> None:
        """See ``Background``."""

    # -------------------------------------------------------------- what is not given by arguments

    @contextmanager
    def making(self) -> Iterator[None]:
        """A consumer that is made in this block has this process's router, name and random numbers. The block
        must hold no wait of a fibre."""
        before = core.Router, core.dynamic_name, core.random
        core.Router, core.dynamic_name, core.random = self._router, lambda group: self.name, self.rng  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            core.Router, core.dynamic_name, core.random = before  # type: ignore[misc]

    def _router(self, info: ClusterInfo, config: ChannelConfig, *_: Any, **__: Any) -> SimRouter:
        return SimRouter(self, info, config)


class SimRouter(WorldTurns):
    """A client's router."""

    def __init__(self, process: Process, info: ClusterInfo, config: ChannelConfig) -> None:
        self._process = process
        super().__init__(process.world, process, info, config, process.rng)  # type: ignore[arg-type]

    def members(self, gid: int) -> tuple[int, ...]:
        """See ``Router``."""
        return self.channels[gid].follower.members

    def close(self) -> None:
        """See ``Router``."""
        self.dead = True

    def _run(self) -> None:
        left_s = self._process.stopped_until - self._world.now
        if self._process.dead:
            return
        if left_s > 0:
            self._world.later(left_s, self._run)
        else:
            super()._run()


class SimWorker(Wakeup):
    """Runs one part. Its own wake-up."""

    __slots__ = ("_blocks", "_process", "_running", "_step", "_wake_at", "_woken", "ended")

    def __init__(self, process: Process, step: Step, blocks: bool) -> None:
        super().__init__()
        self._process, self._step, self._blocks = process, step, blocks
        self._running = self._woken = self.ended = False
        self._wake_at = float("inf")

    @property
    def wakeup(self) -> Wakeup:
        """See ``Worker``."""
        return self

    def start(self) -> None:
        """See ``Worker``."""
        self.set()

    def join(self) -> None:
        """See ``Worker``: it ends at its next step."""
        self.set()

    def set(self) -> None:
        """See ``Wakeup``."""
        if not self._woken and not self.ended:
            self._woken = True
            self._process.world.later(STEP_S, self._due)

    def clear(self) -> None:
        """See ``Wakeup``."""

    def _at(self, when: float) -> None:
        if when == self._wake_at:
            self._wake_at = float("inf")
            self.set()

    def _due(self) -> None:
        process = self._process
        if process.dead or self.ended:
            return
        if (left_s := process.stopped_until - process.world.now) > 0:
            process.world.later(left_s, self._due)
        elif not self._running:  # otherwise it looks again behind its present step
            self._woken = False
            if self._blocks:
                process.fibres.start(process.name, self._go)
                self._running = True
            else:
                self._go()

    def _go(self) -> None:
        try:
            wake = self._step()
        finally:
            self._running = False
        if wake is None:
            self.ended = True
            return
        world = self._process.world
        if self._woken:  # during the step
            world.later(STEP_S, self._due)
        at = max(wake, world.now + PAUSE_S_MIN)
        if at < self._wake_at and at < float("inf"):
            self._wake_at = at
            world.later(at - world.now, self._at, at)


class FibreCondition(ObservableCondition):
    """A condition for fibres, all of one thread: who waits gives the world its turn."""

    def __init__(self, fibres: Fibres) -> None:
        super().__init__()
        self._fibres = fibres
        self._sleeping: list[Fibre] = []

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Condition``."""
        fibre = self._fibres.current()
        saved = self._release_save()  # type: ignore[attr-defined]
        self._sleeping.append(fibre)
        try:
            self._fibres.wait(timeout)
        finally:
            self._acquire_restore(saved)  # type: ignore[attr-defined]
        told = fibre not in self._sleeping
        if not told:
            self._sleeping.remove(fibre)
        return told

    def notify_all(self) -> None:
        """See ``ObservableCondition``."""
        sleeping, self._sleeping = self._sleeping, []
        for fibre in sleeping:
            self._fibres.wake(fibre)
        super().notify_all()
