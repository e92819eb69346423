"""Groups of all three kinds nack beside transactions with their offsets, in worlds with all their faults.

``tests/controls/offset_faults.py`` has the planted faults that these worlds must find, and the world itself.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.controls.planting import by_name, planted, sound
from tests.sim.across.simulation import ManyGroups
from tests.sim.environment.world import Violation
from tests.sim.running.runner import WORKLOADS
from tests.sim.running.schedules import made
from tests.sim.streams.transforming import CONCURRENT, KINDS, ORDERED, PLAIN

#: The first one does it all; after a change that moves schedules others follow until all is reached.
SEEDS = (3, 13, *range(20, 30))
WANTED = {
    **{f"{kind} {what}": 3 for kind in KINDS for what in ("nacked", "aborted", "committed")},
    **{f"{ORDERED} {what}": 1 for what in ("letters", "late", "died", "stopped")},
    f"{PLAIN} InvalidMessage": 3,
    f"{CONCURRENT} refused": 3,
    f"{CONCURRENT} letters": 1,
}


def run(seed: int) -> Counter[str]:
    world = sound(by_name("nack-moves-the-place"))
    with planted(world):
        workload = WORKLOADS[world.workload]
        simulation = made(seed, workload=workload, chaos_s=world.chaos_s, groups=world.groups)
        assert isinstance(simulation, ManyGroups)
        try:
            simulation.run()
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return simulation.workload.transformers.done


@pytest.mark.timeout(600)
def test_each_input_has_one_output_or_is_a_dead_letter() -> None:
    did: Counter[str] = Counter()
    for seed in SEEDS:
        did += run(seed)
        if all(did[what] >= count for what, count in WANTED.items()):
            return
    raise AssertionError({what: did[what] for what in WANTED})
