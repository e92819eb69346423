"""Each planted fault is found by the simulator, by a fair name, within a bounded number of seeds.

``pytest -s`` shows how many seeds each one took; ``python -m tests.controls`` makes a table of it, from
many starting points. A fault that is no longer found means that the simulator has become blind to it.
"""

from __future__ import annotations

import pytest

from tests.controls.catalogue import PLANTED, Planted
from tests.controls.hunt import hunt, schedule
from tests.controls.planting import sound

DIRECTED = [pytest.param(p, id=p.name) for p in PLANTED.values() if p.conditions is not None]
QUICK = [pytest.param(p, id=p.name, marks=[pytest.mark.slow] if p.slow else []) for p in PLANTED.values()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", QUICK)
def test_a_planted_fault_is_found(fault: Planted) -> None:
    found = hunt(fault)
    assert found is not None, (
        f"{fault.within} schedules from seed {fault.start} on saw nothing of this: {fault.breaks} "
        f"Look closer: python -m tests.sim --plant {fault.name} --seed {fault.start} --seeds {fault.within}"
    )
    print(f"{fault.name}: {found.text}")
    assert found.outcome.kind in fault.expected, found.text


@pytest.mark.parametrize("fault", DIRECTED)
def test_its_conditions_alone_break_nothing(fault: Planted) -> None:
    """Else the control above would prove its conditions, and not its fault."""
    for seed in range(fault.start, fault.start + 4):
        outcome = schedule(sound(fault), seed)
        assert outcome.kind is None, f"seed {seed}: {outcome.kind}: {outcome.text}"
