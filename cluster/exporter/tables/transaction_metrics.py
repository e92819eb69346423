"""The metrics of transactions and of the checks that close them."""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Alert, Kind, Metric, Panel, Severity
from escrowmq.cluster.exporter.tables.words import (
    GROUP,
    REPLICA,
    THE_BROKER,
    THE_LEADER,
    TRANSACTIONS,
    quantiles_of,
    rate_by,
)

TRANSACTION_METRICS: tuple[Metric, ...] = (
    Metric(
        name="escrowmq_transactions_open",
        kind=Kind.gauge,
        labels=("group", "app"),
        help="Transactions that are prepared but not yet decided.",
        source=THE_LEADER,
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
        source=THE_LEADER,
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
        source=THE_LEADER,
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
        source=f"{THE_BROKER}, while it leads",
        panel=Panel(
            title="Transactions prepared per second",
            row=TRANSACTIONS,
            lines=(rate_by("escrowmq_transactions_prepared_total", "group", "group {{group}}"),),
        ),
    ),
    Metric(
        name="escrowmq_transactions_decided_total",
        kind=Kind.counter,
        labels=(*REPLICA, "outcome", "by"),
        help=(
            "Transactions decided, each counted by the replica that led then. outcome: committed, "
            "rollback; by: producer, "
            "feedback (a check), home (of a branch), operator, policy, timeout (without a local "
            "transaction), claim (the same, of an earlier producer of the name), other."
        ),
        source=f"{THE_BROKER}, while it leads",
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
        source=f"{THE_BROKER}'s requests",
        panel=Panel(
            title="PREPARE at the leader",
            row=TRANSACTIONS,
            unit="s",
            lines=quantiles_of("escrowmq_transactions_prepare_seconds"),
        ),
    ),
    Metric(
        name="escrowmq_transactions_commit_seconds",
        kind=Kind.histogram,
        labels=REPLICA,
        unit="seconds",
        help="Time from the arrival of a request with COMMITs or ROLLBACKs to its answer, at the leader.",
        source=f"{THE_BROKER}'s requests",
        panel=Panel(
            title="COMMIT and ROLLBACK at the leader",
            row=TRANSACTIONS,
            unit="s",
            lines=quantiles_of("escrowmq_transactions_commit_seconds"),
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
            title="Checks per second", row=TRANSACTIONS, lines=(rate_by("escrowmq_checks_total", "result"),)
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
        source=THE_LEADER,
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
        source=THE_LEADER,
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
