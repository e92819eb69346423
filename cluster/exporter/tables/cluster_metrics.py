"""The metrics of the cluster and its broker groups."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Alert, Kind, Metric, Panel, Severity
from escrowmq.cluster.exporter.tables.words import CLUSTER, GROUP, THE_BROKER, THE_EXPORTER, THE_STATUS

CLUSTER_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_group_has_leader",
        kind=Kind.gauge,
        labels=GROUP,
        help="1 while the group has a leader that answers as such, else 0.",
        source=THE_STATUS,
        alerts=(
            Alert(
                name="EscrowMQNoLeader",
                severity=Severity.page,
                expr="escrowmq_group_has_leader == 0",
                hold_s=30,
                summary="Broker group {{ $labels.group }} has no leader: nothing can be written there.",
                action="Bring back a majority of its replicas: escrowmq status shows which are missing.",
            ),
        ),
        panel=Panel(
            title="Groups with a leader",
            row=CLUSTER,
            lines=(("escrowmq_group_has_leader", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_group_leader_changes_total",
        kind=Kind.counter,
        labels=GROUP,
        help="Number of times that a replica of the group became its leader.",
        source=f"{THE_BROKER}s, summed by {THE_EXPORTER}",
        alerts=(
            Alert(
                name="EscrowMQLeaderChanges",
                severity=Severity.ticket,
                expr="increase(escrowmq_group_leader_changes_total[10m]) > 3",
                hold_s=0,
                summary=("Broker group {{ $labels.group }} changed leader more than 3 times in 10 minutes."),
                action="Look for replicas that stall (driver stall, fsync) and for links that break.",
            ),
        ),
        panel=Panel(
            title="Leader changes in 10 minutes",
            row=CLUSTER,
            lines=(("increase(escrowmq_group_leader_changes_total[10m])", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_group_voters",
        kind=Kind.gauge,
        labels=GROUP,
        help="Voting replicas of the group, running or not.",
        source=THE_STATUS,
    ),
    Metric(
        name="escrowmq_group_spare_replicas",
        kind=Kind.gauge,
        labels=GROUP,
        help="Running voting replicas beyond a majority: the number of losses that the group survives now.",
        source=f"{THE_STATUS}, computed by {THE_EXPORTER}",
        alerts=(
            Alert(
                name="EscrowMQNoSpareReplica",
                severity=Severity.page,
                expr="escrowmq_group_spare_replicas < 1 and escrowmq_group_voters > 1",
                hold_s=600,
                summary="Broker group {{ $labels.group }} cannot survive the loss of another replica.",
                action="escrowmq status shows which replica is missing and why; bring its node back.",
            ),
        ),
        panel=Panel(
            title="Replicas to spare",
            row=CLUSTER,
            lines=(("escrowmq_group_spare_replicas", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_supervisor_up",
        kind=Kind.gauge,
        help="1 while the supervisor answers. Without it, nothing lost is replaced; messages still flow.",
        source="the supervisor",
        alerts=(
            Alert(
                name="EscrowMQSupervisorAbsent",
                severity=Severity.page,
                expr="escrowmq_supervisor_up == 0",
                hold_s=300,
                summary="The supervisor does not answer: lost replicas are not replaced.",
                action="Ray restarts it on the head node: check that this node is up and has free resources.",
            ),
        ),
    ),
    Metric(
        name="escrowmq_exporter_last_look_timestamp_seconds",
        kind=Kind.gauge,
        unit="seconds",
        help="When the exporter finished its last look at the cluster, in seconds since the epoch.",
        source=THE_EXPORTER,
        alerts=(
            Alert(
                name="EscrowMQNotWatched",
                severity=Severity.page,
                expr=(
                    "absent(escrowmq_exporter_last_look_timestamp_seconds) "
                    "or time() - escrowmq_exporter_last_look_timestamp_seconds > 60"
                ),
                hold_s=300,
                summary="No exporter has looked at the cluster for a minute: other alerts cannot fire.",
                action="Restart escrowmq exporter; its log says what it cannot reach.",
            ),
        ),
    ),
    Metric(
        name="escrowmq_exporter_lag_timestamp_seconds",
        kind=Kind.gauge,
        labels=("group",),
        unit="seconds",
        help=(
            "When the exporter last found the lag of all consumer groups that the broker group coordinates, "
            "in seconds since the epoch. Those that it cannot find keep their last values."
        ),
        source=THE_EXPORTER,
    ),
    Metric(
        name="escrowmq_exporter_look_seconds",
        kind=Kind.gauge,
        unit="seconds",
        help="Duration of the exporter's last look at the cluster, which has a time limit.",
        source=THE_EXPORTER,
    ),
    Metric(
        name="escrowmq_exporter_names_limited",
        kind=Kind.gauge,
        labels=("label",),
        help='1 while this label has too many values: those without their own series count as "other".',
        source=THE_EXPORTER,
        alerts=(
            Alert(
                name="EscrowMQNamesLimited",
                severity=Severity.ticket,
                expr="escrowmq_exporter_names_limited == 1",
                hold_s=3600,
                summary='{{ $labels.label }} has more values than are shown: the others count as "other".',
                action="Only the names are missing; escrowmq topic list, txn list and group list show all.",
            ),
        ),
    ),
)
