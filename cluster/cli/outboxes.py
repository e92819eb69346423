"""``escrowmq outbox run|shards|list|show|retry|drop|adopt``: an outbox, and its relay as a process."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Any

import typer

from escrowmq.cluster.cli.database import Url, engine_for, of_the_database
from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, show_pairs, show_rows, when
from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.outbox import OUTBOX_TABLE, Outbox

app = typer.Typer(
    no_args_is_help=True,
    help="The outbox in an application's database: send its rows, look at them, decide about dead ones.",
    epilog="Example: escrowmq outbox run postgresql+psycopg://shop@db/shop --app shop",
)
#: Characters of a value or of an error in the list.
SHOWN_CHARS = 40

Table = Annotated[str, typer.Option("--table", help="The outbox's table.")]
AppName = Annotated[
    str,
    typer.Option(
        "--app", help="Names this outbox in the broker; the same for all its relays.", show_default=False
    ),
]
Ids = Annotated[list[int], typer.Argument(help="Ids from 'escrowmq outbox list'.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
@with_connection
def run(
    connection: ConnectionOptions,
    url: Url,
    app_name: AppName,
    table: Table = OUTBOX_TABLE,
    poll_ms: Annotated[float, typer.Option(help="Longest pause between two looks for rows.")] = 1000.0,
) -> None:
    """Send the rows of an outbox until SIGTERM or Ctrl-C. Several processes may run; each shard has one
    sender.

    Ends with exit code 5 when every shard has stopped because the database is behind the broker.
    """
    from escrowmq.actors.outbox.relay import OutboxRelay

    stop = threading.Event()
    with connection.joined() as cluster, of_the_database():
        outbox = _outbox(url, table)
        outbox.status()  # a wrong URL or a missing table ends the command here
        with OutboxRelay(outbox, cluster, app=app_name, poll_s=poll_ms / 1000) as relay:
            before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
            note(f"sending the rows of {table} for app {app_name}; stop with Ctrl-C")
            try:
                relay.run(stop)
            finally:
                signal.signal(signal.SIGTERM, before)
        note(f"{relay.rows_sent:,} rows sent")


@app.command()
def shards(url: Url, table: Table = OUTBOX_TABLE, shown: Shown = Format.table) -> None:
    """Show each shard: rows that wait, since when, dead ones, its relay, and whether it has stopped.

    For monitoring: --format json has 'waiting', 'oldest_ms', 'dead' and 'stopped'.
    """
    with of_the_database():
        found = _outbox(url, table).status()
    rows: list[dict[str, Any]] = [
        {
            "shard": one.shard,
            "waiting": one.waiting,
            "sending": one.sending,
            "dead": one.dead,
            "oldest": _when(one.oldest_ms, shown),
            "oldest_ms": one.oldest_ms,
            "last_batch": one.last_batch,
            "relay": one.owner,
            "stopped": one.stopped,
        }
        for one in found
    ]
    columns = ("shard", "waiting", "sending", "dead", "oldest", "last_batch", "relay", "stopped")
    show_rows(shown, rows, columns, empty="nothing was ever sent through this outbox")


@app.command("list")
def list_rows(
    url: Url,
    table: Table = OUTBOX_TABLE,
    dead: Annotated[bool, typer.Option("--dead", help="Only dead rows.")] = False,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only rows that are not dead.")] = False,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 100,
    after: Annotated[
        int, typer.Option("--after-id", help="Only rows with higher ids, to go on with a long list.")
    ] = 0,
    shown: Shown = Format.table,
) -> None:
    """List rows that are not sent, the oldest first. Dead ones were refused for good: retry or drop them."""
    if dead and waiting:
        raise DatabaseMisused("--dead or --waiting, not both; without them all rows are listed")
    only = True if dead else False if waiting else None
    with of_the_database():
        found = _outbox(url, table).rows(dead=only, limit=limit, after=after)
    rows = [_row(entry, shown) for entry in found]
    columns = ("id", "shard", "state", "created", "attempts", "topic", "key", "value", "error")
    show_rows(shown, rows, columns, empty="no rows")
    if shown is Format.table and len(found) == limit:
        note(f"these are the first {limit}; continue with --after-id {found[-1].id}")


@app.command()
def show(
    url: Url,
    id: Annotated[int, typer.Argument(help="Id from 'escrowmq outbox list'.", show_default=False)],
    table: Table = OUTBOX_TABLE,
    shown: Shown = Format.table,
) -> None:
    """Show all of one row: its message, its group, why the broker refused it."""
    with of_the_database():
        entry = _outbox(url, table).row(id)
    pairs = _row(entry, shown) | {
        "group": entry.group,
        "next_attempt": _when(entry.next_ms or None, shown),
        "error": entry.error,
    }
    if (message := entry.message) is None:
        pairs["content_hex"] = entry.content.hex()
    else:
        pairs |= {
            "partition": message.partition,
            "headers": ", ".join(f"{name}={_text(value)}" for name, value in message.headers.items()),
            "value": _text(message.value),
        }
    show_pairs(shown, pairs, pairs)


@app.command()
def retry(url: Url, ids: Ids, table: Table = OUTBOX_TABLE, shown: Shown = Format.table) -> None:
    """Try dead or waiting rows again at once, each with the other messages of its 'send'."""
    with of_the_database():
        result = {"retried": _outbox(url, table).retry(ids)}
    show_pairs(shown, result, result)


@app.command()
def drop(
    url: Url, ids: Ids, table: Table = OUTBOX_TABLE, yes: Yes = False, shown: Shown = Format.table
) -> None:
    """Give rows up for good, each with the other messages of its 'send'. Asks for confirmation."""
    with of_the_database():
        outbox = _outbox(url, table)
        if not yes:
            groups = {outbox.row(id).group for id in ids}
            typer.confirm(
                f"Drop {len(groups)} groups of messages for good? They will not be sent.",
                abort=True,
                err=True,
            )
        result = {"dropped": outbox.drop(ids)}
    show_pairs(shown, result, result)


@app.command()
@with_connection
def adopt(
    connection: ConnectionOptions,
    url: Url,
    shard: Annotated[int, typer.Argument(help="Number of the shard that has stopped.", show_default=False)],
    app_name: AppName,
    hold: Annotated[
        bool | None,
        typer.Option(
            "--hold/--send",
            help="Make all rows of the shard dead, to decide on each; or send them, perhaps again.",
            show_default=False,
        ),
    ] = None,
    table: Table = OUTBOX_TABLE,
    shown: Shown = Format.table,
) -> None:
    """Go on with a shard that has stopped because the broker has batches that the database does not know of.

    That is so when the database was restored from a backup: rows in it may have been sent before. Look for
    them with 'escrowmq message find'. With --hold nothing is sent until you retry or drop each row; with
    --send all are sent, so consumers may get some twice.
    """
    from escrowmq.actors.outbox.relay import OutboxRelay

    if hold is None:
        raise DatabaseMisused(
            "say what becomes of the rows that wait: --hold to decide on each, or --send to send all, those "
            "too that were sent before"
        )
    with connection.joined() as cluster, of_the_database():
        relay = OutboxRelay(_outbox(url, table), cluster, app=app_name)
        try:
            count = relay.adopt(shard, hold=hold)
        finally:
            relay.close()
    result = {"shard": shard, "held" if hold else "batch_undone": count}
    show_pairs(shown, result, result)


def _outbox(url: str, table: str) -> Outbox:
    return Outbox(engine_for(url), table=table)


def _row(entry: Any, shown: Format) -> dict[str, Any]:
    message = entry.message
    state = "dead" if entry.dead else "waiting" if entry.batch is None else f"in batch {entry.batch}"
    return {
        "id": entry.id,
        "shard": entry.shard,
        "state": state,
        "created": _when(entry.created_ms, shown),
        "attempts": entry.attempts,
        "topic": None if message is None else message.topic,
        "key": None if message is None else _text(message.key),
        "value": None if message is None else _short(_text(message.value) or "", shown),
        "error": _short(entry.error, shown),
    }


def _when(time_ms: int | None, shown: Format) -> Any:
    return time_ms if time_ms is None or shown is Format.json else when(time_ms)


def _short(text: str, shown: Format) -> str:
    return text if shown is Format.json or len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
