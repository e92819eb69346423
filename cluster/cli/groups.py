"""``escrowmq group list|describe|set|reset|delete``: consumer groups: members, offsets, lag, settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, number_or_date, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, plain, show_json, show_pairs, show_rows
from escrowmq.cluster.cli.transactions import By, signed

app = typer.Typer(no_args_is_help=True, help="List, describe, set, reset and delete consumer groups.")


@app.command("list")
@with_connection
def list_groups(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """List groups that have live members or committed offsets, with their lag."""
    found = connection.read("groups")
    rows = [
        {
            "group": g.group,
            "kind": g.kind,
            "members": len(g.members),
            "partitions": len(g.partitions) + (len(g.share.partitions) if g.share else 0),
            "lag": g.lag,
            "dead": g.share.dead if g.share else 0,
        }
        for g in found
    ]
    columns = ("group", "kind", "members", "partitions", "lag", "dead")
    show_rows(shown, rows, columns, empty="no consumer groups yet")


@app.command()
@with_connection
def describe(
    connection: ConnectionOptions,
    name: Annotated[str, typer.Argument(help="Name of the group.", show_default=False)],
    shown: Shown = Format.table,
) -> None:
    """Show a group's members and, for each partition, its reader, committed offset and lag; of a share group,
    what is not final, leased, waiting for a retry, or dead."""
    found = connection.read("group", name)
    if shown is Format.json:
        show_json({**plain(found), "kind": found.kind, "lag": found.lag})
        return
    about = {"group": found.group, "kind": found.kind, "coordinator": found.coordinator, "lag": found.lag}
    if found.share is not None:
        about |= _of_share(found.share)
    show_pairs(shown, found, about)
    if found.kind == "share":
        rows = [plain(partition) for partition in found.share.partitions]
        shared = ("topic", "partition", "start", "end", "lag", "leased", "expired")
        show_rows(shown, rows, shared, empty="no partition is read yet")
        return
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
    rows = [plain(partition) for partition in found.partitions]
    columns = ["topic", "partition", "member", "committed", "end", "lag"]
    if any(partition.attempts for partition in found.partitions):
        columns.append("attempts")
    show_rows(shown, rows, columns, empty="nothing committed")


def _of_share(share: Any) -> dict[str, Any]:
    settings = share.settings
    leased = {} if settings.kind == "stream" else {"leased": share.leased}
    return {
        **leased,
        "retrying": f"{share.retrying} ({share.retrying_later} later)",
        "dead": share.dead,
        "max_attempts": settings.max_attempts,
        "delays_s": ", ".join(f"{delay:g}" for delay in settings.delays_s),
        "lease_s": f"{settings.lease_s:g}",
        "max_age_s": "no limit" if settings.max_age_s is None else f"{settings.max_age_s:g}",
        "dead_letters": settings.dead_letters,
    }


@app.command("set")
@with_connection
def set_settings(
    connection: ConnectionOptions,
    name: Annotated[str, typer.Argument(help="Name of the group.", show_default=False)],
    max_attempts: Annotated[
        int | None, typer.Option(help="A message that failed so often becomes a dead letter.")
    ] = None,
    delays_s: Annotated[
        str | None,
        typer.Option(
            help="Pauses after the first failure, the second, ..., like 1,5,30; the last one stays."
        ),
    ] = None,
    lease_s: Annotated[float | None, typer.Option(help="How long a message belongs to a consumer.")] = None,
    max_age_s: Annotated[
        str | None,
        typer.Option(help="Failures so long after the first one make dead letters; 'none': no limit."),
    ] = None,
    dead_letters: Annotated[str | None, typer.Option(help="keep or drop.")] = None,
    by: By = None,
    shown: Shown = Format.table,
) -> None:
    """Change settings of a group, and show all of them. They count from the next failure or lease on."""
    given: dict[str, Any] = {
        "max_attempts": max_attempts,
        "delays_s": None
        if delays_s is None
        else [_seconds("--delays-s", one) for one in delays_s.split(",")],
        "lease_s": lease_s,
        "dead_letters": dead_letters,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if max_age_s is not None:
        settings["max_age_s"] = None if max_age_s == "none" else _seconds("--max-age-s", max_age_s)
    with connection.joined() as cluster:
        found = cluster.admin.set_group(name, by=signed(by), **settings)
    show_pairs(shown, found, plain(found))


def _seconds(option: str, text: str) -> float:
    from escrowmq.replication.errors import ConfigError

    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{option}: {text!r} is no number of seconds") from None


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
    wanted = "earliest, latest, an offset or a date like 2026-01-31T12:00Z"
    goal = to if to in ("earliest", "latest") else number_or_date("--to", to, wanted)
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
    by: By = None,
    shown: Shown = Format.table,
) -> None:
    """Delete a group without live members, with its offsets, retries and dead letters. Shows the offsets,
    says how many dead letters there are, and asks for confirmation."""
    with connection.joined() as cluster:
        if not yes:
            found = cluster.admin.describe_group(name)
            rows = [plain(partition) for partition in found.partitions]
            show_rows(shown, rows, ("topic", "partition", "committed", "end", "lag"), empty="no offsets")
            lost = "" if found.share is None else f", {found.share.dead} dead letters"
            lost += "" if found.share is None else f" and {found.share.retrying} retries"
            typer.confirm(f"Delete group {name} with these offsets{lost}?", abort=True, err=True)
        cluster.admin.delete_group(name, signed(by))
    note(f"group {name} is deleted")
