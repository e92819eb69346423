"""Runs a client's background work: in a thread for each part, or in the threads of its callers.

A part (the router, a consumer's fetches, its membership) is a function ``step`` that does everything that can
be done now and returns when it must be called again. Clients of a real cluster use ``Threads``. The cluster
in memory (cluster/testing) has a background without threads: a caller of any client runs all parts, and
waiting moves a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

from escrowmq.actors.client.wakeup import ObservableCondition, Wakeup
from escrowmq.replication.errors import ConfigError

#: Longest sleep of a part: limits the delay after a lost wake-up.
SLEEP_S_MAX = 1.0
JOIN_S = 10.0

#: One step of a part: the time at which the next one is due at the latest, by the background's clock; None:
#: it has ended.
Step = Callable[[], float | None]


class Worker(Protocol):
    """Runs one part. ``wakeup.set()``, from any thread: there is something to do."""

    @property
    def wakeup(self) -> Wakeup: ...

    def start(self) -> None:
        """Begin to run the part."""

    def join(self) -> None:
        """Wait until the part has ended. Never call it from within the part."""


class Background(Protocol):
    """See the module's text."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds of a clock that never goes back."""

    def wall_s(self) -> float:
        """The time in seconds since the epoch."""

    def worker(
        self,
        step: Step,
        name: str,
        waited_for: Callable[[], bool] | None = None,
        *,
        blocks: bool = False,
        wakeup: Wakeup | None = None,
    ) -> Worker:
        """A worker for one part. ``waited_for``: whether a caller waits for it now. ``blocks``: its steps
        wait for other parts. ``wakeup``: what it waits on, if it is to wait for sockets, too."""

    def condition(self, lock: threading.Lock | None = None) -> ObservableCondition:
        """A condition that callers and parts share, and on which callers wait."""

    def passed(self, until: float) -> None:
        """A caller has waited by another clock (an event loop's) for the time that was left to ``until``."""


def pause_of(background: Background | None) -> Callable[[float], None]:
    """How a caller pauses for some seconds, by the clock of ``background``; None: of this machine."""

    def pause(seconds: float) -> None:
        if background is None:
            time.sleep(seconds)
        elif seconds > 0:
            condition = background.condition()
            with condition:
                condition.wait(seconds)

    return pause


class Threads:
    """The background of clients of a real cluster."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    @property
    def clock(self) -> Callable[[], float]:
        """See :class:`Background`."""
        return self._clock

    def wall_s(self) -> float:
        """See :class:`Background`."""
        return time.time()

    def worker(
        self,
        step: Step,
        name: str,
        waited_for: Callable[[], bool] | None = None,
        *,
        blocks: bool = False,
        wakeup: Wakeup | None = None,
    ) -> WorkerThread:
        """See :class:`Background`."""
        return WorkerThread(step, name, self._clock, wakeup)

    def condition(self, lock: threading.Lock | None = None) -> ObservableCondition:
        """See :class:`Background`."""
        return ObservableCondition(lock)

    def passed(self, until: float) -> None:
        """See :class:`Background`: real clocks move by themselves."""


class WorkerThread:
    """One daemon thread. It sleeps until it is woken or its part's next step is due."""

    def __init__(
        self, step: Step, name: str, clock: Callable[[], float], wakeup: Wakeup | None = None
    ) -> None:
        self._step, self._clock = step, clock
        self.wakeup = wakeup or Wakeup()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """See :class:`Worker`."""
        self._thread.start()

    def join(self) -> None:
        """See :class:`Worker`; for ten seconds at most."""
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        wakeup, clock, step = self.wakeup, self._clock, self._step
        while True:
            wakeup.clear()
            wake = step()
            if wake is None:
                return
            wakeup.wait(max(min(wake - clock(), SLEEP_S_MAX), 0.0))


# ------------------------------------------------------------------------------------------------------------
# What an event loop's task waits for between two looks into a client's core: that it has something new.
#
# The core tells its condition's listeners in any thread; a task is woken in its own loop. Waiting takes
# nothing from the core, so whoever is cancelled meanwhile has lost nothing.


class LoopCondition:
    """News of one core. Belongs to the event loop that looks first, and when that is closed, to the next."""

    def __init__(self, condition: ObservableCondition, background: Background) -> None:
        self._condition, self._background = condition, background
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came = asyncio.Event()

    def looking(self) -> None:
        """Called before each look into the core: only what comes after it is new.

        Raises ConfigError in another event loop while the first is not closed.
        """
        running = asyncio.get_running_loop()
        if self._loop is not running:
            self._move_to(running)
        self._came.clear()

    async def wait(self, until: float) -> None:
        """Returns when something has come since :meth:`looking`, or at ``until`` by the core's clock."""
        late, came = False, self._came

        def pass_by() -> None:
            nonlocal late
            late = True
            came.set()

        # Not asyncio.timeout: that of Python 3.11.2 lets out CancelledError once a TaskGroup of the same task
        # has failed (see ``cancellations``), which nobody expects of a poll.
        timer = asyncio.get_running_loop().call_later(until - self._background.clock(), pass_by)
        try:
            await came.wait()
        finally:
            timer.cancel()
        if late:
            self._background.passed(until)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            raise ConfigError(
                "this consumer's asyncio interface belongs to another event loop, which is not closed; make "
                "a consumer for each event loop"
            )
        with self._condition:
            self._loop, self._came = loop, asyncio.Event()  # an event stays with the loop that waited first
            if self._tell not in self._condition.listeners:
                self._condition.listeners.append(self._tell)

    def _tell(self) -> None:
        """Called in any thread, under the core's condition."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._came.set)
        except RuntimeError:  # the loop was closed before the client
            with contextlib.suppress(ValueError):
                self._condition.listeners.remove(self._tell)
