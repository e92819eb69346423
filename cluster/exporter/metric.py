"""The types of the table of metrics: metric, alert, panel."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """Prometheus' types of metrics."""

    gauge = "gauge"
    counter = "counter"
    histogram = "histogram"


class Severity(enum.StrEnum):
    """How urgent an alert is: ``page`` needs action now, ``ticket`` during working hours."""

    page = "page"
    ticket = "ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert that fires once ``expr`` has had a result for ``hold_s`` seconds.

    ``summary`` may refer to labels in Prometheus' template syntax. ``action``: what to do first.
    """

    name: str
    severity: Severity
    expr: str
    hold_s: int
    summary: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A graph. ``lines``: the expression and the legend of each line. ``unit``: Grafana's name of it."""

    title: str
    row: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric. ``source``: the process that measures it. ``unit``: "" for a plain count."""

    name: str
    kind: Kind
    help: str
    source: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    alerts: tuple[Alert, ...] = ()
    panel: Panel | None = field(default=None)
