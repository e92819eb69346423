"""Generates deploy/grafana/escrowmq.json: the panels of the table as a Grafana dashboard.

``python -m escrowmq.cluster.exporter.board deploy/grafana/escrowmq.json`` writes the file; a test compares.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from escrowmq.cluster.exporter.metric import Panel
from escrowmq.cluster.exporter.table import METRICS

#: The schema of Grafana 10; later versions accept it.
SCHEMA_VERSION = 38
#: Grafana's grid has 24 columns: three panels in a row.
COLUMNS, WIDTH, HEIGHT = 24, 8, 8
#: The data source; Grafana asks for it when the dashboard is imported.
SOURCE = {"type": "prometheus", "uid": "${source}"}


def panels() -> list[Panel]:
    """All panels, in the order of the table."""
    return [metric.panel for metric in METRICS if metric.panel is not None]


def board() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    shown: list[dict[str, Any]] = []
    numbers, y = itertools.count(1), 0
    for row, group in itertools.groupby(panels(), key=lambda panel: panel.row):
        shown.append(
            {
                "id": next(numbers),
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            }
        )
        members = list(group)
        for at, panel in enumerate(members):
            grid_pos = {
                "h": HEIGHT,
                "w": WIDTH,
                "x": at * WIDTH % COLUMNS,
                "y": y + 1 + at * WIDTH // COLUMNS * HEIGHT,
            }
            shown.append(_panel(next(numbers), panel, grid_pos))
        y += 1 + -(-len(members) * WIDTH // COLUMNS) * HEIGHT
    return {
        "uid": "escrowmq",
        "title": "EscrowMQ",
        "description": "Generated from cluster/exporter/table.py by `make instruments`.",
        "tags": ["escrowmq"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            ]
        },
        "annotations": {"list": [_leader_changes()]},
        "panels": shown,
    }


def _leader_changes() -> dict[str, Any]:
    return {
        "name": "Changes of leader",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": "increase(escrowmq_group_leader_changes_total[30s]) > 0",
        "titleFormat": "group {{group}} has a new leader",
    }


def _panel(number: int, panel: Panel, grid_pos: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": grid_pos,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for at, (expr, legend) in enumerate(panel.lines)
        ],
    }


def page() -> str:
    """The whole file."""
    return json.dumps(board(), indent=2) + "\n"


def main() -> None:
    """Write the file named on the command line."""
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
