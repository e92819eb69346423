"""``escrowmq members``: which replicas belong to each broker group."""

from __future__ import annotations

from escrowmq.cluster.cli.options import ConnectionOptions, Format, Shown, with_connection
from escrowmq.cluster.cli.output import show_rows

COLUMNS = ("group", "leader", "voters", "learners", "next_replica", "version", "last_change")


@with_connection
def members(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """Replicas of each broker group: who votes, who is being filled, and how often that has changed."""
    with connection.joined() as cluster:
        found = cluster.admin.members()
    table = shown is Format.table
    rows = [
        {
            "group": one.group,
            "leader": one.leader,
            "voters": _listed(one.voters) if table else one.voters,
            "learners": _listed(one.learners) if table else one.learners,
            "next_replica": one.next_replica,
            "version": one.version,
            "last_change": one.change_id or None,
            "applied": one.applied,
        }
        for one in found
    ]
    show_rows(shown, rows, COLUMNS)


def _listed(replicas: tuple[int, ...]) -> str | None:
    return ", ".join(map(str, replicas)) or None
