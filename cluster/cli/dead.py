"""``escrowmq dead list|show|redrive|drop``: messages with which a consumer group has given up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, time_ms, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, plain, show_pairs, show_rows, when
from escrowmq.cluster.cli.transactions import By, signed

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, redrive and drop dead letters: messages that a consumer group could not handle.",
)
#: Characters of a value in the list.
VALUE_CHARS = 40

Group = Annotated[str, typer.Argument(help="Name of the consumer group.", show_default=False)]
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Ids from 'escrowmq dead list'. None: --all is needed.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the group.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
@with_connection
def list_letters(
    connection: ConnectionOptions,
    group: Group,
    since: Annotated[
        str | None,
        typer.Option(help="Only those since this time: ISO 8601 (UTC unless it has an offset), or ms."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Only those whose reason contains this text.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.")] = 100,
    shown: Shown = Format.table,
) -> None:
    """List a group's dead letters, the oldest first, without those that were redriven or dropped."""
    found = connection.read("dead_letters", group, limit, _since(since), reason)
    rows = [_row(letter) for letter in found]
    columns = ("id", "died", "origin", "attempts", "by", "reason", "key", "value")
    show_rows(shown, rows, columns, empty=f"group {group!r} has no dead letters")
    if shown is Format.table and len(found) == limit:
        note(f"these are the first {limit}; --limit shows more")


@app.command()
@with_connection
def show(
    connection: ConnectionOptions,
    group: Group,
    id: Annotated[str, typer.Argument(help="Id from 'escrowmq dead list'.", show_default=False)],
    shown: Shown = Format.table,
) -> None:
    """Show all of one dead letter: where it comes from, why it failed, its key, value and headers."""
    found = connection.read("dead_letter", group, id)
    failed = None if found.first_failed is None else when(found.first_failed)
    pairs = {
        "id": found.id,
        "origin": _origin(found),
        "sent": None if found.origin is None else when(found.origin.timestamp),
        "first_failed": failed,
        "died": when(found.died),
        "attempts": found.attempts,
        "by": found.by,
        "reason": found.reason,
        "problem": found.problem,
        "tx_id": found.tx_id,
        "key": _text(found.key),
        "headers": ", ".join(f"{name}={_text(value)}" for name, value in found.headers.items()),
        "value": _text(found.value),
    }
    show_pairs(shown, {**plain(found), "origin": pairs["origin"]}, pairs)


@app.command()
@with_connection
def redrive(
    connection: ConnectionOptions,
    group: Group,
    ids: Ids = None,
    every: All = False,
    to_topic: Annotated[
        str | None, typer.Option(help="Send them to this topic, instead of giving them to the group.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="At most so many per second.")] = None,
    by: By = None,
    yes: Yes = False,
    shown: Shown = Format.table,
) -> None:
    """Give dead letters to their group again, as at the first attempt. Each is redriven once, also if this
    command is interrupted and repeated."""
    chosen = _chosen(ids, every)
    with connection.joined() as cluster, _bar("redriving") as progress:
        if not yes and chosen is None:
            _ask(cluster, group, f"Redrive all dead letters of group {group}?")
        done = cluster.admin.redrive(group, chosen, to_topic, rate, signed(by), progress)
    show_pairs(shown, done, plain(done))


@app.command()
@with_connection
def drop(
    connection: ConnectionOptions,
    group: Group,
    ids: Ids = None,
    every: All = False,
    by: By = None,
    yes: Yes = False,
    shown: Shown = Format.table,
) -> None:
    """Give dead letters up for good. Asks for confirmation."""
    chosen = _chosen(ids, every)
    with connection.joined() as cluster:
        if not yes:
            what = "all dead letters" if chosen is None else f"{len(chosen)} dead letters"
            _ask(cluster, group, f"Drop {what} of group {group}? No consumer will get them again.")
        result = {"dropped": cluster.admin.drop_dead_letters(group, chosen, signed(by))}
    show_pairs(shown, result, result)


def _chosen(ids: list[str] | None, every: bool) -> list[str] | None:
    from escrowmq.replication.errors import ConfigError

    if bool(ids) == every:
        raise ConfigError("name ids of dead letters, or give --all")
    return ids or None


def _ask(cluster: Any, group: str, question: str) -> None:
    """Not before it is certain that the group has dead letters. UnknownGroup is raised without a question."""
    if not cluster.admin.dead_letters(group, 1):
        return
    share = cluster.admin.describe_group(group).share
    if share is not None:
        note(f"group {group} has {share.dead} dead letters")
    typer.confirm(question, abort=True, err=True)


@contextmanager
def _bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    task = progress.add_task(text, total=None)

    def told(done: int, total: int) -> None:
        if sys.stderr.isatty():
            progress.start()  # now, so that no bar is drawn over a question
        progress.update(task, completed=done, total=total)

    try:
        yield told
    finally:
        progress.stop()


def _row(letter: Any) -> dict[str, Any]:
    value = _text(letter.value) or ""
    return {
        **plain(letter),
        "died": when(letter.died),
        "origin": _origin(letter),
        "key": _text(letter.key),
        "value": value if len(value) <= VALUE_CHARS else f"{value[:VALUE_CHARS]}...",
    }


def _origin(letter: Any) -> str | None:
    """As 'escrowmq consume' prints addresses."""
    found = letter.origin
    return None if found is None else f"{found.topic}/{found.partition}@{found.offset}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _since(text: str | None) -> int | None:
    return None if text is None else time_ms("--since", text)
