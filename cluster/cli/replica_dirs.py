"""``escrowmq leftovers``: lists and removes the directories of replicas that were replaced."""

from __future__ import annotations

from typing import Annotated

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, show_rows

COLUMNS = ("node", "directory", "replaced_by", "may_go")


@with_connection
def leftovers(
    connection: ConnectionOptions,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove those whose successor has a vote.")
    ] = False,
    shown: Shown = Format.table,
) -> None:
    """List directories of replaced replicas on the nodes that are up, and whether they may be removed."""
    with connection.joined() as cluster:
        before = cluster.leftovers()
        found = cluster.leftovers(remove=True) if remove and before else before
    if remove and shown is Format.table:
        note(f"removed {len(before) - len(found)} of {len(before)}")
    rows = [
        {
            **one,
            "replaced_by": f"incarnation {one['successor']} on {one['successor_node']}"
            if one["successor"] >= 0
            else "none: its removal was interrupted"
            if one["directory"].endswith(".removed")
            else "none: it was removed from its group",
            "may_go": "yes" if not one["keep"] else f"no: {one['keep']}",
        }
        for one in found
    ]
    show_rows(shown, rows, COLUMNS, empty="nothing is left over")
