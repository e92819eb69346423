"""Runs schedules against a planted fault, one after the other, until one of them reports it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.controls.planting import RELAYS, Planted, planted
from tests.relays import schedule as relays
from tests.sim.across.scene import KEPT
from tests.sim.environment.world import Violation
from tests.sim.running.runner import WORKLOADS
from tests.sim.running.schedules import made


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one schedule reported. ``kind`` is that of the violation, or the type of another exception; None
    if the schedule ended well."""

    seed: int
    kind: str | None
    text: str
    virtual_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """``seeds`` schedules were needed; the last one reported it."""

    seeds: int
    outcome: Outcome
    virtual_s: float  # of all schedules that were needed

    @property
    def text(self) -> str:
        last = self.outcome
        return (
            f"{self.seeds} seeds, {self.virtual_s:.1f} virtual s; seed {last.seed}: {last.kind}: {last.text}"
        )


def schedule(fault: Planted, seed: int) -> Outcome:
    """Run one schedule with the fault in it."""
    if fault.workload == RELAYS:
        return _of_relays(fault, seed)
    with planted(fault):
        simulation = made(
            seed,
            size=fault.size,
            kind=fault.kind,
            workload=WORKLOADS[fault.workload],
            chaos_s=fault.chaos_s,
            groups=fault.groups,
            reach=KEPT | fault.reach,
        )
        kind, text = None, ""
        try:
            simulation.run()
        except Violation as violation:
            kind, text = violation.kind, str(violation)
        except Exception as error:
            kind, text = type(error).__name__, str(error)
        return Outcome(seed, kind, text, simulation.world.elapsed_s)


def _of_relays(fault: Planted, seed: int) -> Outcome:
    """These have schedules of their own, in the same virtual time."""
    with planted(fault):
        try:
            outcome = relays.run(seed)
        except Exception as error:
            return Outcome(seed, type(error).__name__, str(error), 0.0)
    kind, _, text = outcome.found[0].partition(": ") if outcome.found else (None, "", "")
    return Outcome(seed, kind, text, outcome.virtual_s)


def hunt(fault: Planted, first: int | None = None, most: int | None = None) -> Found | None:
    """Run at most ``most`` schedules, from seed ``first`` on; None if none of them reports anything."""
    first = fault.start if first is None else first
    virtual_s = 0.0
    for count in range(1, (most or fault.within) + 1):
        outcome = schedule(fault, first + count - 1)
        virtual_s += outcome.virtual_s
        if outcome.kind is not None and outcome.kind not in fault.passing_over:
            return Found(count, outcome, virtual_s)
    return None
