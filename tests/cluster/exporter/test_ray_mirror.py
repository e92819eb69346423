"""Series among Ray's metrics: the same names, labels and values as ``/metrics`` has."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from escrowmq.cluster.exporter import ray_mirror
from escrowmq.cluster.exporter.ray_mirror import RayMirror
from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.cluster.exporter.serving import text
from escrowmq.replication.calling.metrics_report import HistogramReport
from escrowmq.replication.errors import ConfigError

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

FOUND: dict[Key, Value] = {
    ("escrowmq_supervisor_up", ()): 1.0,
    ("escrowmq_replica_up", ("0", "1")): 0.0,
    ("escrowmq_refused_total", ("0", "1", "overloaded")): 7.0,
    ("escrowmq_refused_total", ("0", "2", "not_leader")): 3.0,
    ("escrowmq_replica_fsync_seconds", ("0", "1")): HistogramReport([0.001, 0.2], [5, 2, 1], 0.75),
}


def test_they_are_the_samples_of_the_page() -> None:
    samples: Samples = {}
    made: list[str] = []

    class Recording:
        def __init__(self, name: str, help_text: str, labels: tuple[str, ...]) -> None:
            self.name, self.labels = name, labels
            made.append(name)

        def set(self, value: float, tags: dict[str, str], /) -> None:
            assert tuple(tags) == self.labels
            samples[self.name, frozenset(tags.items())] = float(value)

    mirror = RayMirror(Recording)
    mirror.take({key: 0.0 for key, value in FOUND.items() if not isinstance(value, HistogramReport)})
    mirror.take(FOUND)
    families = text_string_to_metric_families(text(FOUND)[0].decode())
    page = [sample for family in families for sample in family.samples]
    assert samples == {(s.name, frozenset(s.labels.items())): s.value for s in page}
    assert len(made) == len(set(made)), "one gauge for each name"


@pytest.mark.parametrize(("port", "exported"), [(44227, True), (-1, False)])
def test_a_node_that_exports_nothing_is_no_place_for_it(
    monkeypatch: pytest.MonkeyPatch, port: int, exported: bool
) -> None:
    nodes = [{"NodeID": "here", "MetricsExportPort": port}, {"NodeID": "there", "MetricsExportPort": 1}]
    monkeypatch.setattr(ray_mirror.ray, "nodes", lambda: nodes)
    here = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(ray_mirror.ray, "get_runtime_context", lambda: here)
    with nullcontext() if exported else pytest.raises(ConfigError, match=r"escrowmq\[ray-metrics\]"):
        ray_mirror.check_exported()
