"""What the exporter saw of a run of the demo, and rates of it: values only, for the picture.

Counters of a replica begin at 0 with its process, and count what it did as leader: so what is new is counted
for each replica by itself, as Prometheus' ``rate`` would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.replication.calling.metrics_report import HistogramReport

#: Looks that are kept: more than an hour of them. What comes later is left out of the picture.
POINTS_MAX = 10_000
#: Seconds between two looks: a fail-over takes one.
EVERY_S = 0.5

BY_PRODUCER, ROLLED_BACK, BY_CHECK = "committed by its producer", "rolled back by its producer", "by a check"
MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Point:
    """One look: ``counted`` totals by what is counted and where; ``opened``: open transactions, None while
    nobody leads who could tell."""

    at: float
    counted: Mapping[tuple[str, str], float]
    opened: float | None


def _counted(name: str, labels: tuple[str, ...]) -> tuple[str, str] | None:
    """What a series counts, and where; None: nothing that is shown."""
    if name == "escrowmq_topic_messages_total":
        return MESSAGES, labels[0]
    if name != "escrowmq_transactions_decided_total":
        return None
    group, replica, outcome, by = labels
    if by == "producer":
        return (BY_PRODUCER if outcome == "committed" else ROLLED_BACK), f"{group}/{replica}"
    return (BY_CHECK, f"{group}/{replica}") if by in ("feedback", "policy") else None


class Recorder:
    """Keeps what it is shown. ``add`` in one thread; ``points`` when that has ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.points: list[Point] = []
        self._clock = clock

    def add(self, series: Mapping[Key, Value]) -> None:
        """One look's series."""
        counted: dict[tuple[str, str], float] = {}
        opened: float | None = None
        for (name, labels), value in series.items():
            if isinstance(value, HistogramReport):
                continue
            if name == "escrowmq_transactions_oldest_age_seconds":
                opened = opened or 0.0  # somebody leads, so it is known how many are open
            elif name == "escrowmq_transactions_open":
                opened = (opened or 0.0) + value
            elif (what := _counted(name, labels)) is not None:
                counted[what] = counted.get(what, 0.0) + value
        if len(self.points) < POINTS_MAX:
            self.points.append(Point(self._clock(), counted, opened))


def rates(points: list[Point], kind: str) -> list[tuple[float, float]]:
    """(moment, how many a second since the look before)."""
    found: list[tuple[float, float]] = []
    last = dict(points[0].counted) if points else {}
    for before, point in pairwise(points):
        new = 0.0
        for what, total in point.counted.items():
            if what[0] == kind:
                known = last.get(what, 0.0)
                new += total - known if total >= known else total  # its process began anew
        last |= point.counted
        found.append((point.at, new / max(point.at - before.at, 1e-9)))
    return found
