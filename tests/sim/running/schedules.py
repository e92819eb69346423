"""Makes and runs schedules by their seed, with one group or several, and reports violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests.controls.guards import taken_away
from tests.controls.planting import planted
from tests.sim.across.scene import KEPT, Scene
from tests.sim.across.simulation import ManyGroups
from tests.sim.clients.workload import RawWorkload, Workload
from tests.sim.environment.world import Violation
from tests.sim.faults.plan import Fault, draw_aimed, draw_faults
from tests.sim.group.simulation import Figures, Plan, Simulation

#: Share of transactions over several groups in a world that is aimed at a kind, where it would have none.
AIMED_ACROSS = 0.7

AnySimulation = Simulation | ManyGroups


def chosen_faults(
    seed: int,
    chaos_s: float,
    only: frozenset[int] | None,
    plant: str | None = None,
    groups: int = 1,
    aim: str = "",
) -> list[Fault]:
    """The plan of a seed, or only the given faults of it. ``aim``: a kind of which there are more."""
    with planted(plant):  # it may change which faults are drawn
        drawn = draw_faults(seed, chaos_s, groups)
        drawn += draw_aimed(seed, chaos_s, groups, aim) if aim else ()
        return [fault for fault in drawn if only is None or fault.number in only]


def made(
    seed: int,
    *,
    size: int | None = None,
    kind: str | None = None,
    chaos_s: float = 10.0,
    trace: bool = False,
    workload: Callable[[], Workload] = RawWorkload,
    faults: list[Fault] | None = None,
    actions_max: int | None = None,
    groups: int = 1,
    reach: Iterable[str] = KEPT,
    aim: str = "",
    one: type[Simulation] = Simulation,
    many: type[ManyGroups] = ManyGroups,
) -> AnySimulation:
    """A schedule that has not started. Several groups have their own clients, whatever ``workload`` is.

    ``reach``: see ``tests.sim.across.scene``. ``aim``: the kind that the faults are aimed at; then there are
    always transactions over several groups. ``one``, ``many``: the classes to use.
    """
    if groups == 1:
        return one(
            seed,
            Plan.of(seed, size=size, kind=kind),
            workload=workload(),
            chaos_s=chaos_s,
            trace=trace,
            faults=faults,
            actions_max=actions_max,
        )
    scene = Scene.of(seed, groups, size=size, reach=frozenset(reach))
    if aim:
        scene = replace(scene, across=scene.across or AIMED_ACROSS)
    return many(seed, scene, kind=kind, chaos_s=chaos_s, trace=trace, faults=faults, actions_max=actions_max)


def carry_out(simulation: AnySimulation, *, drop: Sequence[str] = (), plant: str | None = None) -> str | None:
    """Run it; returns the violation (None: none)."""
    try:
        with planted(plant), taken_away(*drop):
            simulation.run()
    except Violation as violation:
        return str(violation)
    except Exception as error:  # the code under test noticed the fault itself, or failed
        return f"{type(error).__name__}: {error}"
    return None


def simulate(
    seed: int,
    *,
    drop: Sequence[str] = (),
    only_faults: frozenset[int] | None = None,
    plant: str | None = None,
    **settings: Any,
) -> tuple[list[tuple[float, str, str]], Figures, str | None]:
    """Run one schedule: the log of its faults, its figures, and the violation (None: none).

    ``drop``: guards to take away (tests/controls/guards.py); ``plant``: a fault to plant; ``settings``:
    see ``made``.
    """
    chaos_s, groups = settings.get("chaos_s", 10.0), settings.get("groups", 1)
    faults = chosen_faults(seed, chaos_s, only_faults, plant, groups, settings.get("aim", ""))
    with planted(plant):  # it may draw another world
        simulation = made(seed, faults=faults, **settings)
    broken = carry_out(simulation, drop=drop, plant=plant)
    return simulation.fault_log, simulation.figures(), broken


def run_seed(seed: int, **settings: Any) -> tuple[Figures, str | None]:
    """Run one schedule: its figures, and the violation (None: none). ``settings``: see ``simulate``."""
    return simulate(seed, **settings)[1:]
