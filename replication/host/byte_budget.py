"""A bound in bytes for what several threads hold at a time; the others wait.

It says aloud when it makes them wait, once in a while: whoever looks for the cause of a slow copy finds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from escrowmq.replication.errors import Overloaded

SAID_EVERY_S: Final = 60.0


class ByteBudget:
    """``with budget.hold(size): ...``. Thread-safe."""

    def __init__(
        self,
        most: int,
        full: str,
        report: Callable[[str], None],
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``full``: what to report when somebody has to wait. None waits for longer than ``wait_s``."""
        self._most, self._full, self._report, self._wait_s, self._clock = most, full, report, wait_s, clock
        self._freed = threading.Condition()
        self._held = 0
        self._said_at = float("-inf")

    @property
    def held(self) -> int:
        """How many bytes are held now."""
        return self._held

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Hold ``size`` bytes, of which more than the bound count as the bound. Raises Overloaded if there is
        no room in time."""
        size = min(size, self._most)
        with self._freed:
            if self._held + size > self._most:
                self._say()
                if not self._freed.wait_for(lambda: self._held + size <= self._most, self._wait_s):
                    raise Overloaded(self._full, self._wait_s)
            self._held += size
        try:
            yield
        finally:
            with self._freed:
                self._held -= size
                self._freed.notify_all()

    def _say(self) -> None:
        now = self._clock()
        if now - self._said_at >= SAID_EVERY_S:
            self._said_at = now
            self._report(f"{self._full}: others wait")
