"""Counters and histograms of a replica: plain integers that are incremented without a lock.

Each has one writer: a single thread, or code that only one thread reaches. Where several threads count, each
has a cell of its own (host/requests.py), because ``+=`` on a shared integer loses counts. Any thread
may read: each number is current, but a set of numbers is not a consistent snapshot.
``cluster/exporter/table.py`` gives their exported names and purposes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Self

#: Upper bounds of latencies, in seconds: from one sync of a good disk to a request's time-out.
LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Upper bounds, in seconds, for slow operations: from an empty snapshot to one of ten million runs.
LONG_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

#: Who can decide a transaction, as labels. Any other decider in an entry is counted as "other".
DECIDERS = ("producer", "feedback", "home", "operator", "policy", "timeout", "claim")


class Histogram:
    """How many values fell into each bucket: ``counts[i]`` up to ``bounds[i]``; the last, above all
    bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.total = bounds, 0.0
        self.counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value. For one thread only."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @classmethod
    def sum(cls, bounds: Sequence[float], parts: Iterable[Histogram]) -> Self:
        """The sum of histograms that share the same bounds."""
        whole = cls(bounds)
        for part in parts:
            whole.total += part.total
            whole.counts = [ours + theirs for ours, theirs in zip(whole.counts, part.counts, strict=True)]
        return whole


class Counts:
    """What a replica has applied: transactions opened, and transactions decided by (outcome, decider)."""

    __slots__ = ("decided", "prepared")

    def __init__(self) -> None:
        self.prepared = 0
        self.decided: dict[tuple[int, str], int] = {}

    def decide(self, outcome: int, by: str, count: int) -> None:
        """Count ``count`` decided transactions; ``by`` is the decider as the entry has it
        ("operator:<name>")."""
        who = by if by in DECIDERS else by.partition(":")[0]
        key = outcome, who if who in DECIDERS else "other"
        self.decided[key] = self.decided.get(key, 0) + count
