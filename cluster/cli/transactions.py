"""``escrowmq txn list|show|recheck|commit|rollback``: shows open transactions; decides one by hand."""

from __future__ import annotations

import getpass
import time
from typing import Annotated, Any

import typer

from escrowmq.cluster.cli.options import App, ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, plain, show_pairs, show_rows, when

app = typer.Typer(
    no_args_is_help=True,
    help="List open transactions; show one, have it checked again, or decide it by hand.",
)
TxId = Annotated[str, typer.Argument(metavar="TX_ID", help="Id of the transaction.", show_default=False)]
By = Annotated[str | None, typer.Option(help="Who decides, for the audit trail (default: the user's name).")]


def signed(by: str | None) -> str:
    """Who decides: ``by``, or else the user. Raises ConfigError for a user without a name."""
    from escrowmq.replication.errors import ConfigError

    try:
        return by or getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may be just a number
        raise ConfigError("this user has no name on this machine; give --by with yours") from None


def _row(entry: Any) -> dict[str, Any]:
    return {
        **plain(entry),
        "prepared": when(entry.prepared_ms),
        "age_s": round(time.time() - entry.prepared_ms / 1000, 1),
    }


@app.command("list")
@with_connection
def list_transactions(
    connection: ConnectionOptions,
    state: Annotated[
        str | None, typer.Option(help="'prepare': all open ones; 'parked': those no longer checked.")
    ] = None,
    app_name: Annotated[str | None, typer.Option("--app", help="Only those of this app.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only those of this topic.")] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.")] = 1000,
    shown: Shown = Format.table,
) -> None:
    """List open transactions, oldest first."""
    found = connection.read("transactions", state.upper() if state else None, app_name, topic, limit)
    columns = ("app", "tx_id", "query_id", "topic", "messages", "prepared", "age_s", "checks", "parked")
    empty = "no open transactions" + (f" of app {app_name!r}" if app_name else "")
    show_rows(shown, [_row(entry) for entry in found], columns, empty=empty)


def _show(shown: Format, found: Any) -> None:
    pairs = {"app": found.app, "tx_id": found.tx_id, "state": found.state.value}
    if found.decided_by is not None:
        pairs |= {"decided_by": found.decided_by, "decided": when(found.decided_ms)}
    if found.checked_ms is not None:
        pairs["last_check"] = f"{when(found.checked_ms)}, answered UNKNOWN"
    if fence := next((entry.fence for entry in found.open.values() if entry.fence), ""):
        pairs["asked"] = (
            f"only producers whose fence has the table {fence}; escrowmq status says if there is none: then "
            "start one with that database, or decide"
        )
    show_pairs(shown, found, pairs)
    if shown is Format.table and found.settled:
        rows = [
            {"group": gid, **plain(entry), "prepared": when(entry.prepared_ms)}
            for gid, entry in sorted(found.settled.items())
        ]
        show_rows(shown, rows, ("group", "topic", "query_id", "messages", "prepared", "checks", "by"))
    if shown is Format.table and found.open:
        rows = [{"group": gid, **_row(entry)} for gid, entry in found.open.items()]
        fence = ("fence",) if any(entry.fence for entry in found.open.values()) else ()
        known = ("group", "topic", "query_id", "messages", "prepared", "age_s", "checks", "parked")
        show_rows(shown, rows, (*known, *fence))


@app.command()
@with_connection
def show(
    connection: ConnectionOptions,
    tx_id: TxId,
    app_name: App = None,
    shown: Shown = Format.table,
) -> None:
    """Show one transaction, open or still remembered."""
    _show(shown, connection.read("transaction", tx_id, app_name))


@app.command()
@with_connection
def recheck(
    connection: ConnectionOptions,
    tx_id: TxId,
    app_name: App = None,
    shown: Shown = Format.table,
) -> None:
    """Have a parked transaction checked again as soon as a producer of its app is online.

    Repeat the command after a fail-over. 'escrowmq txn show' shows the result.
    """
    with connection.joined() as cluster:
        found = cluster.admin.recheck_transaction(tx_id, app_name)
    if not any(entry.parked for entry in found.open.values()):
        note(f"transaction {tx_id!r} is not parked, so it is checked anyway")
    _show(shown, found)


def _deciding(name: str, state_name: str, text: str) -> None:
    """Define the command ``name``, which decides a transaction as ``state_name`` says."""

    @app.command(name, help=text)
    @with_connection
    def decide(
        connection: ConnectionOptions,
        tx_id: TxId,
        app_name: App = None,
        by: By = None,
        shown: Shown = Format.table,
    ) -> None:
        from escrowmq.replication.model import TransactionState

        with connection.joined() as cluster:
            found = cluster.admin.resolve_transaction(
                tx_id, TransactionState[state_name], app_name, signed(by)
            )
        _show(shown, found)


_deciding(
    "commit",
    "COMMITTED",
    "Commit a transaction by hand: its messages become readable. Recorded with your name.",
)
_deciding(
    "rollback",
    "ROLLBACK",
    "Roll back a transaction by hand: its messages will never be readable. Recorded with your name.",
)
