"""``escrowmq db schema|purge|audit``: maintains the fence's table in an application's database."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import note, show_rows
from escrowmq.cluster.cli.shown import Format, Shown
from escrowmq.feedback.database.errors import FenceMisused
from escrowmq.feedback.database.fence import TABLE, Fence
from escrowmq.feedback.database.statements import Statements, dialect_of
from escrowmq.replication.errors import EscrowMQError, Unavailable

if TYPE_CHECKING:
    from escrowmq.feedback.database.purging import Purged

app = typer.Typer(no_args_is_help=True, help="The fence's table in an application's database.")
Url = Annotated[str, typer.Argument(help="SQLAlchemy URL of the primary database.", show_default=False)]
AppName = Annotated[str, typer.Option("--app", help="The producers' app.", show_default=False)]
TableName = Annotated[str, typer.Option("--table", help="The fence's table.")]
DAY_S = 86_400.0


@app.command()
def schema(
    dialect: Annotated[str, typer.Option(help="sqlite, postgresql, mariadb or mysql.", show_default=False)],
    table: TableName = TABLE,
) -> None:
    """Print the CREATE TABLE statement, for a migration."""
    print(f"{Statements(dialect_of(dialect), table).create};")


@app.command()
@with_connection
def purge(
    connection: ConnectionOptions,
    url: Url,
    app_name: AppName,
    table: TableName = TABLE,
    keep_days: Annotated[float, typer.Option(help="Keep rows that are younger than this.")] = 7.0,
    slice_rows: Annotated[int, typer.Option(help="Rows per short database transaction.")] = 1000,
) -> None:
    """Remove an app's old rows that are also older than its oldest open transaction. Run it once a day."""
    fence, told_at = _fence(url, app_name, table), time.monotonic()

    def told(so_far: Purged) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= 1.0:
            told_at = time.monotonic()
            note(f"{so_far.removed:,} rows removed of {so_far.read:,} read so far")

    with connection.joined() as cluster, _of_the_database():
        done = fence.purge(cluster.admin, keep_s=keep_days * DAY_S, slice_rows=slice_rows, told=told)
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
    with connection.joined() as cluster, _of_the_database():
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
def _of_the_database() -> Iterator[None]:
    """The driver's errors in one line, such as a server that does not answer or a wrong password."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    try:
        yield
    except (InterfaceError, OperationalError) as error:
        raise Unavailable(f"the database cannot be used: {error.orig}", 5.0) from error
    except DBAPIError as error:
        raise EscrowMQError(f"the database refused a statement: {error.orig}") from error


def _fence(url: str, app_name: str, table: str) -> Fence:
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise FenceMisused("this command needs SQLAlchemy: pip install escrowmq[sql]") from error
    try:
        return Fence(create_engine(url), app=app_name, table=table)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise FenceMisused(f"SQLAlchemy cannot make an engine for this URL: {error}") from error
