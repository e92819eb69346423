"""How long the end of a schedule waits for what a group still lacks.

Twenty virtual seconds; and longer, as long as a replica that is behind comes closer. Schedules of forty
seconds leave some of them with thousands of entries, which come in batches of a hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.group.simulation import Simulation

STEP_S = 0.5
STEPS, STEPS_MAX = 40, 400
#: A replica whose log does not grow in so many steps does not come closer.
STANDS_STILL = 4


def steps(groups: Sequence[Simulation]) -> Iterator[None]:
    """One for each step of ``STEP_S`` that the end waits."""
    ends: list[list[int]] = []
    for number in range(STEPS_MAX):
        ends.append([_slowest(group) for group in groups])
        if number >= STEPS and not _grows(ends[-1 - STANDS_STILL], ends[-1]):
            return
        yield


def _slowest(group: Simulation) -> int:
    """The end of the log that is the furthest behind; 0 if all end at the same entry."""
    ends = {replica.journal.last_index for replica in group.replicas if replica.up}
    return min(ends) if len(ends) > 1 else 0


def _grows(before: Sequence[int], after: Sequence[int]) -> bool:
    return any(0 < then < now for then, now in zip(before, after, strict=True))
