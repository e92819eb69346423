"""Transactions that move a group's offsets, in worlds of two and three groups with all their faults.

``tests/controls/offset_faults.py`` has the planted faults that these worlds must find.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.sim.across.scene import KEPT, Scene
from tests.sim.across.simulation import ManyGroups
from tests.sim.environment.world import Violation

#: The first three do the most; after a change that moves schedules others follow until all is reached.
SEEDS, FURTHER = (0, 4, 1), range(6, 20)


def run(seed: int, groups: int) -> ManyGroups:
    scene = Scene.of(seed, groups, reach=KEPT | {"pipelines"})
    quick = {"act_every_s": 0.05, "crowd": False, "delivery_timeout_s": 3.0, "tables": None}
    simulation = ManyGroups(seed, replace(scene, **quick), chaos_s=15.0)  # type: ignore[arg-type]
    try:
        simulation.run()
    except Violation as error:
        raise AssertionError(f"seed {seed} of {groups} groups: {error}") from error
    return simulation


@pytest.mark.timeout(600)
def test_each_input_is_in_one_output_and_below_the_groups_offset() -> None:
    did: Counter[str] = Counter()
    wanted = {"COMMITTED": 6, "inputs": 15, "OffsetsPending": 4, "OffsetsMoved": 1}
    for seed in (*SEEDS, *FURTHER):
        did += run(seed, 2 + seed % 2).workload.pipelines.did
        if all(did[what] >= count for what, count in wanted.items()):
            return
    raise AssertionError(did)
