"""Records what the exporter saw of a demo run, and computes rates from it, for the picture.

A replica's counters start at 0 with its process and count what it did as leader. So increases are computed
for each replica separately, as Prometheus' ``rate`` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.replication.calling.metrics_report import HistogramReport

#: Number of samples that are kept, more than an hour's worth. Later ones are left out of the picture.
POINTS_MAX = 10_000
#: Seconds between two samples; a fail-over takes about one second.
EVERY_S = 0.5

BY_PRODUCER, ROLLED_BACK, BY_CHECK = "committed by its producer", "rolled back by its producer", "by a check"
MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Point:
    """One sample.

    ``counted``: counter values by (what is counted, where). ``opened``: number of open transactions, None
    while no leader reports it.
    """

    at: float
    counted: Mapping[tuple[str, str], float]
    opened: float | None


def _counted(name: str, labels: tuple[str, ...]) -> tuple[str, str] | None:
    """What a series counts, and where; None if the picture does not show it."""
    if name == "escrowmq_topic_messages_total":
        return MESSAGES, labels[0]
    if name != "escrowmq_transactions_decided_total":
        return None
    group, replica, outcome, by = labels
    if by == "producer":
        return (BY_PRODUCER if outcome == "committed" else ROLLED_BACK), f"{group}/{replica}"
    return (BY_CHECK, f"{group}/{replica}") if by in ("feedback", "policy") else None


class Recorder:
    """Keeps samples. Call ``add`` from one thread, and read ``points`` when that thread has ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.points: list[Point] = []
        self._clock = clock

    def add(self, series: Mapping[Key, Value]) -> None:
        """Add the series of one collection."""
        counted: dict[tuple[str, str], float] = {}
        opened: float | None = None
        for (name, labels), value in series.items():
            if isinstance(value, HistogramReport):
                continue
            if name == "escrowmq_transactions_oldest_age_seconds":
                opened = opened or 0.0  # there is a leader, so the number of open ones is known
            elif name == "escrowmq_transactions_open":
                opened = (opened or 0.0) + value
            elif (what := _counted(name, labels)) is not None:
                counted[what] = counted.get(what, 0.0) + value
        if len(self.points) < POINTS_MAX:
            self.points.append(Point(self._clock(), counted, opened))


def rates(points: list[Point], kind: str) -> list[tuple[float, float]]:
    """For each sample but the first: (moment, increase per second since the previous sample)."""
    found: list[tuple[float, float]] = []
    last = dict(points[0].counted) if points else {}
    for before, point in pairwise(points):
        new = 0.0
        for what, total in point.counted.items():
            if what[0] == kind:
                known = last.get(what, 0.0)
                new += total - known if total >= known else total  # its process restarted
        last |= point.counted
        found.append((point.at, new / max(point.at - before.at, 1e-9)))
    return found
