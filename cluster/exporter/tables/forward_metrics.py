"""The metrics of what leaders write for consumer groups, and of the state of share groups."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Kind, Metric
from escrowmq.cluster.exporter.tables.words import GROUP, REPLICA, THE_BROKER, THE_LEADER

FORWARD_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_share_forwarded_total",
        kind=Kind.counter,
        labels=(*REPLICA, "result"),
        help=(
            "What became of messages that consumer groups could not handle, while this replica led: retried, "
            "dead, dropped, redriven (dead letters that are tried again), redirected (dead letters that were "
            "sent to another topic). And of replies: replied, and unheard (there was no topic for them)."
        ),
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_share_partitions",
        kind=Kind.gauge,
        labels=GROUP,
        help="Pairs of a share group and a partition. From 50,000 on no more begin.",
        source=THE_LEADER,
    ),
    Metric(
        name="escrowmq_share_ranges",
        kind=Kind.gauge,
        labels=GROUP,
        help=(
            "Ranges of acknowledged messages behind ones that are not, of all share groups. From 2,000,000 "
            "on nothing more is handed out."
        ),
        source=THE_LEADER,
    ),
)
