"""Rules, dashboard and page are what the table says; promtool finds that each rule tells ill from well."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from escrowmq.cluster.exporter import board, metrics_doc
from escrowmq.cluster.exporter.board import panels
from escrowmq.cluster.exporter.metric import Kind
from escrowmq.cluster.exporter.rules import alerts, rules
from escrowmq.cluster.exporter.table import BY_NAME, METRICS
from tests.support.prometheus import promtool

ROOT = Path(__file__).resolve().parents[3]
#: Values of these are few whatever applications do, or have a bound in exporter/series.py.
BOUNDED = {"group", "replica", "process", "label", "reason", "result", "outcome", "by"}
LIMITED = {"topic", "app", "consumer_group"}
_NAME = re.compile(r"escrowmq_\w+")


def test_the_files_are_what_the_table_says() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert (ROOT / "deploy/prometheus/rules.yml").read_text() == rules(), "run: make instruments"
    assert (ROOT / "deploy/grafana/escrowmq.json").read_text() == board.page(), "run: make instruments"
    assert page == metrics_doc.with_tables(page), "run: make instruments"
    with pytest.raises(ValueError, match="needs one"):
        metrics_doc.with_tables("<!-- table: alerts (made) -->\n<!-- end of table -->\n")


def test_names_say_what_they_are() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is Kind.counter), metric.name
        assert not metric.unit or metric.name.removesuffix("_total").endswith(metric.unit), metric.name
        assert set(metric.labels) <= BOUNDED | LIMITED, f"{metric.name}: what bounds its label?"
        assert metric.help.endswith("."), metric.name


def test_alerts_and_panels_ask_for_metrics_that_there_are() -> None:
    names = [alert.name for alert in alerts()]
    assert len(set(names)) == len(names)
    exprs = [alert.expr for alert in alerts()] + [expr for panel in panels() for expr, _ in panel.lines]
    asked = {name for expr in exprs for name in _NAME.findall(expr)}
    known = {f"{m.name}{end}" for m in METRICS for end in ("_bucket", "_count") if m.kind is Kind.histogram}
    assert asked <= known | {m.name for m in METRICS if m.kind is not Kind.histogram}


def test_promtool_takes_rules_configuration_and_the_panels_expressions(tmp_path: Path) -> None:
    promtool("check", "config", ROOT / "deploy/prometheus/prometheus.yml")  # with its rules
    lines = [expr for panel in panels() for expr, _ in panel.lines]
    recorded = [{"record": f"panel:{at}", "expr": expr} for at, expr in enumerate(lines)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"{len(lines)} rules found" in promtool("check", "rules", tmp_path / "panels.yml")
    (tmp_path / "fast.yml").write_text(rules(speed=200))
    promtool("check", "rules", tmp_path / "fast.yml")


#: Alert -> series (name and values, one a minute) in which it fires at the end, and in which it does not.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "EscrowMQNoLeader": (
        {'escrowmq_group_has_leader{group="0"}': "1x5 0x5"},
        {'escrowmq_group_has_leader{group="0"}': "1x5 0 1x5"},
    ),
    "EscrowMQLeaderChanges": (
        {'escrowmq_group_leader_changes_total{group="0"}': "1x5 2 3 4 5 6 7"},
        {'escrowmq_group_leader_changes_total{group="0"}': "1x5 2x5"},
    ),
    "EscrowMQNoSpareReplica": (
        {'escrowmq_group_spare_replicas{group="0"}': "0x15", 'escrowmq_group_voters{group="0"}': "3x15"},
        # A group of one never had any to spare, and was wanted so.
        {'escrowmq_group_spare_replicas{group="0"}': "0x15", 'escrowmq_group_voters{group="0"}': "1x15"},
    ),
    "EscrowMQSupervisorAbsent": ({"escrowmq_supervisor_up": "0x9"}, {"escrowmq_supervisor_up": "0x4 1x4"}),
    "EscrowMQNotWatched": (
        {"escrowmq_exporter_last_look_timestamp_seconds": "0x9"},
        {"escrowmq_exporter_last_look_timestamp_seconds": "0+60x9"},
    ),
    "EscrowMQReplicaLags": (
        {
            'escrowmq_replica_commit_index{group="0",replica="0"}': "5000+600x9",
            'escrowmq_replica_applied_index{group="0",replica="0"}': "5000+600x9",
            'escrowmq_replica_applied_index{group="0",replica="1"}': "3000x9",
        },
        {
            'escrowmq_replica_commit_index{group="0",replica="0"}': "5000+600x9",
            'escrowmq_replica_applied_index{group="0",replica="1"}': "4900+600x9",
            'escrowmq_replica_applied_index{group="1",replica="0"}': "3000x9",
        },
    ),
    "EscrowMQLinksBreak": (
        {'escrowmq_replica_link_connects_total{group="0",replica="0"}': "0+120x9"},
        {'escrowmq_replica_link_connects_total{group="0",replica="0"}': "0+30x9"},
    ),
    "EscrowMQDriverStalls": (
        {
            'escrowmq_replica_driver_stall_seconds_count{group="0",replica="0"}': "0+3000x19",
            'escrowmq_replica_driver_stall_seconds_bucket{group="0",replica="0",le="0.2"}': "0+2998x19",
            'escrowmq_replica_driver_stall_seconds_bucket{group="0",replica="0",le="0.1"}': "0+2990x19",
        },
        {
            'escrowmq_replica_driver_stall_seconds_count{group="0",replica="0"}': "0+3000x19",
            'escrowmq_replica_driver_stall_seconds_bucket{group="0",replica="0",le="0.2"}': "0+3000x19",
        },
    ),
    "EscrowMQDiskLow": (
        {
            'escrowmq_replica_disk_free_bytes{group="0",replica="0"}': "9x9",
            'escrowmq_replica_disk_size_bytes{group="0",replica="0"}': "100x9",
        },
        {
            'escrowmq_replica_disk_free_bytes{group="0",replica="0"}': "11x9",
            'escrowmq_replica_disk_size_bytes{group="0",replica="0"}': "100x9",
        },
    ),
    "EscrowMQDiskFullSoon": (
        {'escrowmq_replica_disk_free_bytes{group="0",replica="0"}': "2000-10x89"},
        {'escrowmq_replica_disk_free_bytes{group="0",replica="0"}': "20000-10x89"},
    ),
    "EscrowMQTransactionsParked": (
        {'escrowmq_transactions_parked{group="0",app="shop"}': "0 1x19"},
        {'escrowmq_transactions_parked{group="0",app="shop"}': "1x9 0 1x9"},
    ),
    "EscrowMQTransactionOld": (
        {'escrowmq_transactions_oldest_age_seconds{group="0"}': "3601+60x5"},
        {'escrowmq_transactions_oldest_age_seconds{group="0"}': "3000+60x5"},
    ),
    "EscrowMQChecksOverdue": (
        {'escrowmq_checks_overdue_oldest_seconds{group="0"}': "301+60x9"},
        {'escrowmq_checks_overdue_oldest_seconds{group="0"}': "61+60x5 0x9"},
    ),
    "EscrowMQDelayedMessagesLate": (
        {
            'escrowmq_delayed_lateness_seconds_bucket{group="0",replica="0",le="5"}': "0+10x19",
            'escrowmq_delayed_lateness_seconds_bucket{group="0",replica="0",le="10"}': "0+100x19",
            'escrowmq_delayed_lateness_seconds_bucket{group="0",replica="0",le="+Inf"}': "0+100x19",
        },
        {
            'escrowmq_delayed_lateness_seconds_bucket{group="0",replica="0",le="0.01"}': "0+90x19",
            'escrowmq_delayed_lateness_seconds_bucket{group="0",replica="0",le="10"}': "0+100x19",
            'escrowmq_delayed_lateness_seconds_bucket{group="0",replica="0",le="+Inf"}': "0+100x19",
        },
    ),
    "EscrowMQConsumerLags": (
        {'escrowmq_consumer_lag{consumer_group="billing",topic="t"}': "10+10x39"},
        {'escrowmq_consumer_lag{consumer_group="billing",topic="t"}': "1000-10x39"},
    ),
    "EscrowMQRetriesPileUp": (
        {'escrowmq_share_retrying{consumer_group="mail"}': "1001+10x39"},
        {'escrowmq_share_retrying{consumer_group="mail"}': "5000-10x39"},
    ),
    "EscrowMQDeadLetters": (
        {'escrowmq_dead_letters{consumer_group="mail"}': "0x20 1x5"},
        {'escrowmq_dead_letters{consumer_group="mail"}': "7x39"},
    ),
    "EscrowMQNamesLimited": (
        {'escrowmq_exporter_names_limited{label="app"}': "1x70"},
        {'escrowmq_exporter_names_limited{label="app"}': "0x70"},
    ),
}


def test_every_alert_fires_when_it_should_and_stays_silent_when_it_should_not(tmp_path: Path) -> None:
    assert set(CASES) == {alert.name for alert in alerts()}
    (tmp_path / "rules.yml").write_text(rules())
    tests: list[dict[str, Any]] = []
    for name, cases in CASES.items():
        for fires, series in zip((True, False), cases, strict=True):
            minutes = max(_minutes(values) for values in series.values()) - 1
            expr = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
            tests.append(
                {
                    "interval": "1m",
                    "name": f"{name} {fires}",
                    "input_series": [{"series": s, "values": v} for s, v in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": expr,
                            "eval_time": f"{minutes}m",
                            "exp_samples": [{"labels": "{}", "value": int(fires)}],
                        }
                    ],
                }
            )
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": tests})
    )
    promtool("test", "rules", tmp_path / "tests.yml")


def _minutes(values: str) -> int:
    """How many values a line of promtool's stands for: ``ax3`` is four."""
    return sum(int(part.partition("x")[2] or 0) + 1 for part in values.split())
