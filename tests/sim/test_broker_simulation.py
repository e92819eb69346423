"""Transactions under simulated faults: nothing lost, nothing twice, nothing torn, replicas agree.

Any failing seed is run again by ``make simulate SEEDS=1 SEED=<seed>``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from escrowmq.replication import admission
from escrowmq.replication.errors import ApplyFailed
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.transactions import OpenTx
from tests.sim.broker_workload import BrokerWorkload
from tests.sim.coverage import Cells, Phase, empty
from tests.sim.faultplan import KINDS
from tests.sim.simulation import Plan, Simulation
from tests.sim.world import Violation

SEEDS = 24
#: Kinds that do not meet a transaction in each of its phases within so few schedules; thousands of
#: schedules fill the table (docs/reliability.md).
RARE = ("storm", "clock-ahead", "slow-fsync", "flip-log", "flip-state", "flip-vote", "hand-over", "at-cut")


def run(seed: int) -> tuple[BrokerWorkload, Cells]:
    workload = BrokerWorkload()
    simulation = Simulation(seed, Plan.of(seed), workload=workload)
    try:
        simulation.run()
    except Violation as error:
        raise AssertionError(f"seed {seed}: {error}; replay: make simulate SEEDS=1 SEED={seed}") from error
    return workload, workload.coverage(simulation.fault_log)


@pytest.mark.timeout(300)
def test_promises_hold_over_many_schedules_that_reach_every_phase() -> None:
    counts: Counter[str] = Counter()
    reached = Cells()
    for seed in range(SEEDS):
        workload, cells = run(seed)
        assert workload.report is not None
        counts += workload.report.counts
        reached += cells
    assert counts["transactions committed"] > 40 * SEEDS, counts
    assert counts["transactions rolled back"] > 20 * SEEDS, counts
    assert counts["records read"] > 500 * SEEDS, counts
    common = tuple(kind for kind in KINDS if kind not in RARE)
    assert not empty(reached, common), "choose other seeds, or find out why this is no longer reached"
    for kind in RARE:
        assert len(empty(reached, (kind,))) <= len(Phase) // 2, f"{kind} met hardly any transaction"


def fails_within(seeds: int) -> str:
    for seed in range(seeds):
        try:
            Simulation(seed, Plan.of(seed), workload=BrokerWorkload()).run()
        except (Violation, AssertionError, ApplyFailed) as error:
            return str(error)
    return ""


def test_control_a_commit_that_drops_a_reference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = admission.Admission._references

    def without_last(self: admission.Admission, records: Sequence[OpenTx]) -> list[bytes]:
        return whole(self, records)[:-1]

    monkeypatch.setattr(admission.Admission, "_references", without_last)
    # With one reference only, nothing of it is left.
    assert fails_within(3).startswith(("torn", "lost-write"))


def test_control_deduplication_of_batches_switched_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = StateMachine._message

    def forgetful(self: StateMachine, index: int, op: object) -> object:
        result = plain(self, index, op)  # type: ignore[arg-type]
        self.producers.young.clear()
        self.producers.old.clear()
        return result

    monkeypatch.setattr(StateMachine, "_message", forgetful)
    assert fails_within(20)


def test_control_a_state_that_depends_on_the_replica_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = StateMachine._rollback
    seen: list[StateMachine] = []

    def different(self: StateMachine, index: int, op: object) -> object:
        if self not in seen:
            seen.append(self)
        if seen.index(self) % 2:
            self.now_ms += 1
        return plain(self, index, op)  # type: ignore[arg-type]

    monkeypatch.setattr(StateMachine, "_rollback", different)
    assert fails_within(10)
