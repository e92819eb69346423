"""Calling the application's handlers of an assignment: in the application's thread, without a lock, one at a
time.

``takeover.py`` says which; here is what must be so around a call: others that poll get no record until it has
returned, a handler does not poll itself, and however it ends, it has been told.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable

from escrowmq.actors.consumer.takeover import HandlerCall, TakeOver
from escrowmq.replication.errors import ConfigError, EscrowMQError


class Telling:
    """Of one consumer with a group."""

    def __init__(
        self, take_over: TakeOver, condition: threading.Condition, closed: Callable[[], bool], wait_s: float
    ) -> None:
        """``wait_s``: how long ``leaving`` waits for a handler that another thread calls."""
        self._take_over, self._condition = take_over, condition
        self._closed, self._wait_s = closed, wait_s

    def busy(self, caller: object) -> bool:
        """Whether somebody else is calling a handler. Under the lock. Raises EscrowMQError in a handler."""
        calling = self._take_over.caller
        if calling is not None and calling == caller:
            raise EscrowMQError(
                "poll was called by on_assign, on_revoke or on_lost: a handler may commit, seek and pause, "
                "but must return before the next poll"
            )
        return calling is not None

    def call(self, call: HandlerCall) -> None:
        """Raises what the handler raises."""
        try:
            answer = call.handler(list(call.partitions))
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise ConfigError(f"{call.name} is a coroutine function: poll and close with consumer.aio")
        finally:
            self.done(call)

    async def call_async(self, call: HandlerCall) -> None:
        """The same; what the handler returns is awaited if it can be."""
        try:
            answer = call.handler(list(call.partitions))
            if inspect.isawaitable(answer):
                await answer
        finally:
            self.done(call)

    def done(self, call: HandlerCall) -> None:
        """A handler has returned or raised."""
        with self._condition:
            self._take_over.done(call)
            self._condition.notify_all()

    def leaving(self, caller: object) -> HandlerCall | None:
        """The handler that ``caller`` calls before the consumer is closed; asked again until None. Waits for
        one that another thread is calling, but not for ever."""
        if self._closed():
            return None
        take_over = self._take_over
        with self._condition:
            if take_over.caller is not None and take_over.caller == caller:
                return None  # a handler closes its consumer
            if not self._condition.wait_for(lambda: take_over.caller is None, self._wait_s):
                return None
            return None if self._closed() else take_over.last(caller)
