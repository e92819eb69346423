"""The metrics of consumer groups with retries: leases, messages that come again, dead letters."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Alert, Kind, Metric, Panel, Severity
from escrowmq.cluster.exporter.tables.words import TOPICS

CONSUMER_GROUP = ("consumer_group",)
LEADERS = "the leaders of all broker groups"

SHARE_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_share_leased",
        kind=Kind.gauge,
        labels=CONSUMER_GROUP,
        help="Messages that consumers of a share group have and have not settled.",
        source=LEADERS,
    ),
    Metric(
        name="escrowmq_share_retrying",
        kind=Kind.gauge,
        labels=CONSUMER_GROUP,
        help="Messages that a consumer group could not handle, and that come again.",
        source=LEADERS,
        alerts=(
            Alert(
                name="EscrowMQRetriesPileUp",
                severity=Severity.ticket,
                expr="min_over_time(escrowmq_share_retrying[30m]) > 1000 "
                "and deriv(escrowmq_share_retrying[30m]) > 0",
                hold_s=0,
                summary="{{ $value }} messages of group {{ $labels.consumer_group }} wait for a retry.",
                action="Its handlers fail; their logs and escrowmq group describe say more.",
            ),
        ),
        panel=Panel(
            title="Messages that wait for a retry",
            row=TOPICS,
            lines=(("escrowmq_share_retrying", "{{consumer_group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_dead_letters",
        kind=Kind.gauge,
        labels=CONSUMER_GROUP,
        help="Messages with which a consumer group has given up, and that were neither redriven nor dropped.",
        source=LEADERS,
        alerts=(
            Alert(
                name="EscrowMQDeadLetters",
                severity=Severity.ticket,
                expr="escrowmq_dead_letters > 0 and delta(escrowmq_dead_letters[15m]) > 0",
                hold_s=0,
                summary="Group {{ $labels.consumer_group }} has new dead letters, {{ $value }} altogether.",
                action="escrowmq dead list shows why; mend the cause, then escrowmq dead redrive.",
            ),
        ),
        panel=Panel(
            title="Dead letters",
            row=TOPICS,
            lines=(("escrowmq_dead_letters", "{{consumer_group}}"),),
        ),
    ),
)
