"""``escrowmq up|down|demo``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, console, note, show_pairs

if TYPE_CHECKING:
    pass

NO_FEEDBACK = "no feedback process: no producer that answers checks has run yet"


@with_connection
def up(
    connection: ConnectionOptions,
    groups: Annotated[int | None, typer.Option(help="Broker groups (1). Fixed at the first start.")] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Replicas of each group (3). Fixed at the first start.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="On every node (/var/lib/escrowmq).")] = None,
    nodes_min: Annotated[
        int | None, typer.Option(help="Wait for this many nodes before a first start (1).")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until every group has a leader.")] = True,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over the data of a cluster whose head node was lost.")
    ] = False,
    shown: Shown = Format.table,
) -> None:
    """Start EscrowMQ on a running Ray cluster. If it is already running, nothing is changed.

    If it is running with other settings, the command says which differ and how to change each, and fails.
    """
    from escrowmq.cluster.config import load_config, stated
    from escrowmq.cluster.launch import deploy

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
    """What losing Ray's head would do to a cluster of several nodes.

    None on a single node: there, losing the head is the same as losing the node.
    """
    from escrowmq.cluster.settings import Head, head_problem
    from escrowmq.replication.errors import Unavailable

    with connection.joined() as cluster:
        try:
            health = cluster.health()
            if not health.get("head") or len(health["nodes"]) < 2:
                return None
            return head_problem(Head(**health["head"]), cluster.head_waits(health))
        except Unavailable:  # the cluster answered a moment ago; a missing remark is no reason to fail
            return None


@with_connection
def down(connection: ConnectionOptions) -> None:
    """Stop EscrowMQ: leaders hand over, brokers sync their logs and end. Data stay, and Ray keeps running."""
    from escrowmq.cluster.launch import stop_cluster

    with connection.joined() as cluster:
        stop_cluster(cluster.info.namespace)
    note(f"stopped the cluster in namespace {cluster.info.namespace!r}; its data stay")


def demo(
    scale: Annotated[float, typer.Option(help="TPC-H scale factor: 0.01 is 15,000 orders.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of the injected failures.")] = 7,
    replicas: Annotated[int, typer.Option(help="Replicas of the broker group.")] = 3,
    producers: Annotated[int, typer.Option(help="Producer processes; one of them is killed.")] = 3,
    spark: Annotated[bool, typer.Option(help="Compute the answers with Spark on Ray.")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data directory.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Working directory (a temporary one).")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="SVG file to write: the run as the exporter saw it.")
    ] = None,
    screen: Annotated[
        Path | None, typer.Option(help="SVG file to write: the output of this command.")
    ] = None,
) -> None:
    """Send orders transactionally while producers and a broker are killed; exit code 0 if nothing is lost."""
    from escrowmq.cluster.demo.options import DemoOptions
    from escrowmq.cluster.demo.screen import recording_console, save_screen
    from escrowmq.cluster.demo.story import run_demo

    options = DemoOptions(
        scale=scale,
        seed=seed,
        replicas=replicas,
        producers=producers,
        spark=spark,
        keep=keep,
        directory=directory,
        picture=picture,
        screen=screen,
    )
    if screen is None:
        raise typer.Exit(run_demo(options, console() if not sys.stdout.isatty() else Console()))
    recording = recording_console()
    result = run_demo(options, recording)
    save_screen(recording, screen, "make demo")
    raise typer.Exit(result)
