"""Answers from the router's thread to the futures of an event loop, many per wake-up.

``call_soon_threadsafe`` writes to a socket each time (10 us on both sides); a thousand coroutines whose
transactions were answered by one call are woken by one such write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol


class Ended(Protocol):
    """What became of numbered messages: see ``producer.parcel.Ending``."""

    def metadata(self, number: int) -> Any: ...
    def error(self) -> BaseException | None: ...


class LoopBridge:
    """For one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def waiter(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """A future, and the function that sets it from another thread."""
        future: asyncio.Future[Any] = self.loop.create_future()
        return future, lambda value: self._soon(partial(_set, future, value))

    def ended(self, numbers: Sequence[int], futures: Sequence[asyncio.Future[Any]], ending: Ended) -> None:
        """Set the futures of many messages soon. From any thread."""
        self._soon(partial(_set_all, numbers, futures, ending))

    def _soon(self, work: Callable[[], None]) -> None:
        self._ready.append(work)
        if not self._scheduled:
            self._scheduled = True
            try:
                self.loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._ready.clear()

    def _flush(self) -> None:
        self._scheduled = False  # first, so that items added from now on schedule again
        ready = self._ready
        while ready:
            ready.popleft()()


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # its task was cancelled
        future.set_result(value)


def _set_all(numbers: Sequence[int], futures: Sequence[asyncio.Future[Any]], ending: Ended) -> None:
    for number, future in zip(numbers, futures, strict=True):
        if future.done():  # its task was cancelled
            continue
        error = ending.error()
        if error is None:
            future.set_result(ending.metadata(number))
        else:
            future.set_exception(error)
