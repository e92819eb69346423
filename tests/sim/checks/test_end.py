"""The checks at the end of a schedule find what is wrong only there: a stuck group, a short read, an empty
database. Each fault is put into the code for one quiet schedule, which passes without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from escrowmq.replication.state.machine import StateMachine
from tests.history.events import READ, Event
from tests.sim.checks.rebuild import check_rebuilt
from tests.sim.clients import consumers
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.clients.ledger import Ledger
from tests.sim.clients.workload import Cluster, RawWorkload, Workload
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import DIGEST_EVERY, BrokerApplication
from tests.sim.group.simulation import Plan, Simulation

SEED = 7


def quiet(workload: Workload, kind: type[Simulation] = Simulation) -> Simulation:
    return kind(SEED, Plan.of(SEED, kind="fifo"), workload=workload, chaos_s=1.5, faults=[])


def found(simulation: Simulation) -> Violation:
    with pytest.raises(Violation) as error:
        simulation.run()
    return error.value


@pytest.mark.parametrize("workload", [RawWorkload, BrokerWorkload])
def test_a_quiet_schedule_passes(workload: Callable[[], Workload]) -> None:
    quiet(workload()).run()


def test_a_group_that_acknowledges_nothing_after_the_calm_is_stuck() -> None:
    class FallsSilent(RawWorkload):
        def act(self, cluster: Cluster) -> None:
            if not cluster.calm:
                super().act(cluster)

    error = found(quiet(FallsSilent()))
    assert error.kind == "stuck" and "nothing was acknowledged" in str(error)


def test_a_replica_that_stays_down_is_named() -> None:
    class WithoutOne(Simulation):
        def prove_alive(self, before: int) -> list[str]:
            self.replicas[1].superseded = True  # so nothing starts it again
            self.replicas[1].crash(power=False)
            return super().prove_alive(before)

    simulation = quiet(RawWorkload(), WithoutOne)
    simulation.checker.blind = frozenset({"not-converged", "lost-entry"})  # its log shows both
    error = found(simulation)
    assert error.kind == "stuck" and "r1 is down" in str(error)


def test_a_replica_whose_final_read_ends_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = quiet(BrokerWorkload())
    read_all = consumers.read_all

    def short(app: BrokerApplication, tp: tuple[str, int], position: int, **how: bool) -> Any:
        part = read_all(app, tp, position, **how)
        if part is None or app.context.name != "r2" or not simulation.calm or not part[2]:
            return part
        return part[0], part[1] - 1, part[2][:-1]

    monkeypatch.setattr(consumers, "read_all", short)
    assert found(simulation).kind == "final-reads-differ"


def test_everything_is_read_again_if_a_replica_ends_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = quiet(BrokerWorkload())
    read_all = consumers.read_all
    gone: list[str] = []

    def gone_once(app: BrokerApplication, tp: tuple[str, int], position: int, **how: bool) -> Any:
        replica = simulation.replicas[1]
        if app is not replica.app or not simulation.calm or gone:
            return read_all(app, tp, position, **how)
        gone.append(replica.name)
        simulation.crash(replica, False, simulation.rng)
        return None

    monkeypatch.setattr(consumers, "read_all", gone_once)
    simulation.run()
    cuts = [event.fields["cut"] for event in _reads(simulation) if event.fields["reader"] == "final-r1"]
    assert gone and set(cuts) == {"final-r1-1"} and len(cuts) == 3


def _reads(simulation: Simulation) -> list[Event]:
    assert isinstance(simulation.workload, BrokerWorkload) and simulation.workload.ledger is not None
    return [event for event in simulation.workload.ledger.recorder.events if event.phase == READ]


def test_a_decision_that_no_database_knows_of_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "settle_locally", lambda self, app, tx, outcome: outcome)
    assert found(quiet(BrokerWorkload())).kind == "invented-decision"


def _settings(state: StateMachine) -> None:
    topic = state.topics.topics["t"]
    topic.info = replace(topic.info, check_max=99)


def _counts(state: StateMachine) -> None:
    state.transactions.apps["shop"].open_by_topic["t"] += 1


def _audit(state: StateMachine) -> None:
    state.transactions.audit.append((1, "operator:x", "shop", "x1", "COMMITTED"))


def _offset(state: StateMachine) -> None:
    state.group_offsets.setdefault("c0", {}).setdefault("t", {})[0] = 12345


def _time(state: StateMachine) -> None:
    state.topics.slots[1].index.last_time_ms += 1


@pytest.mark.parametrize("spoil", [_settings, _counts, _audit, _offset, _time])
def test_a_last_state_that_the_disk_does_not_lead_to_is_found(
    spoil: Callable[[StateMachine], None],
) -> None:
    """The final check compares at any entry: before the end, replicas are compared only at every 32nd one."""
    simulation = quiet(BrokerWorkload())
    simulation.run()
    replica = simulation.replicas[0]
    assert isinstance(replica.app, BrokerApplication) and replica.app.applied_index % DIGEST_EVERY
    spoil(replica.app.replica.state)
    with pytest.raises(Violation) as error:
        check_rebuilt(simulation, replica)
    assert error.value.kind == "state-differs"


def test_an_open_transaction_that_no_check_will_ask_for_is_found() -> None:
    simulation = quiet(BrokerWorkload())
    lost: list[str] = []

    def lose() -> None:
        for replica in simulation.replicas:
            assert isinstance(replica.app, BrokerApplication)
            state = replica.app.replica.state
            if not lost and any(tx.due_ms >= 0 for _, _, tx in state.transactions.iterate_open()):
                lost.append(replica.name)
                state.due.buckets.clear()
                state.due.queues.clear()
                check_rebuilt(simulation, replica)
        simulation.world.later(0.01, lose)

    simulation.world.later(0.5, lose)
    error = found(simulation)
    assert error.kind == "state-differs" and lost and lost[0] in str(error)
