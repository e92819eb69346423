"""When a group moves to the next format level: once every replica can read what may follow.

A replica stops at an operation that it does not know. So the leader asks every replica of *every* group (a
transaction's branches are written in the version in which its home accepted it), and a replica that does not
answer, or does not know the question, counts as running older software. The change is irreversible.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.calling.answers import LevelReport


def next_level(level: int, reports: Sequence[LevelReport | None]) -> int | None:
    """The level to propose in a group of ``level``, or None. ``reports``: the latest reports of all replicas
    of all groups; None where there was no answer."""
    wanted = level + 1
    ready = [r is not None and r.known >= wanted and r.applied >= level for r in reports]
    return wanted if ready and all(ready) else None
