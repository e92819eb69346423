"""The exporter's series among Ray's own metrics, ``ray_escrowmq_...``, for sites that collect only those.

Each series is a gauge there, with its value in ``/metrics``; counters and the buckets of histograms are
gauges, too. Ray's counters take increments, so they would start at 0 with each exporter, and Ray's
histograms take single values. Prometheus computes rates and quantiles from samples, whatever their type is,
so the expressions of the alerts and of the dashboard work with ``ray_`` before the names.

Ray exports a gauge only while it is set regularly. A series that is no longer found ends there by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Protocol

import ray
from ray.util.metrics import Gauge as RayGauge

from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.cluster.exporter.table import BY_NAME
from escrowmq.replication.calling.metrics_report import HistogramReport
from escrowmq.replication.errors import ConfigError


class Gauge(Protocol):
    """The part of Ray's gauge that is needed."""

    def set(self, value: float, tags: dict[str, str], /) -> object:
        """Set the series with these tags."""


def ray_gauge(name: str, text: str, labels: tuple[str, ...]) -> Gauge:
    """Create one of Ray's gauges in this process."""
    return RayGauge(name, text, labels)


class RayMirror:
    """Copies the series of each look to Ray, in the thread that looks at the cluster."""

    def __init__(self, make: Callable[[str, str, tuple[str, ...]], Gauge] = ray_gauge) -> None:
        """``make(name, help, labels)``: see ``ray_gauge``."""
        self._make = make
        self._gauges: dict[str, Gauge] = {}

    def take(self, series: Mapping[Key, Value]) -> None:
        """Export the series that a look has found."""
        for (name, values), value in series.items():
            labels = dict(zip(BY_NAME[name].labels, values, strict=True))
            if isinstance(value, HistogramReport):
                for end, more, part in _parts(value):
                    self._set(f"{name}{end}", name, labels | more, part)
            else:
                self._set(name, name, labels, value)

    def _set(self, name: str, metric: str, labels: dict[str, str], value: float) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = self._make(name, BY_NAME[metric].help, tuple(labels))
        gauge.set(value, labels)


def _parts(histogram: HistogramReport) -> Iterator[tuple[str, dict[str, str], float]]:
    """A histogram as Prometheus exports it: suffix of the name, additional labels, value."""
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        yield "_bucket", {"le": bound}, count
    yield "_sum", {}, histogram.total
    yield "_count", {}, sum(histogram.counts)


def check_exported() -> None:
    """Raises ConfigError if the Ray node of this process exports no metrics."""
    here = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    ports = [node["MetricsExportPort"] for node in nodes if node["NodeID"] == here]
    if not any(port > 0 for port in ports):
        raise ConfigError(
            "--ray-metrics: this node's Ray exports no metrics; install escrowmq[ray-metrics] on all nodes, "
            "and start Ray again"
        )
