"""``escrowmq rebalance``: spreads replicas and leaders over the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from escrowmq.cluster.cli.members import Timeout, Wait, until_done
from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, plain, show_rows

if TYPE_CHECKING:
    from escrowmq.actors.admin.types import ReplicaShift

app = typer.Typer(no_args_is_help=True, help="Spread replicas and leaders over the nodes.")


@app.command("plan")
@with_connection
def plan(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """Show which replicas and leaders would be better on other nodes. Nothing is changed."""
    _show(shown, connection.read("rebalance"))


@app.command("apply")
@with_connection
def apply(
    connection: ConnectionOptions, wait: Wait = True, timeout_s: Timeout = 600.0, shown: Shown = Format.table
) -> None:
    """Carry out the plan, one replica per group at a time; each new replica copies its group's log."""
    with connection.joined() as cluster:
        shifts = cluster.admin.rebalance()
        _show(shown, shifts)
        if shifts:
            until_done(cluster.admin, wait, timeout_s, groups={shift.group for shift in shifts})


def _show(shown: Format, shifts: tuple[ReplicaShift, ...]) -> None:
    rows = [
        {**plain(one), "what": "takes over as leader" if one.leads else "is replaced by a new one there"}
        for one in shifts
    ]
    columns = ("group", "replica", "from_node", "to_node", "what")
    show_rows(shown, rows, columns, empty="replicas and leaders are well spread")
