"""When a group goes up to the next format level: once nobody is left who could not read what may follow.

A replica that meets an operation it does not know stops. So the leader asks every replica of *every* group (a
transaction's branches are written in the version in which its home took it), and one that does not answer,
or does not know the question, counts as one that runs older software. There is no way down.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.calling.answers import LevelReport


def next_level(level: int, reports: Sequence[LevelReport | None]) -> int | None:
    """The level to propose in a group of ``level``, or None. ``reports``: of every replica of every group, as
    they were told just now; None where there was no answer."""
    wanted = level + 1
    ready = [r is not None and r.known >= wanted and r.applied >= level for r in reports]
    return wanted if ready and all(ready) else None
