"""Transactions under simulated faults: nothing lost, nothing twice, nothing torn, replicas agree.

``make simulate SEEDS=1 SEED=<seed>`` runs a failing seed again. tests/controls proves that broken code is
found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest

from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.environment.world import Violation
from tests.sim.faults.plan import ADDED, KINDS, aimed_faults
from tests.sim.group.simulation import Plan, Simulation
from tests.sim.running.coverage import Phase, grid
from tests.sim.running.runner import CHAOS_S
from tests.support.faults.tables import Cells

#: Of seventy schedules those that fill the table of the common kinds soonest. After a change that moves
#: schedules they may not: up to FURTHER more follow until it is full and a group has committed places in a
#: topic that was created again. Those have only the faults that have not yet met every phase, and the usual
#: ones at the end.
SEEDS, FURTHER = (6, 8, 11, 24, 27, 47, 51, 62, 63), 50
#: Kinds that do not meet a transaction in each of its phases within so few schedules; it takes thousands of
#: schedules to fill their rows (docs/evidence/simulation.md).
RARE = (
    *("storm", "clock-ahead", "slow-fsync", "flip-log", "flip-state", "flip-vote", "hand-over", "at-cut"),
    *ADDED,
)
COMMON = tuple(kind for kind in KINDS if kind not in RARE)
#: Without a partition no log is truncated.
BESIDE_A_CUT = "partition"


def run(seed: int, kinds: Collection[str] | None = None) -> tuple[BrokerWorkload, Cells]:
    """``kinds``: the kinds of faults to draw, if not the usual ones."""
    workload = BrokerWorkload()
    faults = None if kinds is None else aimed_faults(seed, CHAOS_S, kinds)
    simulation = Simulation(seed, Plan.of(seed), workload=workload, chaos_s=CHAOS_S, faults=faults)
    try:
        simulation.run()
    except Violation as error:
        again = f"run({seed}, {kinds})" if kinds else f"make simulate SEEDS=1 SEED={seed}"
        raise AssertionError(f"seed {seed}: {error}; replay: {again}") from error
    return workload, workload.coverage(simulation.fault_log)


def met_too_little(reached: Cells) -> list[str]:
    """Kinds that have not yet met transactions in enough phases: the next schedules draw these."""
    kinds = {kind for _, kind in grid(reached, COMMON).empty()}
    kinds |= {kind for kind in RARE if len(grid(reached, (kind,)).empty()) > len(Phase) // 2}
    return sorted({*kinds, BESIDE_A_CUT} if "at-cut" in kinds else kinds)


@pytest.mark.timeout(600)
def test_promises_hold_over_many_schedules_that_reach_every_phase() -> None:
    counts: Counter[str] = Counter()
    reached, changes = Cells(), Counter[str]()
    for seed in (*SEEDS, *range(100, 100 + FURTHER)):
        missing = met_too_little(reached)
        if seed not in SEEDS and not missing and changes["places"]:
            break
        workload, cells = run(seed, None if seed in SEEDS else missing or None)
        assert workload.report is not None
        counts += workload.report.counts
        reached += cells
        changes += workload.changes.done + workload.recreated.done + workload.questions.done
    assert counts["transactions committed"] > 40 * len(SEEDS), counts
    assert counts["transactions rolled back"] > 20 * len(SEEDS), counts
    assert counts["records read"] > 500 * len(SEEDS), counts
    assert changes["altered"] > 3 and changes["trimmed"] > 3, changes
    assert changes["created"] > 3 and changes["places"], changes
    assert changes["searches"] > 50 and changes["traces"] > 20 and changes["places of groups"], changes
    assert not grid(reached, COMMON).empty(), "find out why this is no longer reached"
    for kind in RARE:
        assert len(grid(reached, (kind,)).empty()) <= len(Phase) // 2, f"{kind} met hardly any transaction"


def test_a_replica_that_applies_retention_anew_gives_no_cut() -> None:
    """Regression: a cut took this replica for one that is behind, and reported a transaction of which it had
    a part as torn."""
    run(501194)
