"""``escrowmq settings``: shows and changes the replicated settings of all broker groups."""

from __future__ import annotations

from typing import Annotated

import typer

from escrowmq.cluster.cli.options import DIGITS_MAX, ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, show_rows

Changes = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, each as NAME=NUMBER. If none: only show.", show_default=False),
]


@with_connection
def settings(connection: ConnectionOptions, changes: Changes = None, shown: Shown = Format.table) -> None:
    """Show or change replicated settings: how many transactions, ids, producers and groups to remember."""
    values: dict[str, int] = {}
    for change in changes or ():
        name, _, number = change.partition("=")
        if not number.isdecimal() or len(number) > DIGITS_MAX:
            raise typer.BadParameter(f"{change!r} is not NAME=NUMBER")
        values[name] = int(number)
    if values:
        with connection.joined() as cluster:
            in_force = cluster.admin.change_settings(**values)
    else:
        in_force = connection.read("settings")
    rows = [{"setting": name, "value": value} for name, value in in_force.items()]
    show_rows(shown, rows, ("setting", "value"), empty="none")
