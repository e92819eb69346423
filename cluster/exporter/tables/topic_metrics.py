"""The metrics of topics, and of the groups that read them."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Alert, Kind, Metric, Panel, Severity
from escrowmq.cluster.exporter.tables.words import THE_EXPORTER, THE_LEADER, TOPICS, rate_by

TOPIC_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_topic_messages_total",
        kind=Kind.counter,
        labels=("topic",),
        help="Messages that became readable.",
        source=f"{THE_LEADER}, summed by {THE_EXPORTER}",
        panel=Panel(
            title="Messages per second",
            row=TOPICS,
            lines=(rate_by("escrowmq_topic_messages_total", "topic"),),
        ),
    ),
    Metric(
        name="escrowmq_topic_bytes_total",
        kind=Kind.counter,
        labels=("topic",),
        unit="bytes",
        help="Bytes of messages that became readable since the exporter started.",
        source=f"{THE_LEADER}, summed by {THE_EXPORTER}",
        panel=Panel(
            title="Bytes per second",
            row=TOPICS,
            unit="Bps",
            lines=(rate_by("escrowmq_topic_bytes_total", "topic"),),
        ),
    ),
    Metric(
        name="escrowmq_consumer_lag",
        kind=Kind.gauge,
        labels=("consumer_group", "topic"),
        help=(
            "Messages that a consumer group has yet to read, in those of the topic's partitions "
            "where it has a committed offset."
        ),
        source="the coordinator of the consumer group",
        alerts=(
            Alert(
                name="EscrowMQConsumerLags",
                severity=Severity.ticket,
                expr=(
                    "min_over_time(escrowmq_consumer_lag[15m]) > 0 and deriv(escrowmq_consumer_lag[15m]) > 0"
                ),
                hold_s=900,
                summary=(
                    "Consumer group {{ $labels.consumer_group }} falls behind in topic {{ $labels.topic }}: "
                    "its lag is at least {{ $value }} messages."
                ),
                action="escrowmq group describe shows its members; start more, up to one per partition.",
            ),
        ),
        panel=Panel(
            title="Messages behind",
            row=TOPICS,
            lines=(
                ("sum by (consumer_group, topic) (escrowmq_consumer_lag)", "{{consumer_group}}: {{topic}}"),
            ),
        ),
    ),
)
