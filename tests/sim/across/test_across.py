"""Schedules over two and three broker groups in every test run, and what they must reach.

More of them: ``make simulate SEEDS=1000``, or ``python -m tests.sim --groups 3``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.across.scene import RISES_S, Scene
from tests.sim.across.simulation import ManyGroups
from tests.sim.checks.repeated import check_the_same_everywhere
from tests.sim.environment.world import Violation
from tests.sim.faults.plan import CHANGE, EVERY, GROUP_KINDS, GROUP_WEIGHTS, draw_faults
from tests.sim.running.coverage import AcrossPhase, Phase
from tests.sim.running.runner import Schedule, schedules
from tests.support.faults.tables import Cells

#: Of fourteen schedules those that reach everything below soonest; after a change that moves schedules others
#: follow until they do.
SEEDS, FURTHER = (4, 8, 9, 11, 12), range(20, 30)
BEGUN = ("bulk", "bulk without a callback", "one id twice", "one id for two things")
CHANGED = ("altered", "trimmed", "created", "members changed", "upgraded")


def run(seed: int, groups: int) -> ManyGroups:
    simulation = ManyGroups(seed, Scene.of(seed, groups))
    try:
        simulation.run()
    except Violation as error:
        again = f"python -m tests.sim --seeds 1 --seed {seed} --workload broker --groups {groups}"
        raise AssertionError(f"seed {seed}: {error}; again: {again}") from error
    return simulation


@pytest.mark.timeout(900)
def test_promises_hold_over_several_groups_and_every_phase_is_reached() -> None:
    counts: Counter[str] = Counter()
    reached, struck, did = Cells(), Counter[str](), Counter[str]()
    wanted = (*BEGUN, *CHANGED, "compressed")
    for seed in (*SEEDS, *FURTHER):
        if seed in FURTHER and all(did[what] for what in wanted):
            break  # some things happen in one schedule of a dozen
        simulation = run(seed, 2 + seed % 2)
        assert simulation.workload.report is not None
        counts += simulation.workload.report.counts
        reached += simulation.workload.coverage(simulation.fault_log)
        struck.update(kind for _, kind, _ in simulation.fault_log)
        did += simulation.workload.did
        did += simulation.workload.changes.done + simulation.workload.recreated.done
        did["members changed"] += sum(c.steps for part in simulation.parts for c in part.operators.done)
        did["upgraded"] += bool(simulation.upgraded)
    assert counts["transactions committed"] > 25 * len(SEEDS), counts
    assert counts["transactions rolled back"] > 15 * len(SEEDS), counts
    assert counts["records read"] > 200 * len(SEEDS), counts
    rare = {Phase.ROLLED_BACK.value, AcrossPhase.SOME_FOLLOWED.value}
    assert {phase for phase, _ in reached} >= {phase.value for phase in (*Phase, *AcrossPhase)} - rare
    assert all(struck[kind] for kind in (*GROUP_WEIGHTS, CHANGE, "late-copy", "kill", "partition")), struck
    assert set(struck) <= set(GROUP_KINDS)
    assert all(did[what] for what in wanted), [what for what in wanted if not did[what]]


def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    """This includes the coroutines of feedback, whose tasks are kept in sets."""
    check_the_same_everywhere("3, groups=2, chaos_s=3.0")


def test_in_some_worlds_the_groups_rise_to_a_next_level() -> None:
    rising = [Scene.of(seed, 2).rises_at_s for seed in range(80)]
    assert {at_s for at_s in rising if at_s is not None} == set(RISES_S)
    assert 50 < rising.count(None) < 75


def test_a_plan_names_the_groups_that_it_strikes() -> None:
    faults = draw_faults(3, 20.0, groups=3)
    assert {fault.gid for fault in faults} == {EVERY, 0, 1, 2}
    assert draw_faults(3, 8.0, groups=3) == [fault for fault in faults if fault.at_s < 8.0]
    assert all(fault.gid == 0 for fault in draw_faults(3, 20.0))


def test_one_seed_runs_in_one_group_and_in_several() -> None:
    every = list(schedules(range(2), None, "mixed"))
    of_one = [Schedule(1, "raw", 1), Schedule(1, "broker", 1), Schedule(1, "broker", 3)]
    assert [job for job in every if job.seed == 1] == of_one
    assert list(schedules(range(2), None, "1")) == [job for job in every if job.groups == 1]
    assert list(schedules(range(2), None, "2")) == [Schedule(n, "broker", 2) for n in (0, 1)]
