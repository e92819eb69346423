"""``escrowmq message show|find|trace``: single messages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from escrowmq.cluster.cli.options import TIME, ConnectionOptions, number_or_date, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, plain, show_json, show_pairs, show_rows, when

app = typer.Typer(
    no_args_is_help=True,
    help="Show a message, find messages by key or id, or trace what became of one.",
)

Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]
Partition = Annotated[int, typer.Argument(help="Number of the partition.", show_default=False)]
Offset = Annotated[int, typer.Argument(help="Offset of the message.", show_default=False)]

#: Characters of a value in a table; JSON has all of it.
VALUE_SHOWN = 60


@app.command()
@with_connection
def show(
    connection: ConnectionOptions,
    topic: Topic,
    partition: Partition,
    offset: Offset,
    shown: Shown = Format.table,
) -> None:
    """Show one message: its key, value, headers and transaction."""
    message = connection.read("message", topic, partition, offset)
    show_pairs(shown, message, _pairs(message))


@app.command()
@with_connection
def find(
    connection: ConnectionOptions,
    topic: Topic,
    key: Annotated[
        str | None,
        typer.Option(help="Messages with this key; only in the partition that the key names."),
    ] = None,
    business_key: Annotated[
        str | None, typer.Option(help="Messages that have this among their business keys.")
    ] = None,
    tx_id: Annotated[str | None, typer.Option(help="Messages of the transaction with this id.")] = None,
    header: Annotated[
        str | None, typer.Option(help="Messages with this header, as NAME=VALUE; reads all messages.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only those since this time: ISO 8601 (UTC unless it has an offset), or ms."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Readable before this time, as --since.")] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            help="Search this partition; may be repeated. For messages sent with a partition of their own, "
            "not to the one that the key names."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.")] = 20,
    after: Annotated[
        str | None, typer.Option(help="Continue where an earlier search ended, as it said.")
    ] = None,
    shown: Shown = Format.table,
) -> None:
    """Find messages by key, business key, transaction id or header; give exactly one of these.

    The first search in a partition reads all of its messages and may end before it is through; it then says
    how to continue. Later searches are fast, except for headers.
    """
    with connection.joined() as cluster:
        found = cluster.admin.find(
            topic,
            key=key,
            business_key=business_key,
            tx_id=tx_id,
            header=_header(header),
            since=_moment("--since", since),
            until=_moment("--until", until),
            limit=limit,
            partitions=partition or None,
            after=after,
        )
    if shown is Format.json:
        show_json(found)
        return
    columns = ("partition", "offset", "readable_since", "key", "tx_id", "value")
    empty = f"nothing found in topic {topic!r}" + (" so far" if found.after else "")
    show_rows(shown, [_row(message) for message in found.messages], columns, empty=empty)
    if found.after is not None:
        note(f"there may be more: continue with --after {found.after}")


@app.command()
@with_connection
def trace(
    connection: ConnectionOptions,
    topic: Topic,
    partition: Partition,
    offset: Offset,
    shown: Shown = Format.table,
) -> None:
    """Trace one message: when it was stored, who made it readable, which consumer groups have passed it."""
    traced = connection.read("trace", topic, partition, offset)
    if shown is Format.json:
        show_json(traced)
        return
    show_pairs(shown, traced, _life(traced))
    columns: tuple[str, ...] = ("group", "kind", "state", "place", "attempt", "due", "member", "reason")
    if any(one.to for one in traced.groups):
        columns += ("to", "tx_id")
    rows = [{**plain(one), "due": one.due_ms and when(one.due_ms)} for one in traced.groups]
    show_rows(shown, rows, columns, title="Consumer groups", empty="no consumer group has an offset there")


def _life(traced: Any) -> dict[str, Any]:
    transaction = traced.transaction
    told = {
        **_pairs(traced.message),
        "stored": None if traced.stored_ms is None else when(traced.stored_ms),
        "readable_because": _BECAUSE.get(traced.how or "", "not known: the log entry is gone"),
        "log_entry": traced.entry,
        "broker_group": traced.broker_group,
    }
    if traced.message.tx_id is not None:
        told["app"] = traced.app or (transaction.app if transaction else None)
        told["decided_by"] = traced.decided_by or (transaction.decided_by if transaction else None)
    return told


_BECAUSE = {
    "sent": "it was sent",
    "committed": "its transaction was committed",
    "released": "its time had come",
}


def _pairs(message: Any) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "readable_since": when(message.timestamp),
        "key": _text(message.key),
        "tx_id": message.tx_id,
        **{f"header {name}": _text(value) for name, value in sorted(message.headers.items())},
        "size_bytes": len(message.value),
        "value": _text(message.value),
    }


def _row(message: Any) -> dict[str, Any]:
    value = _text(message.value) or ""
    return {
        "partition": message.partition,
        "offset": message.offset,
        "readable_since": when(message.timestamp),
        "key": _text(message.key),
        "tx_id": message.tx_id,
        "value": value if len(value) <= VALUE_SHOWN else f"{value[:VALUE_SHOWN]}...",
    }


def _text(data: bytes | None) -> str | None:
    """Bytes as text if they are text, else as Python writes them."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return repr(data)
    return text if text.isprintable() else repr(data)


def _header(given: str | None) -> tuple[str, str] | None:
    from escrowmq.replication.errors import ConfigError

    if given is None:
        return None
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise ConfigError(f"--header {given!r} is no header; write NAME=VALUE")
    return name, value


def _moment(option: str, given: str | None) -> Any:
    if given is None:
        return None
    return number_or_date(option, given, TIME)
