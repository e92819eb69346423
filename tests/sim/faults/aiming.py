"""Faults that wait for a transaction in a phase that lasts milliseconds.

A rare kind of fault does not meet a short phase by chance, even in hours. So half of the faults of such a
kind are held back until a transaction enters a phase that was drawn for them, but only for a limited time.
In a schedule that is aimed at a kind (``--aim``, steering.py) all of its additional faults wait so.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.faults.plan import Fault
from tests.sim.running.coverage import AcrossPhase, AnyPhase, Phase

if TYPE_CHECKING:
    from tests.sim.group.simulation import Simulation

#: Kinds that are drawn about once a minute and strike at once. (Ambushes already wait for a moment.)
KINDS = ("clock-ahead", "clock-wall", "flip-state", "flip-vote", "torn-file")
#: Phases that last only until an answer comes; ``ACROSS`` adds those of worlds with several groups.
SHORT = (Phase.PREPARED, Phase.COMMITTED, Phase.ROLLED_BACK, Phase.ROLLED_BACK)
ACROSS = (*SHORT, AcrossPhase.HOME_DECIDED, AcrossPhase.SOME_FOLLOWED, AcrossPhase.SOME_FOLLOWED)
SHARE, WAITS_S = 0.5, 3.0


@dataclass(slots=True, eq=False)
class _Held:
    """A fault that waits. ``strikes`` carries it out and returns whether it hit anything."""

    phase: AnyPhase
    strikes: Callable[[], bool]


class Aim:
    """The waiting faults of one group. It is told of every phase that a transaction enters."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._held: list[_Held] = []
        self._hears = False  # whether it was ever told of a phase: not every workload has transactions

    def hold(self, fault: Fault, strikes: Callable[[], bool]) -> bool:
        """Hold this fault back if it should wait. In the end it strikes even if its phase never comes."""
        rng = random.Random(f"aim-{fault.seed}")
        if not fault.aimed and (not self._hears or fault.kind not in KINDS or rng.random() >= SHARE):
            return False
        held = _Held(rng.choice(ACROSS if self._sim.prefix else SHORT), strikes)
        self._held.append(held)
        self._sim.world.later(WAITS_S, self._strike, held)
        return True

    def entered(self, phase: AnyPhase) -> None:
        """A transaction has entered this phase."""
        self._hears = True
        for held in self._held:
            if held.phase is phase:
                self._sim.world.later(0.0, self._meet, held)

    def _meet(self, held: _Held) -> None:
        """Carry out the fault; if it hits nothing, it keeps waiting."""
        if held in self._held and held.strikes():
            self._held.remove(held)

    def _strike(self, held: _Held) -> None:
        if held in self._held:
            self._held.remove(held)
            held.strikes()
