"""Blocking code in virtual time: what waits gives the word back to the world, and goes on at its moment.

Each fibre is a greenlet, so that code which blocks a thread (a database's driver) runs here as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from tests.sim.world import World


class Fibre:
    """One piece of blocking work of a process."""

    def __init__(self, owner: str, work: greenlet) -> None:
        self.owner, self.work = owner, work
        self.killed = False
        self.turn = 0  # of its waits: a late wake-up is for an earlier one


class Fibres:
    """All of one world. Made where the world's events run."""

    def __init__(self, world: World) -> None:
        self._world, self._main = world, getcurrent()
        self._all: dict[greenlet, Fibre] = {}

    @property
    def running(self) -> int:
        return sum(not fibre.killed for fibre in self._all.values())

    def start(self, owner: str, work: Callable[..., None], *args: Any) -> None:
        """Begin ``work(*args)`` at once; what it raises ends the schedule."""

        def run() -> None:
            try:
                work(*args)
            finally:
                del self._all[fibre.work]

        fibre = Fibre(owner, greenlet(run, parent=self._main))
        self._all[fibre.work] = fibre
        self._world.later(0.0, self._resume, fibre, 0)

    def kill(self, owner: str) -> None:
        """Its process has died: nothing of it goes on."""
        for fibre in self._all.values():
            if fibre.owner == owner and not fibre.killed:
                fibre.killed = True
                self._world.later(0.0, self._end, fibre)  # it may be the one that runs

    def current(self) -> Fibre:
        """The one that runs; only inside of one."""
        return self._all[getcurrent()]

    def wait(self, seconds: float | None = None) -> None:
        """Until somebody wakes this fibre, or so much time has passed."""
        fibre = self.current()
        fibre.turn += 1
        if seconds is not None:
            self._world.later(seconds, self._resume, fibre, fibre.turn)
        self._main.switch()

    def wake(self, fibre: Fibre) -> None:
        """At this instant, after what runs now."""
        self._world.later(0.0, self._resume, fibre, fibre.turn)

    def _resume(self, fibre: Fibre, turn: int) -> None:
        if not fibre.killed and not fibre.work.dead and fibre.turn == turn:
            fibre.work.switch()

    def _end(self, fibre: Fibre) -> None:
        if not fibre.work:  # it never began
            self._all.pop(fibre.work, None)
        elif not fibre.work.dead:
            fibre.work.throw(GreenletExit)
