"""``escrowmq node``: shows what each node is used for; takes nodes out of use, briefly or for good."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from escrowmq.cluster.cli.members import Timeout, Wait, until_done
from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, plain, show_rows

COLUMNS = ("node", "use", "there", "head", "replicas", "leaders")

app = typer.Typer(no_args_is_help=True, help="List nodes; take a node out of use and back.")
Node = Annotated[str, typer.Argument(help="Name of the node; 'escrowmq node list' shows them.")]


class Switch(enum.StrEnum):
    """On or off."""

    on = "on"
    off = "off"


@app.command("list")
@with_connection
def list_nodes(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """List nodes: whether each is up, what it is used for, and its replicas and leaders."""
    found = connection.read("nodes")
    show_rows(shown, [plain(one) for one in found], COLUMNS)


@app.command("drain")
@with_connection
def drain(connection: ConnectionOptions, node: Node, wait: Wait = True, timeout_s: Timeout = 600.0) -> None:
    """Take a node out of use for good: its replicas are replaced by new ones on other nodes.

    Its leaders hand over first. It gets no new replicas; 'escrowmq node open' undoes this.
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
    switch: Annotated[Switch, typer.Argument(help="'on' before the node goes away, 'off' when it is back.")],
    node: Node,
    force: Annotated[
        bool, typer.Option("--force", help="Even if groups lose their majority without this node.")
    ] = False,
    wait: Wait = True,
    timeout_s: Timeout = 60.0,
) -> None:
    """Prepare a node's short absence: leaders hand over, and its replicas are not replaced meanwhile."""
    with connection.joined() as cluster:
        if switch is Switch.off:
            cluster.admin.open_node(node)
            note(f"node {node} is in use again")
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
    """Use a node again after it was drained or in maintenance."""
    with connection.joined() as cluster:
        cluster.admin.open_node(node)
    note(f"node {node} is in use again; 'escrowmq rebalance plan' shows what could move to it")
