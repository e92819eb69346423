"""An asyncio event loop with the simulated world's time: coroutines run as events of the world.

Nothing blocks and nothing runs concurrently, so a schedule is the same every time. A violation that is found
inside a coroutine ends the schedule, even if an exception handler is in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from tests.sim.environment.world import Violation, World


class WorldLoop(asyncio.AbstractEventLoop):
    """The parts of a loop that tasks, futures and time-outs need, without sockets and threads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ready: deque[asyncio.Handle] = deque()
        self._queued = self._running = False
        self.broken: Violation | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}  # those that have not ended

    def time(self) -> float:
        return self._world.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._queued and not self._running:
            self._queued = True
            self._world.later(0.0, self._drain)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.later(max(when - self.time(), 0.0), self._due, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def _due(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            self._ready.append(timer)
            self._drain()

    def _drain(self) -> None:
        """Run all ready callbacks, and those that they make ready."""
        self._queued, self._running = False, True
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
            self._running = False
        if self.broken is not None:
            raise self.broken

    def fail(self, violation: Violation) -> None:
        """End the schedule as soon as the running callback has ended."""
        self.broken = self.broken or violation

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> Any:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def close(self) -> None:
        """End everything; errors of coroutines that are being cancelled do not count."""
        for task in list(self._tasks):
            task.cancel()
        try:
            self._drain()
        except Violation:
            pass
        self._ready.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task that is not awaited has failed. (One that is left pending at the end has not.)"""
        error = context.get("exception")
        if isinstance(error, Violation):
            self.fail(error)
        elif error is not None:
            self.fail(Violation(f"a coroutine failed: {error!r}", "client-failed"))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False
