"""``escrowmq members``: shows and changes which replicas belong to each broker group."""

from __future__ import annotations

from typing import Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import show_rows
from escrowmq.cluster.cli.shown import Format, Shown
from escrowmq.cluster.cli.until_done import Timeout, Wait, until_done

COLUMNS = ("group", "leader", "voters", "learners", "next_replica", "version", "last_change")

app = typer.Typer(
    no_args_is_help=False,
    invoke_without_command=True,
    help="Show and change the replicas of each broker group: voters, learners, their number and nodes.",
)


@app.callback()
@with_connection
def members(connection: ConnectionOptions, ctx: typer.Context, shown: Shown = Format.table) -> None:
    """List each broker group's voters and learners (replicas still copying the log), with the version."""
    if ctx.invoked_subcommand is not None:
        return
    found = connection.read("members")
    table = shown is Format.table
    rows = [
        {
            "group": one.group,
            "leader": one.leader,
            "voters": _listed(one.voters) if table else one.voters,
            "learners": _listed(one.learners) if table else one.learners,
            "next_replica": one.next_replica,
            "version": one.version,
            "last_change": one.change_id or None,
            "applied": one.applied,
        }
        for one in found
    ]
    show_rows(shown, rows, COLUMNS)


@app.command("set")
@with_connection
def set_replicas(
    connection: ConnectionOptions,
    group: Annotated[int, typer.Argument(help="Broker group.")],
    replicas: Annotated[int, typer.Argument(help="Number of voting replicas: 1, 3, 5 or 7.")],
    wait: Wait = True,
    timeout_s: Timeout = 600.0,
) -> None:
    """Change a broker group's number of replicas while it is in use.

    Replicas are added or removed one at a time; a new one gets a vote once it holds the whole log.
    """
    with connection.joined() as cluster:
        cluster.admin.set_replicas(group, replicas)
        until_done(cluster.admin, wait, timeout_s, groups={group})


@app.command("move")
@with_connection
def move_replica(
    connection: ConnectionOptions,
    group: Annotated[int, typer.Argument(help="Broker group.")],
    replica: Annotated[int, typer.Argument(help="Number of the replica to replace.")],
    node: Annotated[str, typer.Argument(help="Name of the node for its replacement.")],
    wait: Wait = True,
    timeout_s: Timeout = 600.0,
) -> None:
    """Replace a replica by a new one, with a new number, on another node.

    The old replica and its directory are removed once the new one has a vote.
    """
    with connection.joined() as cluster:
        cluster.admin.move_replica(group, replica, node)
        until_done(cluster.admin, wait, timeout_s, groups={group})


@app.command("changes")
@with_connection
def changes(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """List broker groups whose replicas are not yet as wanted, and the next step for each."""
    found = connection.read("changes")
    rows = [
        {
            "group": one.group,
            "wanted": one.wanted,
            "voters": _listed(one.voters) if shown is Format.table else one.voters,
            "learners": _listed(one.learners) if shown is Format.table else one.learners,
            "step": f"waits: {one.step}" if one.waits and shown is Format.table else one.step,
            "waits": one.waits,
            "problem": one.problem,
        }
        for one in found
    ]
    columns = ("group", "wanted", "voters", "learners", "step", "problem")
    show_rows(shown, rows, columns, empty="all groups have the wanted replicas")


def _listed(replicas: tuple[int, ...]) -> str | None:
    return ", ".join(map(str, replicas)) or None
