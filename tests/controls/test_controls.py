"""The simulator finds each planted fault, under a fair name, within a bounded number of seeds.

``pytest -s`` shows how many seeds each one took; ``python -m tests.controls`` makes a table of it, from
many starting points. If a fault is no longer found, the simulator has become blind to it.

``make test`` hunts a quarter of them, each day another one, and names it in its first lines, and ``make
test-long`` hunts all. ``PLANTED_QUARTER`` (0 to 3) chooses the quarter of another day.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import PLANTED_QUARTER, PLANTED_QUARTERS
from tests.controls.catalogue import PLANTED, Planted
from tests.controls.hunt import hunt, schedule
from tests.controls.planting import RELAYS, sound


def _world_of(fault: Planted) -> object:
    """Everything, except the seed, that determines its schedules while the fault is not planted."""
    often = tuple(sorted(fault.often.items()))
    drawn = fault.workload, fault.groups, fault.kind, fault.size, fault.chaos_s
    return fault.conditions, often, drawn, fault.reach


def _sound_schedules() -> Iterator[Any]:
    """For each world that has conditions: one of its faults, and the schedules to run, counted from its
    start. They check this check, so they run in ``make test-long``."""
    for fault in {_world_of(p): p for p in PLANTED.values() if p.conditions is not None}.values():
        yield pytest.param(fault, range(4), id=fault.name, marks=pytest.mark.long)


def _faults(quarter: int = PLANTED_QUARTER) -> Iterator[Any]:
    """All of them; those that ``make test`` leaves out on this day are marked as long."""
    for number, fault in enumerate(PLANTED.values()):
        today = number % PLANTED_QUARTERS == quarter and not fault.long
        yield pytest.param(fault, id=fault.name, marks=[] if today else pytest.mark.long)


def test_in_four_days_each_fault_is_hunted_once() -> None:
    days = [
        {param.id for param in _faults(quarter) if not param.marks} for quarter in range(PLANTED_QUARTERS)
    ]
    of_each_day = {fault.name for fault in PLANTED.values() if not fault.long}
    assert set().union(*days) == of_each_day and sum(map(len, days)) == len(of_each_day)
    assert PLANTED_QUARTER in range(PLANTED_QUARTERS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", list(_faults()))
def test_a_planted_fault_is_found(fault: Planted) -> None:
    found = hunt(fault)
    module = "tests.relays" if fault.workload == RELAYS else "tests.sim"
    assert found is not None, (
        f"{fault.within} schedules from seed {fault.start} on saw nothing of this: {fault.breaks} "
        f"Look closer: python -m {module} --plant {fault.name} --seed {fault.start} --seeds {fault.within}"
    )
    print(f"{fault.name}: {found.text}")
    assert found.outcome.kind in fault.expected, found.text


@pytest.mark.parametrize(("fault", "seeds"), list(_sound_schedules()))
def test_its_conditions_alone_break_nothing(fault: Planted, seeds: range) -> None:
    """If they did, the control above might detect the conditions and not the fault."""
    for seed in seeds:
        outcome = schedule(sound(fault), fault.start + seed)
        assert outcome.kind is None, f"seed {outcome.seed}: {outcome.kind}: {outcome.text}"
