"""``escrowmq topic create|alter|list|describe|trim|delete``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from escrowmq.actors.admin.topic_creation import kept
from escrowmq.cluster.cli.options import ConnectionOptions, number_or_date, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, plain, show_pairs, show_rows
from escrowmq.replication.model import TopicInfo

app = typer.Typer(no_args_is_help=True, help="Create, alter, list, describe, trim and delete topics.")
OnCheckExhausted = Annotated[
    str | None,
    typer.Option(
        help="If --check-max checks have not decided a transaction: 'hold' keeps it open, "
        "'rollback' rolls it back."
    ),
]
CheckMax = Annotated[int | None, typer.Option(help="Number of checks before --on-check-exhausted applies.")]
TransactionTimeout = Annotated[int | None, typer.Option(help="Time to a transaction's first check.")]
RetentionMs = Annotated[
    int | None, typer.Option(help="Delete messages older than this; -1: never (the default of a new topic).")
]
RetentionBytes = Annotated[
    int | None, typer.Option(help="Bytes to keep per partition; -1: all (the default of a new topic).")
]
Name = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]


def _settings(topic: TopicInfo) -> dict[str, Any]:
    return {**plain(topic), "kept": kept(topic)}


@app.command()
@with_connection
def create(
    connection: ConnectionOptions,
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(help="Number of partitions, 1 for a new topic; it cannot change later.")
    ] = None,
    on_check_exhausted: OnCheckExhausted = None,
    check_max: CheckMax = None,
    transaction_timeout_ms: TransactionTimeout = None,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    shown: Shown = Format.table,
) -> None:
    """Create a topic. Its messages are kept forever unless a retention is given.

    Repeating the command changes nothing. A setting that is not given matches any value of an existing topic.
    """
    options: dict[str, int | str | None] = {
        "on_check_exhausted": on_check_exhausted,
        "check_max": check_max,
        "transaction_timeout_ms": transaction_timeout_ms,
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
    }
    with connection.joined() as cluster:
        topic = cluster.admin.create_topic(name, partitions, **options)
    show_pairs(shown, topic, _settings(topic))


@app.command()
@with_connection
def alter(
    connection: ConnectionOptions,
    name: Name,
    on_check_exhausted: OnCheckExhausted = None,
    check_max: CheckMax = None,
    transaction_timeout_ms: TransactionTimeout = None,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    shown: Shown = Format.table,
) -> None:
    """Change a topic's settings while it is in use, and show all settings in force.

    A setting that is not given keeps its value. If the command was interrupted, broker groups may differ:
    repeat it.
    """
    settings: dict[str, int | str | None] = {
        "on_check_exhausted": on_check_exhausted,
        "check_max": check_max,
        "transaction_timeout_ms": transaction_timeout_ms,
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
    }
    with connection.joined() as cluster:
        topic = cluster.admin.alter_topic(name, **settings)
    show_pairs(shown, topic, _settings(topic))


@app.command("list")
@with_connection
def list_topics(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """List all topics and their settings."""
    topics: list[TopicInfo] = connection.read("topics")
    columns = (
        "name",
        "partitions",
        "on_check_exhausted",
        "check_max",
        "transaction_timeout_ms",
        "kept",
    )
    show_rows(shown, [_settings(topic) for topic in topics], columns, empty="no topics yet")


@app.command()
@with_connection
def describe(connection: ConnectionOptions, name: Name, shown: Shown = Format.table) -> None:
    """Show a topic's settings, and the location and content of its partitions."""
    found = connection.read("topic", name)
    show_pairs(shown, found, {**_settings(found.info), "messages": found.messages})
    if shown is Format.table:
        rows = [{**plain(p), "messages": p.end - p.start} for p in found.partitions]
        show_rows(shown, rows, ("partition", "group", "leader", "start", "end", "messages"))


@app.command()
@with_connection
def trim(
    connection: ConnectionOptions,
    name: Name,
    before: Annotated[
        str,
        typer.Option(
            help="Delete messages before this date (like 2026-01-31T12:00Z) or, with --partition, offset.",
            show_default=False,
        ),
    ],
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    shown: Shown = Format.table,
) -> None:
    """Delete a topic's oldest messages. Shows what will be deleted and asks first."""
    bound = number_or_date("--before", before, "an offset or a date like 2026-01-31T12:00Z")
    with connection.joined() as cluster:
        plan = cluster.admin.plan_trim(name, bound, partition)
        rows = [{**plain(trim), "messages": trim.messages} for trim in plan]
        show_rows(shown, rows, ("partition", "start", "before", "end", "messages"))
        count = sum(trim.messages for trim in plan)
        if count and not yes:
            typer.confirm(f"Delete these {count} messages of topic {name!r}?", abort=True, err=True)
        cluster.admin.trim_topic(name, plan)
    note(f"deleted {count} messages of topic {name!r}")


@app.command()
@with_connection
def delete(
    connection: ConnectionOptions,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic and all its messages."""
    if not yes:
        typer.confirm(f"Delete topic {name!r} and all its messages?", abort=True, err=True)
    with connection.joined() as cluster:
        cluster.admin.delete_topic(name)
    note(f"deleted topic {name!r}")
