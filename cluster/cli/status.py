"""``escrowmq status``: shows replicas, broker groups and feedback processes, once or repeatedly."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from escrowmq.cluster.cli.failing import FAILED
from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import (
    Format,
    Shown,
    console,
    duration,
    plain,
    show_json,
    show_pairs,
    show_rows,
    when,
)
from escrowmq.cluster.reading_client import StatusSnapshot, take

if TYPE_CHECKING:
    from escrowmq.actors.admin.types import ClusterStatus, FeedbackStatus, GroupStatus, ReplicaStatus
    from escrowmq.replication.calling.answers import OverdueReport, TimersReport

NO_FEEDBACK = "no feedback process: no producer that answers checks has run yet"
#: Columns that fit a terminal of 100 characters and show whether and where there is a problem. The others
#: need --wide.
REPLICA_COLUMNS = ("replica", "node", "process", "role", "applied", "open", "free_disk", "well")
GROUP_COLUMNS = ("group", "leader", "format_level", "decisions_not_done", "oldest", "branches_open")
FEEDBACK_COLUMNS = ("feedback_process", "alive", "apps", "pairs", "pairs_with_checks", "errors")


@with_connection
def status(
    connection: ConnectionOptions,
    wide: Annotated[
        bool, typer.Option("--wide", help="All columns. Default: those that fit 100 characters.")
    ] = False,
    watch: Annotated[
        float | None, typer.Option(min=0.5, help="Repeat every this many seconds, until interrupted.")
    ] = None,
    shown: Shown = Format.table,
) -> None:
    """Show replicas, broker groups and feedback processes. Exit code 1 unless all replicas are healthy.

    With --watch, --format json prints one object per line.
    """
    look: StatusSnapshot = (
        connection.read("status") if watch is None else _watch(connection, watch, shown, wide=wide)
    )
    show(look, shown, wide=wide)
    if not look.well:
        raise typer.Exit(FAILED)


def _watch(connection: ConnectionOptions, every_s: float, shown: Format, *, wide: bool) -> StatusSnapshot:
    with connection.joined() as cluster:
        while True:
            show_again(take(cluster), shown, wide=wide)
            time.sleep(every_s)


def show_again(look: StatusSnapshot, shown: Format, *, wide: bool) -> None:
    """Clear the terminal and show; in a pipe, one output follows the other."""
    if shown is Format.json:
        print(json.dumps(plain(_told(look)), ensure_ascii=False), flush=True)
        return
    console().clear()
    console().print(when(int(time.time() * 1000)))
    show(look, shown, wide=wide)


def show(look: StatusSnapshot, shown: Format, *, wide: bool) -> None:
    """Tables, or one JSON document."""
    if shown is Format.json:
        show_json(_told(look))
        return
    found, health = look.found, look.health
    pairs: dict[str, Any] = {"cluster_id": found.cluster_id, "address": look.address}
    pairs |= {"namespace": look.namespace, "healthy": found.healthy, "nodes": len(health["nodes"])}
    pairs |= {"head": look.head} if look.head else {}
    if changes := health.get("member_problems"):  # {} without problems; the supervisor may be away
        pairs["changes_of_members"] = "; ".join(f"group {gid}: {text}" for gid, text in changes.items())
    pairs |= {"supervisor": look.away} if look.away else {}
    seats = {(r["group"], r["replica"]): r for r in health["replicas"]}
    rows = [
        replica_row(replica, seats.get((replica.group, replica.replica), {}))
        for group in found.groups
        for replica in group.replicas
    ]
    if problems := problems_of(found, rows):
        pairs["problems"] = "\n".join(problems)
    show_pairs(shown, found, pairs)
    tables: list[tuple[Sequence[Mapping[str, Any]], Sequence[str]]] = [
        (rows, REPLICA_COLUMNS),
        (group_rows(found), GROUP_COLUMNS),
        (feedback_rows(found), FEEDBACK_COLUMNS),
    ]
    for lines, narrow in tables:
        columns = (
            list(lines[0]) if lines and wide else [name for name in narrow if lines and name in lines[0]]
        )
        show_rows(shown, lines, columns, empty=NO_FEEDBACK)


def problems_of(found: ClusterStatus, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All problems, one per line: of replicas and groups, and failures that the supervisor saw."""
    told = list(found.problems)
    told += [f"group {group.group}: {text}" for group in found.groups for text in alarms(group)]
    failed = [f"replica {row['replica']}: {row['failure']}" for row in rows if row["failure"]]
    return told + failed + tables_missing(found)


def tables_missing(found: ClusterStatus) -> list[str]:
    """Fences' tables that transactions wait for; an application must mend that."""
    reports = [status.report for status in found.feedback or () if status.report is not None]
    missing = dict.fromkeys(name for report in reports for name in report.tables_missing)
    return [
        f"app {app}: no producer online has the fence's table {fence}, and transactions wait for one: start "
        "one with that database, or decide them (escrowmq txn list). A producer whose connections lead to "
        "another table says so in its log"
        for app, _, fence in (name.rpartition(" ") for name in missing)
    ]


def _told(look: StatusSnapshot) -> dict[str, Any]:
    told = {**look.health, "away": look.away, "head_in_words": look.head}
    said = {"healthy": look.found.healthy, "problems": list(look.found.problems), "address": look.address}
    return {**plain(look.found), **said, "supervisor": told}


def group_rows(found: ClusterStatus) -> list[dict[str, Any]]:
    """One row for each broker group, with what its replicas have in common."""
    return [_group(group) for group in found.groups]


def _group(group: GroupStatus) -> dict[str, Any]:
    across, ids = group.across, group.given_ids
    short_ms = None if ids is None else ids.short_ms
    return {
        "group": group.group,
        "leader": group.leader,
        "format_level": group.level or None,
        "decisions_not_done": across and across.undone,
        "oldest": across and _age(across.oldest_ms),
        "branches_open": across and across.branches,
        "branches_due": across and across.due,
        "branch_against_home": across and across.against_home,
        "delayed_messages": group.timers and f"{group.timers.waiting} of {group.timers.most}",
        "next_delayed": group.timers and _due(group.timers.next_ms),
        "ids_of_applications": ids and f"{ids.count} of {ids.most}",
        "checks_overdue": None if group.overdue is None else group.overdue.count,
        "ids_remembered": None if ids is None else "as promised" if short_ms is None else _short(short_ms),
    }


def alarms(group: GroupStatus) -> list[str]:
    """Conditions of a group that an operator must act on."""
    against = group.across.against_home if group.across is not None else 0
    short_ms = group.given_ids.short_ms if group.given_ids is not None else None
    return [
        *([f"{against} branches against their home"] if against else []),
        *([] if short_ms is None else [f"ids are remembered {_short(short_ms)}"]),
        *([_overdue(group.overdue)] if group.overdue is not None and group.overdue.count else []),
        *([_full(group.timers)] if group.timers is not None and _is_full(group.timers) else []),
    ]


def _overdue(late: OverdueReport) -> str:
    count = f"{'at least ' if late.limited else ''}{late.count}"
    return (
        f"{count} open transactions are overdue for a check, that of app {late.app}, topic {late.topic} by "
        f"{duration(late.oldest_ms)}: start an instance of the app that answers checks; if one runs, let the "
        f"group's leader change (escrowmq node maintenance)"
    )


def _is_full(timers: TimersReport) -> bool:
    return 0 < timers.most <= timers.waiting


def _full(timers: TimersReport) -> str:
    return (
        f"{timers.waiting} delayed messages wait, as many as it takes: new ones are refused; cancel some "
        "(escrowmq schedule list), or raise broker.timers_max"
    )


def _short(short_ms: int) -> str:
    return f"ONLY {duration(short_ms)}: too many came"


def feedback_rows(found: ClusterStatus) -> list[dict[str, Any]]:
    """One row for each feedback process."""
    if found.feedback is None:
        return [{"feedback_process": "not known: Ray did not answer in time"}]
    return [_feedback(status) for status in found.feedback]


def _feedback(status: FeedbackStatus) -> dict[str, Any]:
    report = status.report
    return {
        "feedback_process": status.shard,
        "alive": report is not None,
        "pid": report and report.pid,
        "apps": report and report.apps,
        "pairs": report and report.pairs_here,
        "pairs_with_checks": report and report.pairs_working,
        "pairs_due": report and report.pairs_due,
        "producers_parked": report and report.polls_parked,
        "polls_refused": report and report.counts.get("polls_refused", 0),
        "errors": report and report.counts.get("errors", 0),
    }


def _due(next_ms: int | None) -> str | None:
    return when(next_ms) if next_ms else None


def _age(since_ms: int) -> str | None:
    return duration(max(time.time() * 1000 - since_ms, 0)) if since_ms else None


def replica_row(replica: ReplicaStatus, seat: dict[str, Any]) -> dict[str, Any]:
    """The row for a replica; ``seat``: what the supervisor knows about it."""
    failure, scrub = seat.get("failure"), replica.details.get("scrub") or {}
    return {
        "replica": f"{replica.group}/{replica.replica}",
        "node": seat.get("node"),
        "process": "node missing" if seat.get("node_missing") else seat.get("condition"),
        "role": replica.role,
        "term": replica.term,
        "committed": replica.commit_index,
        "applied": replica.applied_index,
        "durable": replica.durable_index,
        "open": replica.open_transactions,
        "free_disk": decimal(replica.details["free_bytes"]) if replica.details.get("free_bytes") else None,
        "damaged": scrub.get("damaged"),
        "mended": scrub.get("mended"),
        "scrubbed": _days_ago(scrub.get("done_ms")),
        "failure": failure["text"] if failure else None,
        "well": not (failure or replica.problems),
    }


def _days_ago(ms: int | None) -> str | None:
    """When the last scrub (a re-read of everything that the replica stores) ended."""
    if ms is None:
        return None
    return "not yet" if ms == 0 else f"{max(0.0, time.time() - ms / 1000) / 86_400:.1f} days ago"
