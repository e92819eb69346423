"""When each duty of a replica is due next, so that a tick calls only what has something to do.

A tick follows every message, and most duties have nothing to do then. So each duty says when it is due next,
and whatever makes it due sooner says so: it sets the duty's ``due`` to ``AT_ONCE``, in the replica's thread,
before the tick that follows. A duty that nobody makes due is never called again; that is the one way to get
this wrong, and tests/replication/replica/test_agenda.py plants it for each duty.

Raft's own times (elections, heartbeats, notices of commits, handing over) are in the node, and no part of
this: they must not wait behind anything here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: As a due time: at the next tick, whenever that is; and not before something makes it due.
AT_ONCE: Final = float("-inf")
NEVER: Final = float("inf")


class Duty:
    """One of them. ``run(now)`` does what is due, and returns when it is due next. ``due``: by the clock that
    ``Agenda.run`` is told, at first at once; anybody may make it due sooner."""

    __slots__ = ("due", "name", "run")

    def __init__(self, name: str, run: Callable[[float], float]) -> None:
        self.name, self.run, self.due = name, run, AT_ONCE


class Agenda:
    """The duties of one replica, in the order in which they are called. Times in seconds."""

    def __init__(self) -> None:
        self.duties: list[Duty] = []
        #: When something is due next, as of the last ``run``; NEVER, too, if only a tick is waited for.
        self.next = NEVER

    def add(self, duty: Duty) -> Duty:
        """After those that were added before."""
        self.duties.append(duty)
        return duty

    def run(self, now: float) -> None:
        """Call what is due, each duty once."""
        soonest = NEVER
        for duty in self.duties:
            if duty.due <= now:
                duty.due = NEVER
                due = duty.run(now)
                if due < duty.due:  # otherwise something has made it due meanwhile
                    duty.due = due
            if now < duty.due < soonest:
                soonest = duty.due
        self.next = soonest
