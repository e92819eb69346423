"""``escrowmq up|down|status|demo``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal

from escrowmq.cluster.cli.failing import FAILED
from escrowmq.cluster.cli.options import ConnectionOptions, Format, Shown, with_connection
from escrowmq.cluster.cli.output import console, duration, note, plain, show_json, show_pairs, show_rows

if TYPE_CHECKING:
    from escrowmq.actors.admin.types import ClusterStatus, FeedbackStatus, GroupStatus, ReplicaStatus

NO_FEEDBACK = "no feedback process: no producer that answers checks has run yet"


@with_connection
def up(
    connection: ConnectionOptions,
    groups: Annotated[int | None, typer.Option(help="Broker groups (1). Fixed when founded.")] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Replicas of each group (3). Fixed when founded.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="On every node (/var/lib/escrowmq).")] = None,
    nodes_min: Annotated[int | None, typer.Option(help="Found a new cluster on no fewer nodes (1).")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until every group has a leader.")] = True,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over data of a cluster whose head node was lost.")
    ] = False,
    shown: Shown = Format.table,
) -> None:
    """Start EscrowMQ on a running Ray cluster. If it runs already, nothing is changed.

    If it runs with other settings, says which differ and how each is changed, and fails.
    """
    from escrowmq.cluster.config import load_config, stated
    from escrowmq.cluster.deploy import deploy

    given: dict[str, dict[str, Any]] = {
        "cluster": {"groups": groups, "replicas": replicas, "namespace": connection.namespace},
        "storage": {"data_dir": data_dir},
        "supervisor": {"nodes_min": nodes_min},
    }
    settings, known = load_config(connection.config, given), stated(connection.config, given)
    with Console(file=sys.stderr).status("starting brokers"):
        info = deploy(settings, connection.address, wait=wait, adopt=adopt, stated=known)
    pairs = {"cluster_id": info.cluster_id, "namespace": info.namespace}
    show_pairs(shown, info, {**pairs, "groups": info.groups, "replicas": info.replicas})
    if not wait:
        note("starting in the background; see escrowmq status")
    elif problem := _head_problem(connection):
        note(f"head: {problem}")


def _head_problem(connection: ConnectionOptions) -> str | None:
    """What the loss of Ray's head would do to a cluster of several nodes; on one node it is no other loss."""
    from escrowmq.cluster.head import Head, head_problem
    from escrowmq.replication.errors import Unavailable

    with connection.joined() as cluster:
        try:
            health = cluster.health()
            if not health.get("head") or len(health["nodes"]) < 2:
                return None
            return head_problem(Head(**health["head"]), cluster.head_waits(health))
        except Unavailable:  # the cluster has answered a moment ago: no reason to fail
            return None


@with_connection
def down(connection: ConnectionOptions) -> None:
    """Stop EscrowMQ: leaders hand over, brokers sync and end. Data stay; Ray goes on running."""
    from escrowmq.cluster.launch import stop_cluster

    with connection.joined() as cluster:
        stop_cluster(cluster.info.namespace)
    note(f"stopped the cluster in namespace {cluster.info.namespace!r}; its data stay")


@with_connection
def status(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """Replicas, broker groups and feedback processes. Exit code 1 unless all replicas are well."""
    from escrowmq.cluster.head import Head, head_in_words
    from escrowmq.replication.errors import ClusterNotFound, Unavailable

    health: dict[str, Any] = {"nodes": [], "replicas": []}
    away = head = None
    with connection.joined() as cluster:
        found = cluster.status()
        try:
            health = cluster.health()
            if health.get("head"):  # an embedded cluster's supervisor knows none
                head = head_in_words(Head(**health["head"]), cluster.head_waits(health))
        except (ClusterNotFound, Unavailable) as error:  # lost with Ray's head; the replicas have answered
            away = str(error)
        where = cluster.address
    if shown is Format.json:
        told = {**health, "away": away, "head_in_words": head}
        said = {"healthy": found.healthy, "problems": list(found.problems), "address": where}
        show_json({**plain(found), **said, "supervisor": told})
    else:
        pairs: dict[str, Any] = {"cluster_id": found.cluster_id, "address": where}
        pairs |= {"namespace": cluster.info.namespace}
        pairs |= {"healthy": found.healthy, "nodes": len(health["nodes"])}
        pairs |= {"problems": "\n".join(found.problems)} if found.problems else {}
        pairs |= {"head": head} if head else {}
        if problems := health.get("member_problems"):  # {} where all is well, absent from earlier versions
            pairs["changes_of_members"] = "; ".join(f"group {gid}: {text}" for gid, text in problems.items())
        show_pairs(shown, found, pairs | ({"supervisor": away} if away else {}))
        seats = {(r["group"], r["replica"]): r for r in health["replicas"]}
        rows = [
            replica_row(replica, seats.get((replica.group, replica.replica), {}))
            for group in found.groups
            for replica in group.replicas
        ]
        show_rows(shown, rows, list(rows[0]))
        for lines in (group_rows(found), feedback_rows(found)):
            show_rows(shown, lines, list(lines[0]) if lines else [], empty=NO_FEEDBACK)
    if away or not found.healthy:
        raise typer.Exit(FAILED)


def group_rows(found: ClusterStatus) -> list[dict[str, Any]]:
    """A line for each broker group: what is said once for all of its replicas."""
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
        "ids_of_applications": ids and f"{ids.count} of {ids.most}",
        "ids_remembered": None if ids is None else "as promised" if short_ms is None else _short(short_ms),
    }


def _short(short_ms: int) -> str:
    return f"ONLY {duration(short_ms)}: too many came"


def feedback_rows(found: ClusterStatus) -> list[dict[str, Any]]:
    """A line for each feedback process."""
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


def _age(since_ms: int) -> str | None:
    return duration(max(time.time() * 1000 - since_ms, 0)) if since_ms else None


def replica_row(replica: ReplicaStatus, seat: dict[str, Any]) -> dict[str, Any]:
    """A line for a replica; ``seat``: what the supervisor knows of it."""
    failure, scrub = seat.get("failure"), replica.details.get("scrub") or {}
    problems = [*replica.problems, *([failure["text"]] if failure else [])]
    return {
        "group": replica.group,
        "replica": replica.replica,
        "node": seat.get("node"),
        "process": "node missing" if seat.get("node_missing") else seat.get("condition"),
        "role": replica.role,
        "term": replica.term,
        "committed": replica.commit_index,
        "applied": replica.applied_index,
        "durable": replica.durable_index,
        "open_transactions": replica.open_transactions,
        "free_disk": decimal(replica.details["free_bytes"]) if replica.details.get("free_bytes") else None,
        "damaged": scrub.get("damaged"),
        "mended": scrub.get("mended"),
        "scrubbed": _days_ago(scrub.get("done_ms")),
        "problem": "; ".join(problems) or None,
    }


def _days_ago(ms: int | None) -> str | None:
    """When all that a replica stores was last read again."""
    if ms is None:
        return None
    return "not yet" if ms == 0 else f"{max(0.0, time.time() - ms / 1000) / 86_400:.1f} days ago"


def demo(
    scale: Annotated[float, typer.Option(help="TPC-H scale factor: 0.01 is 15,000 orders.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of the mishaps.")] = 7,
    replicas: Annotated[int, typer.Option(help="Replicas of the broker group.")] = 3,
    producers: Annotated[int, typer.Option(help="Producer processes; one of them is killed.")] = 3,
    spark: Annotated[bool, typer.Option(help="Let Spark on Ray compute the answers.")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data directory.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where to work (a temporary directory).")] = None,
) -> None:
    """Orders through escrow while producers and a broker are killed; exit code 0 if nothing is lost."""
    from escrowmq.cluster.demo.options import DemoOptions
    from escrowmq.cluster.demo.story import run_demo

    options = DemoOptions(
        scale=scale,
        seed=seed,
        replicas=replicas,
        producers=producers,
        spark=spark,
        keep=keep,
        directory=directory,
    )
    raise typer.Exit(run_demo(options, console() if not sys.stdout.isatty() else Console()))
