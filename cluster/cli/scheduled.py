"""``escrowmq schedule list|cancel``: delayed messages that cannot be read yet."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, time_ms, with_connection
from escrowmq.cluster.cli.output import Format, Shown, duration, note, plain, show_pairs, show_rows, when

app = typer.Typer(
    no_args_is_help=True,
    help="List delayed messages that cannot be read yet, or cancel one.",
)


@app.command("list")
@with_connection
def list_messages(
    connection: ConnectionOptions,
    topic: Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)],
    before: Annotated[
        str | None,
        typer.Option(
            "--readable-before",
            help="Only those readable before this time: ISO 8601 (UTC unless it has an offset), or ms.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.")] = 100,
    shown: Shown = Format.table,
) -> None:
    """List the delayed messages of a topic that cannot be read yet, those of the earliest time first."""
    found = connection.read("scheduled", topic, _ms(before), limit)
    rows = [_row(message) for message in found]
    columns = ("schedule_id", "partition", "readable_from", "in", "size_bytes")
    show_rows(shown, rows, columns, empty=f"no delayed messages wait in topic {topic!r}")
    if shown is Format.table and len(found) == limit:
        note(f"these are the first {limit}; --limit shows more")


@app.command()
@with_connection
def cancel(
    connection: ConnectionOptions,
    schedule_id: Annotated[
        str,
        typer.Argument(
            help="Id of the message, from 'escrowmq schedule list' or a producer.", show_default=False
        ),
    ],
    shown: Shown = Format.table,
) -> None:
    """Cancel a delayed message: it will never be readable.

    Exit code 0: it is cancelled, now or before. Exit code 5: it can be read already, or is not known.
    """
    from escrowmq.cluster.cli.failing import CONFLICT

    with connection.joined() as cluster:
        cancelled = cluster.admin.cancel_scheduled(schedule_id)
    result = {"schedule_id": schedule_id, "cancelled": cancelled}
    show_pairs(shown, result, result)
    if not cancelled:
        note("it is not cancelled: it can be read already, or no message has waited under this id for long")
        raise typer.Exit(CONFLICT)


def _row(message: Any) -> dict[str, Any]:
    left_ms = message.deliver_at - time.time() * 1000
    return {
        **plain(message),
        "readable_from": when(message.deliver_at),
        "in": duration(max(left_ms, 0.0)),
    }


def _ms(before: str | None) -> int | None:
    return None if before is None else time_ms("--readable-before", before)
