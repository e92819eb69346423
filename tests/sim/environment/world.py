"""Virtual time: one heap of events, random streams from one seed, and no real waiting.

Everything that happens in a simulation is an event that runs to its end at one instant. Two runs of one seed
are identical event by event, on any machine. Each purpose draws from its own stream, so that a schedule with
one fault less differs as little as possible.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

START_S = 1000.0  # not zero, so that a time that was never set is noticed
WALL_S = 1.7e9  # what wall clocks add to virtual time


class Violation(BaseException):
    """A promise was broken; the text says how. No handler of the code under test may catch it.

    ``kind`` names the promise in one word: an invariant of invariants.py, or an anomaly of a history.
    """

    def __init__(self, text: str, kind: str = "promise") -> None:
        super().__init__(text)
        self.kind = kind


class World:
    """Clock, events and random streams of one simulation."""

    def __init__(self, seed: int) -> None:
        self.seed, self.now, self.events = seed, START_S, 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def stream(self, purpose: str) -> random.Random:
        """A random generator for one purpose; for one seed it is the same, whatever the others draw."""
        return random.Random(f"{purpose}-{self.seed}")

    def later(self, delay_s: float, fn: Callable[..., None], *args: Any) -> None:
        """Run ``fn(*args)`` after ``delay_s`` of virtual time; events of one instant keep their order."""
        self._serial = serial = self._serial + 1
        heappush(self._heap, (self.now + delay_s, serial, fn, args))

    def run(self, until_s: float) -> None:
        """Run events up to ``until_s``."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at, _, fn, args = heappop(heap)
            if at > self.now:
                self.now = at
            self.events += 1
            fn(*args)
        self.now = until_s

    @property
    def elapsed_s(self) -> float:
        return self.now - START_S
