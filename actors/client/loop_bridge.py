"""Answers from the router's thread to the futures of an event loop, many per wake-up.

``call_soon_threadsafe`` writes to a socket each time (10 us on both sides); a thousand coroutines whose
transactions were answered by one call are woken by one such write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from escrowmq.replication.model import RecordMetadata


class LoopBridge:
    """For one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._scheduled = False

    def waiter(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """A future, and the function that sets it from another thread."""
        future: asyncio.Future[Any] = self.loop.create_future()
        return future, lambda value: self.deliver(future, value, None)

    def deliver(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """Set ``future`` soon. From any thread."""
        self._ready.append((future, value, error))
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
            future, value, error = ready.popleft()
            if future.done():  # its task was cancelled
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class AsyncPromise:
    """A plain message's metadata for an ``asyncio.Future``; see ``producer.partition_stream.Promise``."""

    __slots__ = ("_bridge", "future")

    def __init__(self, bridge: LoopBridge) -> None:
        self._bridge = bridge
        self.future: asyncio.Future[RecordMetadata] = bridge.loop.create_future()

    def set_result(self, result: RecordMetadata, /) -> None:
        """From the router's thread."""
        self._bridge.deliver(self.future, result, None)

    def set_exception(self, exception: BaseException, /) -> None:
        """From the router's thread."""
        self._bridge.deliver(self.future, None, exception)
