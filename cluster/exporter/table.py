"""The table of all metrics: name, meaning, source, and the alerts and the panel that use it.

Names of metrics are defined only here. The exporter refuses a sample that is not listed, and the alert rules,
the Grafana board and docs/metrics.md are generated from this table (``make instruments``). Every label has a
bounded number of values: broker groups, replicas and reasons are few; of the names that applications choose a
limited number is shown (``names.py``), and all others count as "other".
"""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Alert, Kind, Metric, Panel, Severity

GROUP, REPLICA = ("group",), ("group", "replica")
CLUSTER, REPLICAS, TRANSACTIONS = "Cluster", "Replicas", "Transactions"
TOPICS = "Topics and consumers"

_BROKER = "the broker"
_STATUS = "the broker's status"
_LEADER = "the group's leader"
_EXPORTER = "the exporter"


def _rate(name: str, by: str, shown: str = "") -> tuple[str, str]:
    return f"sum by ({by}) (rate({name}[1m]))", shown or f"{{{{{by}}}}}"


def _quantiles(name: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({name}_bucket[1m])))", f"{round(q * 100)} %")
        for q in (0.5, 0.99)
    )


CLUSTER_METRICS = (
    Metric(
        name="escrowmq_group_has_leader",
        kind=Kind.gauge,
        labels=GROUP,
        help="1 while the group has a leader that answers as such, else 0.",
        source=_STATUS,
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
        source=f"{_BROKER}s, summed by {_EXPORTER}",
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
        source=_STATUS,
    ),
    Metric(
        name="escrowmq_group_spare_replicas",
        kind=Kind.gauge,
        labels=GROUP,
        help="Running voting replicas beyond a majority: the number of losses that the group survives now.",
        source=f"{_STATUS}, computed by {_EXPORTER}",
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
        source=_EXPORTER,
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
        name="escrowmq_exporter_look_seconds",
        kind=Kind.gauge,
        unit="seconds",
        help="Duration of the exporter's last look at the cluster, which has a time limit.",
        source=_EXPORTER,
    ),
    Metric(
        name="escrowmq_exporter_names_limited",
        kind=Kind.gauge,
        labels=("label",),
        help='1 while this label has too many values: those without their own series count as "other".',
        source=_EXPORTER,
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

REPLICA_METRICS = (
    Metric(
        name="escrowmq_replica_up",
        kind=Kind.gauge,
        labels=REPLICA,
        help="1 while the replica is running and answers in time, else 0.",
        source=_STATUS,
        panel=Panel(
            title="Replicas that answer",
            row=REPLICAS,
            lines=(("escrowmq_replica_up", "group {{group}}, replica {{replica}}"),),
        ),
    ),
    Metric(
        name="escrowmq_replica_commit_index",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Index of the last log entry that the replica knows to be committed.",
        source=_STATUS,
    ),
    Metric(
        name="escrowmq_replica_applied_index",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Index of the last log entry that the replica has applied: it can serve reads up to it.",
        source=_STATUS,
        alerts=(
            Alert(
                name="EscrowMQReplicaLags",
                severity=Severity.ticket,
                expr=(
                    "max by (group) (escrowmq_replica_commit_index) "
                    "- on (group) group_right escrowmq_replica_applied_index > 1000"
                ),
                hold_s=300,
                summary=(
                    "Replica {{ $labels.replica }} of group {{ $labels.group }} is {{ $value }} "
                    "entries behind."
                ),
                action="Check its disk (fsync) and CPU; a replica that is copying the log will catch up.",
            ),
        ),
        panel=Panel(
            title="Entries behind the group",
            row=REPLICAS,
            lines=(
                (
                    "max by (group) (escrowmq_replica_commit_index) "
                    "- on (group) group_right escrowmq_replica_applied_index",
                    "group {{group}}, replica {{replica}}",
                ),
            ),
        ),
    ),
    Metric(
        name="escrowmq_replica_durable_index",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Index of the last log entry that is durable on the replica's disk.",
        source=_STATUS,
    ),
    Metric(
        name="escrowmq_replica_learner",
        kind=Kind.gauge,
        labels=REPLICA,
        help="1 while the replica copies the log and does not yet count towards a majority.",
        source=_STATUS,
    ),
    Metric(
        name="escrowmq_replica_incarnation",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Number of times that the replica was rebuilt on another node.",
        source=_STATUS,
    ),
    Metric(
        name="escrowmq_replica_link_connects_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Connections made to other replicas.",
        source=f"{_BROKER}'s transport",
        alerts=(
            Alert(
                name="EscrowMQLinksBreak",
                severity=Severity.page,
                expr="rate(escrowmq_replica_link_connects_total[5m]) > 1",
                hold_s=60,
                summary=(
                    "Connections of replica {{ $labels.replica }} of group {{ $labels.group }} keep breaking."
                ),
                action="Its log says why each one ended; check the network, and what else uses its port.",
            ),
        ),
    ),
    Metric(
        name="escrowmq_replica_clients",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Producers and admins that are connected to it directly; the others use Ray's calls.",
        source=f"{_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_client_requests_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Requests that came over clients' own connections.",
        source=f"{_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_client_unread_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Answers that clients have not read; 64 MiB at most, and 8 MiB of one client.",
        source=f"{_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_clients_cut_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Clients that were disconnected because too many answers were unread; they go on through Ray.",
        source=f"{_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_driver_stall_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Delay of the regular tick (50 per second) of the thread that sends heartbeats.",
        source=f"{_BROKER}'s event loop",
        alerts=(
            Alert(
                name="EscrowMQDriverStalls",
                severity=Severity.page,
                expr=(
                    "increase(escrowmq_replica_driver_stall_seconds_count[5m]) - ignoring (le) "
                    'increase(escrowmq_replica_driver_stall_seconds_bucket{le="0.2"}[5m]) > 0.5'
                ),
                hold_s=600,
                summary=(
                    "Replica {{ $labels.replica }} of group {{ $labels.group }} repeatedly stalls for "
                    "more than 0.2 s; stalls of more than 0.3 s cost it its leadership."
                ),
                action="Give the node more CPU, or move the processes that starve the broker elsewhere.",
            ),
        ),
        panel=Panel(
            title="Stalls of the replicas' threads",
            row=REPLICAS,
            unit="s",
            lines=_quantiles("escrowmq_replica_driver_stall_seconds"),
        ),
    ),
    Metric(
        name="escrowmq_replica_fsync_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time to append entries to the log and sync them. A commit waits for two such syncs.",
        source=f"{_BROKER}'s disk thread",
        panel=Panel(
            title="Append and fdatasync",
            row=REPLICAS,
            unit="s",
            lines=_quantiles("escrowmq_replica_fsync_seconds"),
        ),
    ),
    Metric(
        name="escrowmq_replica_snapshot_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time to write a snapshot.",
        source=f"{_BROKER}'s checkpoint thread",
    ),
    Metric(
        name="escrowmq_replica_log_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Size of the replica's log.",
        source=_STATUS,
        panel=Panel(
            title="Log",
            row=REPLICAS,
            unit="bytes",
            lines=(("escrowmq_replica_log_bytes", "group {{group}}, replica {{replica}}"),),
        ),
    ),
    Metric(
        name="escrowmq_replica_disk_size_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Size of the file system that holds the replica's data.",
        source=_BROKER,
    ),
    Metric(
        name="escrowmq_replica_disk_free_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Free space of that file system. Below broker.disk_reserve_bytes, new work is refused.",
        source=_STATUS,
        alerts=(
            Alert(
                name="EscrowMQDiskLow",
                severity=Severity.page,
                expr="escrowmq_replica_disk_free_bytes / escrowmq_replica_disk_size_bytes < 0.1",
                hold_s=60,
                summary=(
                    "Less than 10 % of the disk of replica {{ $labels.replica }} of group "
                    "{{ $labels.group }} is free."
                ),
                action="Shorten a retention (escrowmq topic alter), trim a topic, or give it more disk.",
            ),
            Alert(
                name="EscrowMQDiskFullSoon",
                severity=Severity.page,
                expr="predict_linear(escrowmq_replica_disk_free_bytes[1h], 4 * 3600) < 0",
                hold_s=600,
                summary=(
                    "At the present rate, the disk of replica {{ $labels.replica }} of group "
                    "{{ $labels.group }} will be full within 4 hours."
                ),
                action="Find the topic that grows (bytes per topic) and shorten its retention.",
            ),
        ),
        panel=Panel(
            title="Free disk",
            row=REPLICAS,
            unit="bytes",
            lines=(("escrowmq_replica_disk_free_bytes", "group {{group}}, replica {{replica}}"),),
        ),
    ),
    Metric(
        name="escrowmq_refused_total",
        kind=Kind.counter,
        labels=(*REPLICA, "reason"),
        help="Refused requests. Clients retry most of them elsewhere (not_leader) or later (overloaded).",
        source=f"{_BROKER}'s requests",
        panel=Panel(
            title="Refused requests per second",
            row=REPLICAS,
            lines=(_rate("escrowmq_refused_total", "reason"),),
        ),
    ),
)

TRANSACTION_METRICS = (
    Metric(
        name="escrowmq_transactions_open",
        kind=Kind.gauge,
        labels=("group", "app"),
        help="Transactions that are prepared but not yet decided.",
        source=_LEADER,
        panel=Panel(
            title="Open transactions",
            row=TRANSACTIONS,
            lines=(("sum by (app) (escrowmq_transactions_open)", "{{app}}"),),
        ),
    ),
    Metric(
        name="escrowmq_transactions_parked",
        kind=Kind.gauge,
        labels=("group", "app"),
        help="Open transactions that are no longer checked: an operator has to decide them.",
        source=_LEADER,
        alerts=(
            Alert(
                name="EscrowMQTransactionsParked",
                severity=Severity.page,
                expr="escrowmq_transactions_parked > 0",
                hold_s=900,
                summary=(
                    "{{ $value }} transactions of app {{ $labels.app }} wait for an operator's decision."
                ),
                action="escrowmq txn list --state parked; then txn recheck, txn commit or txn rollback.",
            ),
        ),
    ),
    Metric(
        name="escrowmq_transactions_oldest_age_seconds",
        kind=Kind.gauge,
        labels=GROUP,
        unit="seconds",
        help=(
            "Age of the oldest open transaction in the group's log; retention cannot remove entries "
            "after it. 0: none is open."
        ),
        source=_LEADER,
        alerts=(
            Alert(
                name="EscrowMQTransactionOld",
                severity=Severity.page,
                expr="escrowmq_transactions_oldest_age_seconds > 3600",
                hold_s=60,
                summary="A transaction in group {{ $labels.group }} has been open for more than an hour.",
                action="escrowmq txn list shows it first; check that its app runs and its querier answers.",
            ),
        ),
        panel=Panel(
            title="Age of the oldest open transaction",
            row=TRANSACTIONS,
            unit="s",
            lines=(("escrowmq_transactions_oldest_age_seconds", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_transactions_prepared_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Transactions opened, each counted by the replica that led then. Sum over the replicas.",
        source=f"{_BROKER}, while it leads",
        panel=Panel(
            title="Transactions prepared per second",
            row=TRANSACTIONS,
            lines=(_rate("escrowmq_transactions_prepared_total", "group", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_transactions_decided_total",
        kind=Kind.counter,
        labels=(*REPLICA, "outcome", "by"),
        help=(
            "Transactions decided, each counted by the replica that led then. outcome: committed, "
            "rollback; by: producer, "
            "feedback (a check), home (of a branch), operator, policy, other."
        ),
        source=f"{_BROKER}, while it leads",
        panel=Panel(
            title="Transactions decided per second",
            row=TRANSACTIONS,
            lines=(
                (
                    "sum by (outcome, by) (rate(escrowmq_transactions_decided_total[1m]))",
                    "{{outcome}} by {{by}}",
                ),
            ),
        ),
    ),
    Metric(
        name="escrowmq_transactions_prepare_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time from the arrival of a request with PREPAREs to its answer, at the leader.",
        source=f"{_BROKER}'s requests",
        panel=Panel(
            title="PREPARE at the leader",
            row=TRANSACTIONS,
            unit="s",
            lines=_quantiles("escrowmq_transactions_prepare_seconds"),
        ),
    ),
    Metric(
        name="escrowmq_transactions_commit_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time from the arrival of a request with COMMITs or ROLLBACKs to its answer, at the leader.",
        source=f"{_BROKER}'s requests",
        panel=Panel(
            title="COMMIT and ROLLBACK at the leader",
            row=TRANSACTIONS,
            unit="s",
            lines=_quantiles("escrowmq_transactions_commit_seconds"),
        ),
    ),
    Metric(
        name="escrowmq_checks_total",
        kind=Kind.counter,
        labels=("process", "result"),
        help=(
            "Transaction checks by result: committed, rollback or unknown (the querier's answer), "
            "returned (no answer in time), parked."
        ),
        source="the feedback process",
        panel=Panel(
            title="Checks per second", row=TRANSACTIONS, lines=(_rate("escrowmq_checks_total", "result"),)
        ),
    ),
    Metric(
        name="escrowmq_checks_overdue",
        kind=Kind.gauge,
        labels=GROUP,
        help=(
            "Open transactions that have been due for a check for more than a minute, and were not "
            "checked. At least this many, if more than 20,000 are open."
        ),
        source=_LEADER,
        panel=Panel(
            title="Checks that are overdue",
            row=TRANSACTIONS,
            lines=(("escrowmq_checks_overdue", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_checks_overdue_oldest_seconds",
        kind=Kind.gauge,
        labels=GROUP,
        unit="seconds",
        help="For how long the most overdue of these has been due. 0: none is overdue.",
        source=_LEADER,
        alerts=(
            Alert(
                name="EscrowMQChecksOverdue",
                severity=Severity.page,
                expr="escrowmq_checks_overdue_oldest_seconds > 300",
                hold_s=300,
                summary=(
                    "A transaction in group {{ $labels.group }} has been due for a check for {{ $value }} s, "
                    "and was not checked: its messages are neither delivered nor dropped."
                ),
                action=(
                    "escrowmq status names its app: start an instance that answers checks. If one runs, let "
                    "the group's leader change (escrowmq node maintenance on and off at its node)."
                ),
            ),
        ),
    ),
    Metric(
        name="escrowmq_producers_online",
        kind=Kind.gauge,
        labels=("process",),
        help="Producers that poll this feedback process for checks. Each producer polls all processes.",
        source="the feedback process",
        panel=Panel(
            title="Producers that answer checks",
            row=TRANSACTIONS,
            lines=(("max(escrowmq_producers_online)", "producers"),),
        ),
    ),
    Metric(
        name="escrowmq_feedback_process_up",
        kind=Kind.gauge,
        labels=("process",),
        help=(
            "1 while the feedback process answers. There is no such process until a producer that "
            "answers checks has run."
        ),
        source="the feedback process",
    ),
)

TOPIC_METRICS = (
    Metric(
        name="escrowmq_topic_messages_total",
        kind=Kind.counter,
        labels=("topic",),
        help="Messages that became readable.",
        source=f"{_LEADER}, summed by {_EXPORTER}",
        panel=Panel(
            title="Messages per second", row=TOPICS, lines=(_rate("escrowmq_topic_messages_total", "topic"),)
        ),
    ),
    Metric(
        name="escrowmq_topic_bytes_total",
        kind=Kind.counter,
        labels=("topic",),
        unit="bytes",
        help="Bytes of messages that became readable since the exporter started.",
        source=f"{_LEADER}, summed by {_EXPORTER}",
        panel=Panel(
            title="Bytes per second",
            row=TOPICS,
            unit="Bps",
            lines=(_rate("escrowmq_topic_bytes_total", "topic"),),
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

DELAYED_METRICS = (
    Metric(
        name="escrowmq_delayed_waiting",
        kind=Kind.gauge,
        labels=GROUP,
        help="Delayed messages that cannot be read yet.",
        source=_LEADER,
        panel=Panel(
            title="Delayed messages that wait",
            row=TOPICS,
            lines=(("escrowmq_delayed_waiting", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_delayed_released_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Delayed messages that became readable while this replica led.",
        source=_BROKER,
        panel=Panel(
            title="Delayed messages that become readable, per second",
            row=TOPICS,
            lines=(_rate("escrowmq_delayed_released_total", "group", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_delayed_cancelled_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Delayed messages that were cancelled while this replica led.",
        source=_BROKER,
    ),
    Metric(
        name="escrowmq_delayed_lateness_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="How long after its time a delayed message was put into a log entry that makes it readable.",
        source=_BROKER,
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
            lines=_quantiles("escrowmq_delayed_lateness_seconds"),
        ),
    ),
)

METRICS: tuple[Metric, ...] = (
    *CLUSTER_METRICS, *REPLICA_METRICS, *TRANSACTION_METRICS, *TOPIC_METRICS, *DELAYED_METRICS
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in METRICS}
