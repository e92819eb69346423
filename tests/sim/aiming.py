"""Faults that wait for a transaction in a phase that lasts milliseconds.

Of a rare kind of fault and a short phase, chance brings no two together in hours. So each second fault of
such a kind is held back until a transaction enters a phase that was drawn for it, for a while at most.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.coverage import AcrossPhase, AnyPhase, Phase
from tests.sim.faultplan import Fault

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

#: Kinds that are drawn once in a minute, and strike at once: what is laid has a moment of its own.
KINDS = ("clock-ahead", "clock-wall", "flip-state", "flip-vote", "torn-file")
#: Phases that last as long as it takes to answer; the last ones where there are several groups.
SHORT = (Phase.PREPARED, Phase.COMMITTED, Phase.ROLLED_BACK, Phase.ROLLED_BACK)
ACROSS = (*SHORT, AcrossPhase.HOME_DECIDED, AcrossPhase.SOME_FOLLOWED, AcrossPhase.SOME_FOLLOWED)
SHARE, WAITS_S = 0.5, 3.0


@dataclass(slots=True, eq=False)
class _Held:
    """A fault that waits. ``strikes``: whether it met anything."""

    phase: AnyPhase
    strikes: Callable[[], bool]


class Aim:
    """Of one group: told of every phase that a transaction enters."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._held: list[_Held] = []
        self._hears = False  # of phases at all: not everything that runs on a log has transactions

    def hold(self, fault: Fault, strikes: Callable[[], bool]) -> bool:
        """Hold this fault back, if it is one of those that wait. It strikes in the end whatever comes."""
        rng = random.Random(f"aim-{fault.seed}")
        if not self._hears or fault.kind not in KINDS or rng.random() >= SHARE:
            return False
        held = _Held(rng.choice(ACROSS if self._sim.prefix else SHORT), strikes)
        self._held.append(held)
        self._sim.world.later(WAITS_S, self._strike, held)
        return True

    def entered(self, phase: AnyPhase) -> None:
        """A transaction is in this phase now."""
        self._hears = True
        for held in self._held:
            if held.phase is phase:
                self._sim.world.later(0.0, self._meet, held)

    def _meet(self, held: _Held) -> None:
        """It waits on if nothing was there that it could harm."""
        if held in self._held and held.strikes():
            self._held.remove(held)

    def _strike(self, held: _Held) -> None:
        if held in self._held:
            self._held.remove(held)
            held.strikes()
