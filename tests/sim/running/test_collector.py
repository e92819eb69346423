"""Nothing keeps a schedule that has ended: a campaign runs thousands of them in one process.

What stays is traversed after every schedule from then on. A campaign of 2,000 schedules spent half of its
time on that, in processes of 2 GB.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.clients.fenced import FencedWorkload
from tests.sim.clients.workload import RawWorkload, Workload
from tests.sim.environment.world import World
from tests.sim.running.collector import collect
from tests.sim.running.schedules import carry_out, chosen_faults, made


@pytest.mark.parametrize(
    ("seed", "workload", "groups"),
    [
        (2500000, RawWorkload, 1),
        (2500001, BrokerWorkload, 1),  # with a consumer group that reads a topic created again
        (2500004, FencedWorkload, 1),
        (2500002, BrokerWorkload, 2),  # with producers that die while they send
    ],
)
def test_a_schedule_that_has_ended_is_forgotten(
    seed: int, workload: Callable[[], Workload], groups: int
) -> None:
    collect()  # the first time, what exists is taken for imported
    assert _world(seed, workload, groups)() is None


def _world(seed: int, workload: Callable[[], Workload], groups: int) -> weakref.ref[World]:
    """What is left of a schedule's world after its end."""
    faults = chosen_faults(seed, 4.0, None, groups=groups)
    simulation = made(seed, chaos_s=4.0, workload=workload, faults=faults, groups=groups)
    assert carry_out(simulation) is None
    left = weakref.ref(simulation.world)
    del simulation
    gc.collect()
    return left
