"""Encodes series with Prometheus' own library, in its text format or, if requested, OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from escrowmq.cluster.exporter.metric import Kind, Metric
from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.cluster.exporter.table import METRICS
from escrowmq.replication.calling.metrics_report import HistogramReport


class _Once(Collector):
    """A collector of the given series, in the order of the table."""

    def __init__(self, series: Mapping[Key, Value]) -> None:
        self._by_metric: dict[str, list[tuple[tuple[str, ...], Value]]] = {}
        for (name, labels), value in series.items():
            self._by_metric.setdefault(name, []).append((labels, value))

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            samples = self._by_metric.get(metric.name)
            if samples:
                yield _family(metric, samples)


def _family(metric: Metric, samples: list[tuple[tuple[str, ...], Value]]) -> Family:
    if metric.kind is Kind.histogram:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            assert isinstance(value, HistogramReport), metric.name
            bounds = [*map(str, map(float, value.bounds)), "+Inf"]
            buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
            histogram.add_metric(labels, buckets, value.total)
        return histogram
    counts = metric.kind is Kind.counter
    made = (CounterMetricFamily if counts else GaugeMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for labels, value in samples:
        assert not isinstance(value, HistogramReport), metric.name
        made.add_metric(labels, value)
    return made


def text(series: Mapping[Key, Value], accept: str = "") -> tuple[bytes, str]:
    """The page and its content type. ``accept``: the request's Accept header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(series))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
