"""``escrowmq up|down|status|demo``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from escrowmq.cluster.cli.failing import FAILED
from escrowmq.cluster.cli.options import ConnectionOptions, Format, Shown, with_connection
from escrowmq.cluster.cli.output import console, note, plain, show_json, show_pairs, show_rows


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
    """Start EscrowMQ on a running Ray cluster. If it runs already, nothing is changed."""
    from escrowmq.cluster.config import load_config
    from escrowmq.cluster.deploy import deploy

    settings = load_config(
        connection.config,
        {
            "cluster": {"groups": groups, "replicas": replicas, "namespace": connection.namespace},
            "storage": {"data_dir": data_dir},
            "supervisor": {"nodes_min": nodes_min},
        },
    )
    with Console(file=sys.stderr).status("starting brokers"):
        info = deploy(settings, connection.address, wait=wait, adopt=adopt)
    pairs = {"cluster_id": info.cluster_id, "namespace": info.namespace}
    show_pairs(shown, info, {**pairs, "groups": info.groups, "replicas": info.replicas})
    if not wait:
        note("starting in the background; see escrowmq status")


@with_connection
def down(connection: ConnectionOptions) -> None:
    """Stop EscrowMQ: leaders hand over, brokers sync and end. Data stay; Ray goes on running."""
    from escrowmq.cluster.launch import stop_cluster

    with connection.joined() as cluster:
        stop_cluster(cluster.info.namespace)
    note(f"stopped the cluster in namespace {cluster.info.namespace!r}; its data stay")


@with_connection
def status(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """Leaders, terms and positions of every replica. Exit code 1 unless all is well."""
    with connection.joined() as cluster:
        found, health = cluster.status(), cluster.health()
        where = cluster.address
    if shown is Format.json:
        show_json({**plain(found), "healthy": found.healthy, "address": where, "supervisor": health})
    else:
        pairs = {"cluster_id": found.cluster_id, "address": where, "namespace": cluster.info.namespace}
        show_pairs(shown, found, {**pairs, "healthy": found.healthy, "nodes": len(health["nodes"])})
        seats = {(r["group"], r["replica"]): r for r in health["replicas"]}
        rows = [
            _replica(replica, seats.get((replica.group, replica.replica), {}))
            for group in found.groups
            for replica in group.replicas
        ]
        show_rows(shown, rows, list(rows[0]))
    if not found.healthy:
        raise typer.Exit(FAILED)


def _replica(replica: Any, seat: dict[str, Any]) -> dict[str, Any]:
    failure, scrub = seat.get("failure"), replica.details.get("scrub") or {}
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
        "damaged": scrub.get("damaged"),
        "mended": scrub.get("mended"),
        "scrubbed": _days_ago(scrub.get("done_ms")),
        "problem": failure["text"] if failure else None,
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
