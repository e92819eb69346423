"""Generates the tables in docs/metrics.md from the table of metrics.

``python -m escrowmq.cluster.exporter.metrics_doc docs/metrics.md`` rewrites them: it replaces the text
between the comment lines and nothing else. A test compares the page with the table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from escrowmq.cluster.exporter.metric import Alert, Metric
from escrowmq.cluster.exporter.rules import alerts
from escrowmq.cluster.exporter.table import METRICS

_REGION = re.compile(r"(<!-- table: (\w+) \(.*?-->\n).*?(<!-- end of table -->\n)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with both tables up to date. Raises ValueError if the page has no region for one of them."""
    made = {"metrics": _metrics(), "alerts": _alerts()}
    named = [found[2] for found in _REGION.finditer(page)]
    if sorted(named) != sorted(made):
        raise ValueError(f"the page has regions for {named}; it needs one for each of {list(made)}")
    return _REGION.sub(lambda found: found[1] + made[found[2]] + found[3], page)


def _metrics() -> str:
    rows = ["| metric | kind | labels | meaning | source |", "|---|---|---|---|---|"]
    return "\n".join(rows + [_metric(metric) for metric in METRICS]) + "\n"


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | {metric.source} |"


def _alerts() -> str:
    rows = ["| alert | severity | fires when | for | what to do first |", "|---|---|---|---|---|"]
    return "\n".join(rows + [_alert(alert) for alert in alerts()]) + "\n"


def _alert(alert: Alert) -> str:
    hold = f"{alert.hold_s // 60} min" if alert.hold_s % 60 == 0 and alert.hold_s else f"{alert.hold_s} s"
    expr = alert.expr.replace("|", "&#124;")
    return f"| `{alert.name}` | {alert.severity} | `{expr}` | {hold} | {alert.action} |"


def main() -> None:
    """Write the tables into the file named on the command line."""
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text()))


if __name__ == "__main__":
    main()
