"""Runs blocking code in virtual time: a call that waits returns control to the world until the wait ends.

Each fibre is a greenlet, so code that blocks a thread (a database driver) runs here unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from tests.sim.environment.world import World


class Fibre:
    """One piece of blocking work of a process."""

    def __init__(self, owner: str, work: greenlet) -> None:
        self.owner, self.work = owner, work
        self.killed = False
        self.turn = 0  # number of its wait: a late wake-up belongs to an earlier one


class Fibres:
    """All fibres of a world. Create it in the greenlet that runs the world's events."""

    def __init__(self, world: World) -> None:
        self._world, self._main = world, getcurrent()
        self._all: dict[greenlet, Fibre] = {}

    @property
    def running(self) -> int:
        return sum(not fibre.killed for fibre in self._all.values())

    def start(self, owner: str, work: Callable[..., None], *args: Any) -> None:
        """Start ``work(*args)`` at once; an exception of it ends the schedule."""

        def run() -> None:
            try:
                work(*args)
            finally:
                del self._all[fibre.work]

        fibre = Fibre(owner, greenlet(run, parent=self._main))
        fibre.work.fibres = self
        self._all[fibre.work] = fibre
        self._world.later(0.0, self._resume, fibre, 0)

    def kill(self, owner: str) -> None:
        """End all fibres of a process that has died."""
        for fibre in self._all.values():
            if fibre.owner == owner and not fibre.killed:
                fibre.killed = True
                self._world.later(0.0, self._end, fibre)  # it may be the running fibre

    def close(self) -> None:
        """End everything, when the world ends: what is suspended would keep it in memory."""
        for fibre in list(self._all.values()):
            fibre.killed = True
            self._end(fibre)

    def current(self) -> Fibre:
        """The running fibre; call it only inside a fibre."""
        return self._all[getcurrent()]

    def wait(self, seconds: float | None = None) -> None:
        """Suspend this fibre until it is woken, or until the time has passed."""
        fibre = self.current()
        fibre.turn += 1
        if seconds is not None:
            self._world.later(seconds, self._resume, fibre, fibre.turn)
        self._main.switch()

    def wake(self, fibre: Fibre) -> None:
        """Resume a fibre at this instant, after the running one."""
        self._world.later(0.0, self._resume, fibre, fibre.turn)

    def _resume(self, fibre: Fibre, turn: int) -> None:
        if not fibre.killed and not fibre.work.dead and fibre.turn == turn:
            fibre.work.switch()

    def _end(self, fibre: Fibre) -> None:
        if not fibre.work:  # it never started
            self._all.pop(fibre.work, None)
        elif not fibre.work.dead:
            fibre.work.throw(GreenletExit)


def fibres_of_running() -> Fibres | None:
    """Those of the fibre that calls this; None: it is called outside of fibres."""
    found: Fibres | None = getattr(getcurrent(), "fibres", None)
    return found
