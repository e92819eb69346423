"""deploy/prometheus/rules.yml: the alerts of the table, as Prometheus takes them.

``python -m escrowmq.cluster.exporter.rules deploy/prometheus/rules.yml`` writes the file; a test compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from escrowmq.cluster.exporter.metric import Alert
from escrowmq.cluster.exporter.table import METRICS

INTRODUCTION = """\
# Alerts of an EscrowMQ cluster. Made from cluster/exporter/table.py by `make instruments`; a test keeps it
# current.
# severity "page": somebody should look now; "ticket": in working hours. docs/metrics.md says more.
"""

#: The shortest range: two scrapes of a test.
SCRAPES_S = 5.0
#: A duration as the rules write it: seconds, minutes, hours.
_RANGE = re.compile(r"\[(\d+)([smh])\]")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def alerts() -> list[Alert]:
    """All of them, in the order of the table."""
    return [alert for metric in METRICS for alert in metric.alerts]


def rules(speed: float = 1.0) -> str:
    """The whole file. ``speed``: so many times sooner than in earnest, for tests of the rules themselves."""
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
    """A range must hold two scrapes, however fast it is."""
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
