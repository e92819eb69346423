"""What the rows of the table share: labels, rows of the board, sources, lines of panels."""

from __future__ import annotations

GROUP, REPLICA = ("group",), ("group", "replica")
CLUSTER, REPLICAS, TRANSACTIONS = "Cluster", "Replicas", "Transactions"
TOPICS = "Topics and consumers"

THE_BROKER = "the broker"
THE_STATUS = "the broker's status"
THE_LEADER = "the group's leader"
THE_EXPORTER = "the exporter"


def rate_by(name: str, by: str, shown: str = "") -> tuple[str, str]:
    """A panel's line: the counter ``name`` a second over one minute, for each ``by``."""
    return f"sum by ({by}) (rate({name}[1m]))", shown or f"{{{{{by}}}}}"


def quantiles_of(name: str) -> tuple[tuple[str, str], ...]:
    """A panel's lines: the median and the 99th percentile of the histogram ``name``."""
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({name}_bucket[1m])))", f"{round(q * 100)} %")
        for q in (0.5, 0.99)
    )
