"""``escrowmq group list|describe|reset|delete``: consumer groups: members, places, lag."""

from __future__ import annotations

from typing import Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, moment, with_connection
from escrowmq.cluster.cli.output import note, plain, show_json, show_pairs, show_rows
from escrowmq.cluster.cli.shown import Format, Shown

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")


@app.command("list")
@with_connection
def list_groups(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """List groups that have live members or committed offsets, with their lag."""
    found = connection.read("groups")
    rows = [
        {"group": g.group, "members": len(g.members), "partitions": len(g.partitions), "lag": g.lag}
        for g in found
    ]
    show_rows(shown, rows, ("group", "members", "partitions", "lag"), empty="no consumer groups yet")


@app.command()
@with_connection
def describe(
    connection: ConnectionOptions,
    name: Annotated[str, typer.Argument(help="Name of the group.", show_default=False)],
    shown: Shown = Format.table,
) -> None:
    """Show a group's members and, for each partition, its reader, committed offset and lag."""
    found = connection.read("group", name)
    if shown is Format.json:
        show_json({**plain(found), "lag": found.lag})
        return
    show_pairs(shown, found, {"group": found.group, "coordinator": found.coordinator, "lag": found.lag})
    members = [
        {
            "member": m.member,
            "topics": ", ".join(m.topics),
            "partitions": ", ".join(f"{topic}/{p}" for topic, p in m.partitions),
            "expires_in_s": round(m.expires_in_s, 1),
        }
        for m in found.members
    ]
    show_rows(shown, members, ("member", "topics", "partitions", "expires_in_s"), empty="no live members")
    places = [plain(place) for place in found.partitions]
    columns = ("topic", "partition", "member", "committed", "end", "lag")
    show_rows(shown, places, columns, empty="nothing committed")


@app.command()
@with_connection
def reset(
    connection: ConnectionOptions,
    name: Annotated[str, typer.Argument(help="Name of the group.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            help="earliest, latest, a date like 2026-01-31T12:00Z, or (for one partition) an offset.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str | None, typer.Option(help="Only this topic. Default: all that the group has committed in.")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition of the topic.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    shown: Shown = Format.table,
) -> None:
    """Move the committed offsets of a group without live members. Shows the new offsets and asks first."""
    from escrowmq.replication.errors import ConfigError

    goal = to if to in ("earliest", "latest") else int(to) if to.isdecimal() else moment(to)
    if goal is None:
        raise ConfigError(
            f"--to must be earliest, latest, an offset or a date like 2026-01-31T12:00Z, not {to!r}"
        )
    with connection.joined() as cluster:
        plan = cluster.admin.plan_group_reset(name, goal, topic, partition)
        columns = ("topic", "partition", "committed", "to", "start", "end")
        show_rows(shown, [plain(reset) for reset in plan], columns)
        if not yes:
            typer.confirm(f"Set the offsets of group {name} as shown?", abort=True, err=True)
        cluster.admin.reset_group(name, plan)
    note(f"group {name} continues from there")


@app.command()
@with_connection
def delete(
    connection: ConnectionOptions,
    name: Annotated[str, typer.Argument(help="Name of the group.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    shown: Shown = Format.table,
) -> None:
    """Delete a group without live members, with all its places. Shows them and asks for confirmation."""
    with connection.joined() as cluster:
        if not yes:
            places = [plain(place) for place in cluster.admin.describe_group(name).partitions]
            show_rows(shown, places, ("topic", "partition", "committed", "end", "lag"), empty="no places")
            typer.confirm(f"Delete group {name} with these places?", abort=True, err=True)
        cluster.admin.delete_group(name)
    note(f"group {name} is deleted")
