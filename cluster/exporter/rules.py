"""Generates deploy/prometheus/rules.yml: the alerts of the table as Prometheus rules.

``python -m escrowmq.cluster.exporter.rules deploy/prometheus/rules.yml`` writes the file; a test compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from escrowmq.cluster.exporter.metric import Alert
from escrowmq.cluster.exporter.table import METRICS

INTRODUCTION = """\
# Alerts for an EscrowMQ cluster. Generated from cluster/exporter/table.py by `make instruments`; a test keeps
# this file current.
# severity "page": act now; "ticket": during working hours. See docs/metrics.md.
"""

#: The shortest range in seconds: it must contain two scrapes, at the interval used in tests.
SCRAPES_S = 5.0
#: A range in a rule: seconds, minutes or hours.
_RANGE = re.compile(r"\[(\d+)([smh])\]")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def alerts() -> list[Alert]:
    """All alerts, in the order of the table."""
    return [alert for metric in METRICS for alert in metric.alerts]


def rules(speed: float = 1.0) -> str:
    """The whole file. ``speed``: the factor by which all times are shortened, for tests of the rules."""
    lines = [INTRODUCTION + "groups:", "  - name: escrowmq", "    rules:"]
    for alert in alerts():
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(_RANGE.sub(lambda found: _sooner(found, speed), alert.expr))}",
            f"        for: {_duration(alert.hold_s / speed)}",
            f"        labels: {{ severity: {alert.severity.value} }}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          action: {_quoted(alert.action)}",
        ]
    return "\n".join(lines) + "\n"


def _sooner(found: re.Match[str], speed: float) -> str:
    """A range, shortened, but never so much that it could contain fewer than two scrapes."""
    return f"[{_duration(max(int(found[1]) * _SECONDS[found[2]] / speed, SCRAPES_S))}]"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole}s" if whole == seconds else f"{round(seconds * 1000)}ms"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def main() -> None:
    """Write the file named on the command line."""
    Path(sys.argv[1]).write_text(rules())


if __name__ == "__main__":
    main()
