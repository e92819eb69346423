"""``escrowmq settings``: the replicated settings of all broker groups, and changing them."""

from __future__ import annotations

from typing import Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import show_rows
from escrowmq.cluster.cli.shown import Format, Shown

Changes = Annotated[
    list[str] | None,
    typer.Argument(help="NAME=NUMBER of each setting to change; none: only show.", show_default=False),
]


@with_connection
def settings(connection: ConnectionOptions, changes: Changes = None, shown: Shown = Format.table) -> None:
    """What all replicas agree on: how many transactions, ids, producers and groups are remembered."""
    values: dict[str, int] = {}
    for change in changes or ():
        name, _, number = change.partition("=")
        if not number.isdecimal():
            raise typer.BadParameter(f"{change!r} is not NAME=NUMBER")
        values[name] = int(number)
    with connection.joined() as cluster:
        in_force = cluster.admin.change_settings(**values)
    rows = [{"setting": name, "value": value} for name, value in in_force.items()]
    show_rows(shown, rows, ("setting", "value"), empty="none")
