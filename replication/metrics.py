"""Counters and histograms of a replica: plain integers that are added to, without a lock.

Each has one writer: a thread, or a place that only one thread comes to. Where several threads come, each has
a cell of its own (host/request_counts.py), since ``+=`` on a shared one loses counts. Any thread may read: it
sees a moment of each number, not one moment of all. What these numbers are called outside, and what they are
for, stands in ``cluster/exporter/table.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Self

#: Upper bounds of latencies, in seconds: from one sync of a good disk to a request's time-out.
LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Upper bounds of what takes long: a snapshot of nothing, and one of ten million runs.
LONG_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

#: Who can decide a transaction, as it is counted. Whatever else stands in an entry is "other".
DECIDERS = ("producer", "feedback", "home", "operator", "policy")


class Histogram:
    """How often a value lay in each bucket: ``counts[i]`` up to ``bounds[i]``, the last one above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.total = bounds, 0.0
        self.counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """One value. One thread only."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @classmethod
    def sum(cls, bounds: Sequence[float], parts: Iterable[Histogram]) -> Self:
        """All of these, which have the same bounds, together."""
        whole = cls(bounds)
        for part in parts:
            whole.total += part.total
            whole.counts = [ours + theirs for ours, theirs in zip(whole.counts, part.counts, strict=True)]
        return whole


class Counts:
    """What a replica has applied: transactions opened, and decided by (outcome, who)."""

    __slots__ = ("decided", "prepared")

    def __init__(self) -> None:
        self.prepared = 0
        self.decided: dict[tuple[int, str], int] = {}

    def decide(self, outcome: int, by: str, count: int) -> None:
        """``count`` transactions were decided, ``by`` whom as it stands in the entry ("operator:<name>")."""
        who = by if by in DECIDERS else by.partition(":")[0]
        key = outcome, who if who in DECIDERS else "other"
        self.decided[key] = self.decided.get(key, 0) + count
