"""Finds handlers that cannot be right before they get a message.

A handler that returns has handled its message. One that is a coroutine function returns at once, and without
``.aio`` nobody runs it: all messages would count as handled. One that cannot be called would make all of them
dead letters.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from escrowmq.replication.errors import ConfigError


def check_handler(handler: Any, *, awaits: bool = False) -> None:
    """Raises ConfigError. ``awaits``: what it returns is awaited."""
    if not callable(handler):
        raise ConfigError(f"handler must be callable, not {handler!r:.80}")
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if inspect.isroutine(handler) else getattr(type(handler), "__call__", handler)  # noqa: B004
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(
            f"handler {handler!r:.80} is a generator function: calling it runs none of it; do not yield"
        )
    if inspect.iscoroutinefunction(called) and not awaits:
        raise ConfigError(
            f"handler {handler!r:.80} is a coroutine function, which a blocking consumer does not await; use "
            "consumer.aio.run, or pass a plain function"
        )


def check_returned(returned: Any) -> None:
    """Raises TypeError if a handler that nobody awaits has returned a coroutine."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("the handler returned a coroutine, which nobody awaits; use consumer.aio.run")
