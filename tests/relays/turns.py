"""Processes that take turns in one thread: each runs to its next pause, and a seed says which is next.

A process is a greenlet, so a relay's code runs in it unchanged and stands still wherever the apparatus around
it (database, broker) calls ``pause``. A process may be stopped for a while, or killed, at each pause.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """The process dies here. No ``except Exception`` of the code under test may survive it."""


class Process:
    """One process, or one of its threads: all that have the same ``owner`` die together."""

    def __init__(self, owner: str, work: greenlet) -> None:
        self.owner, self.work = owner, work
        self.asleep_until = 0  # number of the turn
        self.dying = False


class Turns:
    """Create it in the greenlet that runs the schedule. ``taken``: how many turns there were."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._main = rng, getcurrent()
        self._all: dict[greenlet, Process] = {}
        self.taken = 0

    def start(self, owner: str, work: Callable[[], None]) -> Process:
        """A process that is ready to run. An exception of its own ends the schedule."""

        def run() -> None:
            try:
                work()
            except Killed:
                pass
            finally:
                del self._all[process.work]

        process = Process(owner, greenlet(run, parent=self._main))
        self._all[process.work] = process
        return process

    def pause(self, turns: int = 0) -> None:
        """Let others run, and stand still for at least so many turns. Nothing outside a process."""
        process = self._all.get(getcurrent())
        if process is not None and not process.dying:
            process.asleep_until = self.taken + turns
            self._main.switch()

    @property
    def current(self) -> str:
        """The owner of what runs now; empty: the schedule itself."""
        process = self._all.get(getcurrent())
        return "" if process is None else process.owner

    @property
    def owners(self) -> list[str]:
        """Of all that live."""
        return sorted({process.owner for process in self._all.values()})

    def take(self) -> bool:
        """One process runs to its next pause; False: all are asleep, or there is none."""
        self.taken += 1
        ready = [process for process in self._all.values() if process.asleep_until < self.taken]
        if ready:
            self._rng.choice(ready).work.switch()
        return bool(ready)

    def stop(self, owner: str, turns: int) -> None:
        """It stands still for so many turns."""
        for process in self._all.values():
            if process.owner == owner:
                process.asleep_until = self.taken + turns

    def wake(self) -> None:
        """Nobody stands still any longer."""
        for process in self._all.values():
            process.asleep_until = 0

    def kill(self, owner: str) -> None:
        """It runs no further; what it holds is released, as by an operating system."""
        for process in [one for one in self._all.values() if one.owner == owner]:
            process.dying = True
            if process.work:
                process.work.throw(Killed)
            else:  # it has not begun
                del self._all[process.work]

    def end(self) -> None:
        for owner in self.owners:
            self.kill(owner)
