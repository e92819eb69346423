"""An event loop on the stage: feedback's coroutines run as one of the stage's parts, by the stage's clock.

It implements the methods that asyncio's tasks, futures, time-outs and locks need. It has no sockets and no
threads.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

from escrowmq.cluster.testing.stage import NEVER, Stage

log = logging.getLogger(__name__)
Ts = TypeVarTuple("Ts")


class StagedLoop(asyncio.AbstractEventLoop):
    """See the module's text. ``close`` cancels the tasks that still run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # those that have not ended
        self._closed = False
        self._worker = stage.worker(self._step, "feedback")
        self._worker.start()

    def time(self) -> float:
        return self._stage.now()

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._worker.set()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        self._worker.set()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def _step(self) -> float | None:
        """Run all callbacks that are ready, and those that become ready meanwhile."""
        if self._closed and not self._ready:
            return None
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            now, timers = self._stage.now(), self._timers
            while timers and (timers[0][0] <= now or timers[0][2].cancelled()):
                handle = heapq.heappop(timers)[2]
                if not handle.cancelled():
                    self._ready.append(handle)
            while self._ready:
                ready = self._ready.popleft()
                if not ready.cancelled():
                    ready._run()
        finally:
            asyncio._set_running_loop(outer)
        return self._timers[0][0] if self._timers else NEVER

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> Any:
        task = asyncio.Task(coro, loop=self, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def close(self) -> None:
        """See the class's text."""
        if self._closed:
            return
        for task in list(self._tasks):
            task.cancel()
        self._stage.run()
        self._closed = True
        self._timers.clear()
        self._worker.set()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log the failure of a task whose result nothing awaits."""
        if not self._closed:
            log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed
