"""What an event loop's task waits for between two looks into a client's core: that it has something new.

The core tells its condition's listeners in any thread; a task is woken in its own loop. Waiting takes nothing
from the core, so whoever is cancelled meanwhile has lost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib

from escrowmq.actors.client.background import Background
from escrowmq.actors.client.observable import ObservableCondition
from escrowmq.replication.errors import ConfigError


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
