"""``escrowmq node``: what each node is used for; taking one out, for a while or for good."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import note, plain, show_rows
from escrowmq.cluster.cli.shown import Format, Shown
from escrowmq.cluster.cli.until_done import Timeout, Wait, until_done

COLUMNS = ("node", "use", "there", "head", "replicas", "leaders")

app = typer.Typer(no_args_is_help=True, help="Nodes: what they are used for; taking one out.")
Node = Annotated[str, typer.Argument(help="Name of the node; 'escrowmq node list' shows them.")]


class Switch(enum.StrEnum):
    """On or off."""

    on = "on"
    off = "off"


@app.command("list")
@with_connection
def list_nodes(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """Nodes: whether they are there, what they are used for, replicas and leaders on each."""
    with connection.joined() as cluster:
        found = cluster.admin.nodes()
    show_rows(shown, [plain(one) for one in found], COLUMNS)


@app.command("drain")
@with_connection
def drain(connection: ConnectionOptions, node: Node, wait: Wait = True, timeout_s: Timeout = 600.0) -> None:
    """Take a node out for good: its replicas are replaced by others on other nodes.

    Its leaders hand over first. Nothing comes to it any more; 'escrowmq node open' takes that back.
    """
    with connection.joined() as cluster:
        cluster.admin.drain_node(node)
        until_done(
            cluster.admin,
            wait,
            timeout_s,
            done=lambda: not any(one.replicas for one in cluster.admin.nodes() if one.node == node),
        )


@app.command("maintenance")
@with_connection
def maintenance(
    connection: ConnectionOptions,
    switch: Annotated[Switch, typer.Argument(help="Whether the node is about to be away.")],
    node: Node,
    force: Annotated[
        bool, typer.Option("--force", help="Also if groups stand still without this node.")
    ] = False,
    wait: Wait = True,
    timeout_s: Timeout = 60.0,
) -> None:
    """Take a node out for a while: leaders hand over, and its replicas are not replaced while it is away."""
    with connection.joined() as cluster:
        if switch is Switch.off:
            cluster.admin.open_node(node)
            note(f"node {node} is used as before")
            return
        cluster.admin.begin_maintenance(node, force=force)
        until_done(
            cluster.admin,
            wait,
            timeout_s,
            done=lambda: not any(one.leaders for one in cluster.admin.nodes() if one.node == node),
        )


@app.command("open")
@with_connection
def open_node(connection: ConnectionOptions, node: Node) -> None:
    """Use a node again that was drained, or that is back from maintenance."""
    with connection.joined() as cluster:
        cluster.admin.open_node(node)
    note(f"node {node} is used again; 'escrowmq rebalance plan' shows what may come to it")
