"""The metrics of messages that wait for their time."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Alert, Kind, Metric, Panel, Severity
from escrowmq.cluster.exporter.tables.words import (
    GROUP,
    REPLICA,
    THE_BROKER,
    THE_LEADER,
    TOPICS,
    quantiles_of,
    rate_by,
)

DELAYED_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_delayed_waiting",
        kind=Kind.gauge,
        labels=GROUP,
        help="Delayed messages that cannot be read yet.",
        source=THE_LEADER,
        panel=Panel(
            title="Delayed messages that wait",
            row=TOPICS,
            lines=(("escrowmq_delayed_waiting", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_delayed_bytes",
        kind=Kind.gauge,
        labels=GROUP,
        unit="bytes",
        help="Bytes of delayed messages that cannot be read yet.",
        source=THE_LEADER,
    ),
    Metric(
        name="escrowmq_delayed_pinned_bytes",
        kind=Kind.gauge,
        labels=GROUP,
        unit="bytes",
        help=(
            "Log that is kept for delayed messages alone. It is freed when they come due, or once they are "
            "carried (stored anew at the log's end), which begins when they are less than half of it."
        ),
        source=f"{THE_LEADER}, each time that it looks for what may be deleted",
        panel=Panel(
            title="Delayed messages, and the log that is kept for them alone",
            row=TOPICS,
            unit="bytes",
            lines=(
                ("escrowmq_delayed_bytes", "messages, group {{group}}"),
                ("escrowmq_delayed_pinned_bytes", "log, group {{group}}"),
            ),
        ),
    ),
    Metric(
        name="escrowmq_delayed_carried_entries_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Log entries with which this replica, as leader, has carried delayed messages.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_delayed_carried_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Delayed messages that were carried to the log's end, so that older log can go.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_delayed_carried_bytes_total",
        kind=Kind.counter,
        labels=REPLICA,
        unit="bytes",
        help="Bytes of these messages; 4 MiB a second at most.",
        source=THE_BROKER,
        panel=Panel(
            title="Delayed messages carried, per second",
            row=TOPICS,
            unit="Bps",
            lines=(rate_by("escrowmq_delayed_carried_bytes_total", "group", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_delayed_released_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Delayed messages that became readable while this replica led.",
        source=THE_BROKER,
        panel=Panel(
            title="Delayed messages that become readable, per second",
            row=TOPICS,
            lines=(rate_by("escrowmq_delayed_released_total", "group", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_delayed_cancelled_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Delayed messages that were cancelled while this replica led.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_delayed_lateness_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="How long after its time a delayed message was put into a log entry that makes it readable.",
        source=THE_BROKER,
        alerts=(
            Alert(
                name="EscrowMQDelayedMessagesLate",
                severity=Severity.ticket,
                expr=(
                    "histogram_quantile(0.5, sum by (group, le) "
                    "(rate(escrowmq_delayed_lateness_seconds_bucket[5m]))) > 5"
                ),
                hold_s=600,
                summary="Delayed messages of group {{ $labels.group }} come {{ $value }} s after their time.",
                action=(
                    "More become due than the group takes at a time, or its leader stalls: compare the "
                    "rate of those that become readable with the driver's stalls; spread the times, or use "
                    "more groups."
                ),
            ),
        ),
        panel=Panel(
            title="How late delayed messages are",
            row=TOPICS,
            unit="s",
            lines=quantiles_of("escrowmq_delayed_lateness_seconds"),
        ),
    ),
)
