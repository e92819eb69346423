"""Calls that take effect once they are made, whatever becomes of the task that waits for them.

``asyncio.to_thread`` forgets a call if its task is cancelled while all threads are busy. A nack that is
forgotten so loses its message: the consumer's next commit passes it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def surely(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
    """Has a thread call the function, as soon as one is free, and returns what to await."""

    def call() -> _T:
        return context.run(function, *args, **kwargs)

    context = contextvars.copy_context()
    return asyncio.shield(asyncio.get_running_loop().run_in_executor(None, call))
