"""When a group moves to the next format level: once every replica can read what may follow.

A replica stops at an operation that it does not know. So the leader asks every replica of *every* group (a
transaction's branches are written in the version in which its home accepted it), and a replica that does not
answer, or does not know the question, counts as running older software. The change is irreversible.

From the level of topic ids on group 0 goes last: it assigns them, so an id proves that every other group
takes it. Otherwise a producer that had heard of a new topic's id would leave it out where the group did not
know ids yet, and its messages would be stored in an older topic of that name that is still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.state.topics import LEVEL_OF_IDS


def next_level(
    level: int, reports: Sequence[LevelReport | None], ahead: Sequence[LevelReport | None] = ()
) -> int | None:
    """The level to propose in a group of ``level``, or None. ``reports``: the latest reports of all replicas
    of all groups; None where there was no answer. ``ahead``: see ``ahead_of``."""
    wanted = level + 1
    ready = [r is not None and r.known >= wanted and r.applied >= level for r in reports]
    if wanted >= LEVEL_OF_IDS:
        # All of them: one that has not applied it may still answer clients as a leader of the past.
        ready += [r is not None and r.applied >= wanted for r in ahead]
    return wanted if ready and all(ready) else None


def ahead_of(gid: int, found: Mapping[tuple[int, int], LevelReport | None]) -> Sequence[LevelReport | None]:
    """The reports of the replicas that reach a level before this group does, from those of all replicas by
    group and number."""
    return [report for (group, _), report in found.items() if gid == 0 < group]
