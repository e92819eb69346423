"""Virtual time for asyncio: when nothing can run, the clock jumps to the next timer.

A minute of waiting takes no time, and a run is the same every time. A test in which nothing can ever
happen again fails at once instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "deadlock: no timer and nothing to run"
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def pass_by(self, seconds: float) -> None:
        self._virtual.now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` under virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


def hold_loop(seconds: float) -> None:
    """Hold the virtual loop up: time passes, and nothing else of it runs meanwhile."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.pass_by(seconds)


async def until(condition: Callable[[], Any], within_s: float) -> float:
    """Wait for the condition in steps of 10 ms of virtual time; how long it took."""
    start = now()
    while not condition():
        assert now() - start < within_s, f"not within {within_s} s"
        await asyncio.sleep(0.01)
    return now() - start


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all of them and wait until they have ended, however they do."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
