"""What a campaign draws more often: kinds of faults of which a cell of the coverage table is still empty.

In between its usual schedules, a campaign runs some that are aimed at one such kind (``--aim KIND``): they
have additional faults of it, which wait until a transaction enters a short phase (aiming.py). Like every
schedule, such a one is determined by its command alone; only its choice depends on the runs before it. Once
every cell is reached, a campaign runs usual schedules only.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.sim.faults.plan import ADDED, AIMABLE, GROUP_WEIGHTS, WEIGHTS
from tests.sim.running import coverage
from tests.sim.running.runner import Schedule
from tests.sim.running.totals import Totals

#: Two usual schedules, and then one that is aimed at a kind.
EVERY = 3
#: Schedules in the totals before the first aimed one: by then what is missing is rare.
FIRST = 30
#: Broker groups of an aimed schedule over several: with two, no branch has followed before another one.
MOST_GROUPS = 3
DRAWN, ELSEWHERE = WEIGHTS | ADDED | GROUP_WEIGHTS, 100  # how often plans draw a kind, if by its weight


class Steering:
    """Adds aimed schedules to those of a run. ``groups``: as ``--groups`` says. ``first``: their first seed.
    Their seeds are counted apart: with the same seed, an aimed schedule is another one than the usual one."""

    def __init__(self, totals: Totals, groups: str, first: int) -> None:
        self._totals = totals
        several = {"1": (1,), "2": (2,), "mixed": (1, MOST_GROUPS)}
        self._worlds = itertools.cycle(several.get(groups, (MOST_GROUPS,)))
        self._seeds = {number: itertools.count(first) for number in (1, 2, MOST_GROUPS)}
        self._aimed: Counter[tuple[str, bool]] = Counter()

    def among(self, usual: Iterable[Schedule]) -> Iterator[Schedule]:
        """The usual schedules, and in between those that are aimed at what is missing when they begin."""
        for number, schedule in enumerate(usual, start=1):
            yield schedule
            if number % (EVERY - 1) == 0:
                yield from self._one_aimed()

    def _one_aimed(self) -> Iterator[Schedule]:
        groups = next(self._worlds)
        kind = self.missing(groups > 1) if self._totals.schedules >= FIRST else None
        if kind is not None:
            self._aimed[kind, groups > 1] += 1
            yield Schedule(next(self._seeds[groups]), "broker", groups, kind)

    def missing(self, several: bool) -> str | None:
        """A kind of which a cell is empty: one that was aimed at least often, and of those the rarest."""
        grid = coverage.across_grid(self._totals.across) if several else coverage.grid(self._totals.cells)
        kinds = {kind for _, kind in grid.empty() if kind in AIMABLE}
        if not kinds:
            return None
        struck: Counter[str] = Counter()
        for (_, kind), times in grid.cells.items():
            struck[kind] += times
        return min(
            sorted(kinds),
            key=lambda kind: (self._aimed[kind, several], struck[kind], DRAWN.get(kind, ELSEWHERE)),
        )
