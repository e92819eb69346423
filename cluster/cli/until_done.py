"""Waits until replicas have been added and removed as wanted, and prints a line for each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from escrowmq.cluster.cli.output import note
from escrowmq.replication.errors import Unavailable

if TYPE_CHECKING:
    from escrowmq.actors.admin.admin import Admin
    from escrowmq.actors.admin.types import MemberChange

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
