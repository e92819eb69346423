"""The metrics of single replicas: log, disk, connections, threads."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Alert, Kind, Metric, Panel, Severity
from escrowmq.cluster.exporter.tables.words import (
    REPLICA,
    REPLICAS,
    THE_BROKER,
    THE_STATUS,
    quantiles_of,
    rate_by,
)

REPLICA_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_replica_up",
        kind=Kind.gauge,
        labels=REPLICA,
        help="1 while the replica is running and answers in time, else 0.",
        source=THE_STATUS,
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
        source=THE_STATUS,
    ),
    Metric(
        name="escrowmq_replica_applied_index",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Index of the last log entry that the replica has applied: it can serve reads up to it.",
        source=THE_STATUS,
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
        source=THE_STATUS,
    ),
    Metric(
        name="escrowmq_replica_learner",
        kind=Kind.gauge,
        labels=REPLICA,
        help="1 while the replica copies the log and does not yet count towards a majority.",
        source=THE_STATUS,
    ),
    Metric(
        name="escrowmq_replica_incarnation",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Number of times that the replica was rebuilt on another node.",
        source=THE_STATUS,
    ),
    Metric(
        name="escrowmq_replica_link_connects_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Connections made to other replicas.",
        source=f"{THE_BROKER}'s transport",
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
        source=f"{THE_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_client_requests_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Requests that came over clients' own connections.",
        source=f"{THE_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_client_unread_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Answers that clients have not read; 64 MiB at most, and 8 MiB of one client.",
        source=f"{THE_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_clients_cut_total",
        kind=Kind.counter,
        labels=REPLICA,
        help="Clients that were disconnected because too many answers were unread; they go on through Ray.",
        source=f"{THE_BROKER}'s door",
    ),
    Metric(
        name="escrowmq_replica_driver_stall_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Delay of the regular tick (50 per second) of the thread that sends heartbeats.",
        source=f"{THE_BROKER}'s event loop",
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
            lines=quantiles_of("escrowmq_replica_driver_stall_seconds"),
        ),
    ),
    Metric(
        name="escrowmq_replica_fsync_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time to append entries to the log and sync them. A commit waits for two such syncs.",
        source=f"{THE_BROKER}'s disk thread",
        panel=Panel(
            title="Append and fdatasync",
            row=REPLICAS,
            unit="s",
            lines=quantiles_of("escrowmq_replica_fsync_seconds"),
        ),
    ),
    Metric(
        name="escrowmq_replica_snapshot_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time to write a snapshot.",
        source=f"{THE_BROKER}'s checkpoint thread",
    ),
    Metric(
        name="escrowmq_replica_log_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Size of the replica's log.",
        source=THE_STATUS,
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
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_replica_run_files",
        kind=Kind.gauge,
        labels=REPLICA,
        help="Run files that the indexes of the replica's partitions are in.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_replica_stored_descriptors",
        kind=Kind.gauge,
        labels=REPLICA,
        help="How many of its run files and files of timers are open: at most 64.",
        source=THE_BROKER,
    ),
    Metric(
        name="escrowmq_replica_disk_free_bytes",
        kind=Kind.gauge,
        labels=REPLICA,
        unit="bytes",
        help="Free space of that file system. Below broker.disk_reserve_bytes, new work is refused.",
        source=THE_STATUS,
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
        source=f"{THE_BROKER}'s requests",
        panel=Panel(
            title="Refused requests per second",
            row=REPLICAS,
            lines=(rate_by("escrowmq_refused_total", "reason"),),
        ),
    ),
)
