"""Calls the application's handlers for an assignment: in the application's thread, without a lock, one at a
time.

``rebalance.py`` decides which handler is due. This module makes sure that other threads that poll get no
record until the handler has returned, that a handler does not poll, and that a call is never repeated,
however it ends.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable

from escrowmq.actors.client.uncancellable import cancellations
from escrowmq.actors.consumer.rebalance import HandlerCall, Rebalance
from escrowmq.replication.errors import ConfigError, EscrowMQError


class RebalanceCallbacks:
    """Calls the handlers of one consumer that has a group."""

    def __init__(
        self, take_over: Rebalance, condition: threading.Condition, closed: Callable[[], bool], wait_s: float
    ) -> None:
        """``wait_s``: how long ``leaving`` waits for a handler that another thread is running."""
        self._take_over, self._condition = take_over, condition
        self._closed, self._wait_s = closed, wait_s

    def busy(self, caller: object) -> bool:
        """Whether another caller is running a handler. Call it under the lock. Raises EscrowMQError when
        called from within a handler."""
        calling = self._take_over.caller
        if calling is not None and calling == caller:
            raise EscrowMQError(
                "poll was called by on_assign, on_revoke or on_lost: a handler may commit, seek and pause, "
                "but must return before the next poll"
            )
        return calling is not None

    def call(self, call: HandlerCall) -> None:
        """Calls the handler. Raises what it raises."""
        try:
            answer = call.handler(list(call.partitions))
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise ConfigError(f"{call.name} is a coroutine function: poll and close with consumer.aio")
        finally:
            self.done(call)

    async def call_async(self, call: HandlerCall) -> None:
        """As ``call``; if the handler returns an awaitable, it is awaited."""
        before = cancellations()
        try:
            answer = call.handler(list(call.partitions))
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError as error:
            if cancellations() > before:
                raise
            raise EscrowMQError(
                f"{call.name} raised the cancellation of something that it awaited"
            ) from error
        finally:
            self.done(call)

    def done(self, call: HandlerCall) -> None:
        """A handler has returned or raised."""
        with self._condition:
            self._take_over.done(call)
            self._condition.notify_all()

    def leaving(self, caller: object) -> HandlerCall | None:
        """The handler that ``caller`` must call before the consumer is closed; ask again until None. Waits
        for one that another thread is running, but only for ``wait_s``."""
        if self._closed():
            return None
        take_over = self._take_over
        with self._condition:
            if take_over.caller is not None and take_over.caller == caller:
                return None  # a handler is closing its own consumer
            if not self._condition.wait_for(lambda: take_over.caller is None, self._wait_s):
                return None
            return None if self._closed() else take_over.last(caller)
