"""Named producers in worlds of one to three groups: nothing breaks, and there are zombies among them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.across import named
from tests.sim.across.scene import Scene
from tests.sim.across.simulation import ManyGroups
from tests.sim.environment.world import Violation


@pytest.mark.timeout(600)
def test_only_the_newest_instance_of_a_name_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(named.SHARE, "worlds", 1.0)
    done = Counter[str]()
    worlds = ((1, 1), (2, 1), (6, 1), (0, 2), (2, 2), (6, 2), (0, 3), (4, 3))
    for seed, groups in worlds:
        simulation = ManyGroups(seed, Scene.of(seed, groups), chaos_s=8.0)
        try:
            simulation.run()
        except Violation as error:
            raise AssertionError(f"seed {seed}, {groups} groups: {error.kind}: {error}") from error
        done += simulation.workload.named.done
    assert done["claimed"] > 20 and done["numbers"] > 10 and done["read"] > 60, done
    assert done["sent when fenced"] > 5, done
    assert done["overtaken"] > 10 and done["rolled back"] > 3, done
