"""Calls that take effect once they are made, whatever becomes of the task that waits for them.

``asyncio.to_thread`` forgets a call if its task is cancelled while all threads are busy. A nack that is
forgotten so loses its message: the consumer's next commit passes it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Closable(Protocol):
    """Something that is to be closed once it is made."""

    def close(self) -> None: ...


_C = TypeVar("_C", bound=Closable)


def uncancellable(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
    """Has a thread call the function, as soon as one is free, and returns what to await."""

    def call() -> _T:
        return context.run(function, *args, **kwargs)

    context = contextvars.copy_context()
    return asyncio.shield(asyncio.get_running_loop().run_in_executor(None, call))


def cancellations() -> int:
    """How often the current task has been cancelled. If that is no more after a handler than before it, then
    a CancelledError out of it is the cancellation of something that it has awaited: it has failed.

    Compare with the number before, and not with 0: up to Python 3.12 a TaskGroup leaves one counted for good
    when a child fails while the group waits for the others.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def made(kind: Callable[_P, _C], *args: _P.args, **kwargs: _P.kwargs) -> _C:
    """Has a thread make a client. If the task that waits for it is cancelled, nobody could ever close it, and
    a consumer would keep its share of the partitions: so the thread closes it."""
    lock, ready, given_up = threading.Lock(), list[_C](), False

    def make() -> _C:
        client = kind(*args, **kwargs)
        with lock:
            ready.append(client)
            late = given_up
        if late:
            client.close()
        return client

    try:
        return await uncancellable(make)
    except asyncio.CancelledError:
        with lock:
            given_up, found = True, list(ready)
        for client in found:  # it came together with the cancellation
            uncancellable(client.close)
        raise
