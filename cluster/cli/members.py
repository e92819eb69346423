"""``escrowmq members``: shows and changes which replicas belong to each broker group."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from escrowmq.cluster.cli.options import ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, show_rows
from escrowmq.replication.errors import Unavailable

if TYPE_CHECKING:
    from escrowmq.actors.admin.admin import Admin
    from escrowmq.actors.admin.types import MemberChange


# ------------------------------------------------------------------------------------------------------------
# Waits until replicas have been added and removed as wanted, and prints a line for each step.

T = TypeVar("T")
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, and show each step.")]
Timeout = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait; the change continues afterwards.")
]
LOOK_EVERY_S = 0.5
#: How long a question to the supervisor is repeated: it may be restarting.
PATIENCE_S = 60.0


def until_done(
    admin: Admin,
    wait: bool,
    timeout_s: float,
    groups: Collection[int] | None = None,
    done: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until these groups (None: all) are as wanted, or until ``done()`` is true.

    Raises Unavailable after ``timeout_s``; the change itself continues in the background.
    """
    if not wait:
        note("the change continues in the background; 'escrowmq members changes' shows its progress")
        return
    deadline, said = time.monotonic() + timeout_s, dict[int, str]()
    while True:
        left = [one for one in _patiently(admin.member_changes) if groups is None or one.group in groups]
        for one in left:
            _say(one, said)
        if not left or _patiently(done):
            note("done")
            return
        if time.monotonic() >= deadline:
            steps = "; ".join(f"group {one.group}: {one.step}" for one in left)
            raise Unavailable(
                f"not done after {timeout_s:g} s ({steps}); it continues, see 'escrowmq members changes'", 5.0
            )
        time.sleep(LOOK_EVERY_S)


def _say(one: MemberChange, said: dict[int, str]) -> None:
    text = f"group {one.group}: {'waits: ' if one.waits else ''}{one.step}"
    text += f" ({one.problem})" if one.problem else ""
    if said.get(one.group) != text:
        said[one.group] = text
        note(text)


def _patiently(ask: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_EVERY_S)


COLUMNS = ("group", "leader", "voters", "learners", "next_replica", "version", "last_change")

app = typer.Typer(
    no_args_is_help=False,
    invoke_without_command=True,
    help="Show and change the replicas of each broker group: voters, learners, their number and nodes.",
)


@app.callback()
@with_connection
def members(connection: ConnectionOptions, ctx: typer.Context, shown: Shown = Format.table) -> None:
    """List each broker group's voters and learners (replicas still copying the log), with the version."""
    if ctx.invoked_subcommand is not None:
        return
    found = connection.read("members")
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


@app.command("set")
@with_connection
def set_replicas(
    connection: ConnectionOptions,
    group: Annotated[int, typer.Argument(help="Broker group.")],
    replicas: Annotated[int, typer.Argument(help="Number of voting replicas: 1, 3, 5 or 7.")],
    wait: Wait = True,
    timeout_s: Timeout = 600.0,
) -> None:
    """Change a broker group's number of replicas while it is in use.

    Replicas are added or removed one at a time; a new one gets a vote once it holds the whole log.
    """
    with connection.joined() as cluster:
        cluster.admin.set_replicas(group, replicas)
        until_done(cluster.admin, wait, timeout_s, groups={group})


@app.command("move")
@with_connection
def move_replica(
    connection: ConnectionOptions,
    group: Annotated[int, typer.Argument(help="Broker group.")],
    replica: Annotated[int, typer.Argument(help="Number of the replica to replace.")],
    node: Annotated[str, typer.Argument(help="Name of the node for its replacement.")],
    wait: Wait = True,
    timeout_s: Timeout = 600.0,
) -> None:
    """Replace a replica by a new one, with a new number, on another node.

    The old replica and its directory are removed once the new one has a vote.
    """
    with connection.joined() as cluster:
        cluster.admin.move_replica(group, replica, node)
        until_done(cluster.admin, wait, timeout_s, groups={group})


@app.command("changes")
@with_connection
def changes(connection: ConnectionOptions, shown: Shown = Format.table) -> None:
    """List broker groups whose replicas are not yet as wanted, and the next step for each."""
    found = connection.read("changes")
    rows = [
        {
            "group": one.group,
            "wanted": one.wanted,
            "voters": _listed(one.voters) if shown is Format.table else one.voters,
            "learners": _listed(one.learners) if shown is Format.table else one.learners,
            "step": f"waits: {one.step}" if one.waits and shown is Format.table else one.step,
            "waits": one.waits,
            "problem": one.problem,
        }
        for one in found
    ]
    columns = ("group", "wanted", "voters", "learners", "step", "problem")
    show_rows(shown, rows, columns, empty="all groups have the wanted replicas")


def _listed(replicas: tuple[int, ...]) -> str | None:
    return ", ".join(map(str, replicas)) or None
