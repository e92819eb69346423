"""The exporter's series among Ray's own metrics, ``ray_escrowmq_...``, for those who collect nothing else.

Each series is a gauge there with the value that ``/metrics`` has, counters and buckets of histograms, too.
Ray's counters take what was added since they were made, so they would begin at 0 with each exporter, and its
histograms take single values. Prometheus computes rates and quantiles from samples, whatever their type is,
so the expressions of the alerts and of the dashboard hold with ``ray_`` before the names.

Ray passes a gauge on for as long as it is set again and again. What a look did not find ends there by itself.
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
    """As much of Ray's gauge as is needed."""

    def set(self, value: float, tags: dict[str, str], /) -> object:
        """Of the series with these tags."""


def ray_gauge(name: str, text: str, labels: tuple[str, ...]) -> Gauge:
    """One of Ray's, in this process."""
    return RayGauge(name, text, labels)


class RayMirror:
    """Mirrors looks, in the looking thread."""

    def __init__(self, make: Callable[[str, str, tuple[str, ...]], Gauge] = ray_gauge) -> None:
        """``make(name, help, labels)``: see ``ray_gauge``."""
        self._make = make
        self._gauges: dict[str, Gauge] = {}

    def take(self, series: Mapping[Key, Value]) -> None:
        """What a look has found."""
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
    """As Prometheus has a histogram: what its name ends in, further labels, value."""
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        yield "_bucket", {"le": bound}, count
    yield "_sum", {}, histogram.total
    yield "_count", {}, sum(histogram.counts)


def check_exported() -> None:
    """Raises ConfigError where the Ray node of this process exports no metrics."""
    here = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    ports = [node["MetricsExportPort"] for node in nodes if node["NodeID"] == here]
    if not any(port > 0 for port in ports):
        raise ConfigError(
            "--ray-metrics: this node's Ray exports no metrics; install escrowmq[ray-metrics] on all nodes, "
            "and start Ray again"
        )
