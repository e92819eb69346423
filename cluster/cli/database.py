"""``escrowmq db schema|purge|audit``: the tables of fence, inbox and outbox in a service's database."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, show_rows
from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.fence import TABLE, Fence
from escrowmq.feedback.database.inbox import INBOX_TABLE, Inbox, InboxStatements
from escrowmq.feedback.database.outbox import OUTBOX_TABLE
from escrowmq.feedback.database.outbox_statements import OutboxStatements
from escrowmq.feedback.database.statements import Statements, dialect_of
from escrowmq.replication.errors import EscrowMQError, Unavailable

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from escrowmq.feedback.database.inbox import InboxPurged
    from escrowmq.feedback.database.purging import Purged

app = typer.Typer(
    no_args_is_help=True, help="The tables of fence, inbox and outbox in an application's database."
)
Url = Annotated[str, typer.Argument(help="SQLAlchemy URL of the primary database.", show_default=False)]
AppName = Annotated[str, typer.Option("--app", help="The producers' app.", show_default=False)]
TableName = Annotated[str, typer.Option("--table", help="The fence's table.")]
OwnTable = Annotated[
    str | None,
    typer.Option(
        "--table",
        help=f"The table, if it is not {TABLE}, {INBOX_TABLE} or {OUTBOX_TABLE}.",
        show_default=False,
    ),
]
DAY_S = 86_400.0


@app.command()
def schema(
    dialect: Annotated[str, typer.Option(help="sqlite, postgresql, mariadb or mysql.", show_default=False)],
    inbox: Annotated[bool, typer.Option("--inbox", help="The inbox's table, not the fence's.")] = False,
    outbox: Annotated[bool, typer.Option("--outbox", help="The outbox's tables, not the fence's.")] = False,
    table: OwnTable = None,
) -> None:
    """Print the CREATE TABLE statements, for a migration."""
    of = dialect_of(dialect)
    if inbox and outbox:
        raise DatabaseMisused("--inbox or --outbox, not both; run the command for each")
    if outbox:
        for statement in OutboxStatements(of, table or OUTBOX_TABLE).create:
            print(f"{statement};")
    elif inbox:
        print(f"{InboxStatements(of, table or INBOX_TABLE).create};")
    else:
        print(f"{Statements(of, table or TABLE).create};")


@app.command()
@with_connection
def purge(
    connection: ConnectionOptions,
    url: Url,
    app_name: Annotated[
        str | None, typer.Option("--app", help="The producers' app: the fence's rows.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="A consumer group: the inbox's rows.", show_default=False)
    ] = None,
    table: OwnTable = None,
    keep_days: Annotated[float, typer.Option(help="Keep rows that are younger than this.")] = 7.0,
    slice_rows: Annotated[int, typer.Option(help="Rows per short database transaction.")] = 1000,
    by_age: Annotated[
        bool, typer.Option("--by-age", help="Of a group: by age alone, whatever it has committed.")
    ] = False,
) -> None:
    """Remove old rows that are not needed any more. Run it once a day for each app and each group.

    Of an app: rows that are older than its oldest open transaction. Of a group: rows of records that it has
    committed.
    """
    if (app_name is None) == (group is None):
        raise DatabaseMisused("say whose rows: --app for a fence's, or --group for an inbox's")
    if by_age and group is None:
        raise DatabaseMisused("--by-age is for an inbox: rows of a fence may be needed by open transactions")
    told_at = time.monotonic()

    def told(so_far: Purged | InboxPurged) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= 1.0:
            told_at = time.monotonic()
            note(f"{so_far.removed:,} rows removed of {so_far.read:,} read so far")

    done: Purged | InboxPurged
    keep_s, engine = keep_days * DAY_S, engine_for(url)
    with contextlib.nullcontext() if by_age else connection.joined() as cluster, of_the_database():
        admin = None if cluster is None else cluster.admin
        if group is not None:
            inbox = Inbox(engine, group=group, table=table or INBOX_TABLE)
            done = inbox.purge(admin, keep_s=keep_s, slice_rows=slice_rows, told=told)
        else:
            assert admin is not None and app_name is not None
            fence = Fence(engine, app=app_name, table=table or TABLE)
            done = fence.purge(admin, keep_s=keep_s, slice_rows=slice_rows, told=told)
    note(f"{done.removed:,} rows removed of {done.read:,} read")


@app.command()
@with_connection
def audit(
    connection: ConnectionOptions,
    url: Url,
    app_name: AppName,
    table: TableName = TABLE,
    days: Annotated[float, typer.Option(help="Compare the rows of the last DAYS days.")] = 1.0,
    shown: Shown = Format.table,
) -> None:
    """List transactions on which the database and the broker disagree; exit code 1 if there are any."""
    fence = _fence(url, app_name, table)
    with connection.joined() as cluster, of_the_database():
        found = fence.audit(cluster.admin, time.time() - days * DAY_S)
    rows = [
        {"tx_id": one.tx_id, "database": one.database.value, "broker": one.broker.value}
        for one in found.differences
    ]
    show_rows(shown, rows, ("tx_id", "database", "broker"), empty="no differences")
    note(f"{found.read:,} rows read; {found.open:,} still open, {found.forgotten:,} not remembered")
    if rows:
        raise typer.Exit(1)


@contextlib.contextmanager
def of_the_database() -> Iterator[None]:
    """The driver's errors in one line, such as a server that does not answer or a wrong password."""
    try:
        from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
    except ImportError as error:
        raise _no_sqlalchemy() from error
    try:
        yield
    except (InterfaceError, OperationalError) as error:
        raise Unavailable(f"the database cannot be used: {error.orig}", 5.0) from error
    except DBAPIError as error:
        raise EscrowMQError(f"the database refused a statement: {error.orig}") from error


def _fence(url: str, app_name: str, table: str) -> Fence:
    return Fence(engine_for(url), app=app_name, table=table)


def engine_for(url: str) -> Engine:
    """SQLAlchemy's engine; raises DatabaseMisused if there is none for this URL, or no such SQLite file,
    which SQLite would create, empty."""
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise _no_sqlalchemy() from error
    try:
        engine = create_engine(url)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise DatabaseMisused(f"SQLAlchemy cannot make an engine for this URL: {error}") from error
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    if file and file != ":memory:" and not file.startswith("file:") and not Path(file).is_file():
        raise DatabaseMisused(f"there is no SQLite file {file}; correct the path: commands create none")
    return engine


def _no_sqlalchemy() -> DatabaseMisused:
    return DatabaseMisused("this command needs SQLAlchemy: pip install escrowmq[sql]")
