"""The words of the table of metrics: what a metric, an alert and a panel are."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """As Prometheus has them."""

    gauge = "gauge"
    counter = "counter"
    histogram = "histogram"


class Severity(enum.StrEnum):
    """Who hears of an alert: somebody now, or somebody in working hours."""

    page = "page"
    ticket = "ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """It fires once ``expr`` has had a result for ``hold_s`` seconds. ``summary`` may name labels as the
    templates of Prometheus do; ``action``: what to do first."""

    name: str
    severity: Severity
    expr: str
    hold_s: int
    summary: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A graph. ``lines``: expression and legend of each; ``unit``: as Grafana names it."""

    title: str
    row: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``source``: who counts it, and where. ``unit``: "" is a number of things."""

    name: str
    kind: Kind
    help: str
    source: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    alerts: tuple[Alert, ...] = ()
    panel: Panel | None = field(default=None)
