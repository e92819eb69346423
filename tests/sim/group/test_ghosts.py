"""The simulated supervisor replaces replicas whose processes are still alive; old seeds keep their plans."""

from __future__ import annotations

import random
from typing import Any

import pytest

from escrowmq.cluster.supervisor.member_steps import Seat
from tests.controls.ghost_faults import many_ghosts
from tests.controls.member_faults import many_changes
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.faults.damage import knows_less
from tests.sim.faults.plan import (
    ADDED,
    ADDED_NUMBERS,
    CHANGE,
    CHANGES,
    FIRST_FAULT_S,
    GHOST,
    GHOST_NUMBERS,
    MEAN_PAUSE_S,
    WEIGHTS,
    draw_faults,
)
from tests.sim.group import supervisor
from tests.sim.group.simulation import Plan, Simulation
from tests.sim.group.supervisor import ACTS_AFTER_S, FATES
from tests.sim.running.schedules import carry_out, simulate
from tests.support.faults.dealing import pick


def test_replicas_are_replaced_and_their_predecessors_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    many_ghosts(monkeypatch)
    replaced = gave_up = 0
    for seed in range(6):
        simulation = Simulation(seed, Plan.of(seed), chaos_s=8.0)
        simulation.run()
        replaced += simulation.supervisor.replaced
        gave_up += sum(ghost.superseded for ghost in simulation.ghosts)
        struck = [victim for _, kind, victim in simulation.fault_log if kind == GHOST]
        assert len(struck) == simulation.supervisor.replaced == len(simulation.ghosts)
    assert replaced > 6, "the fault misses"
    assert gave_up > replaced / 2, "any peer that they meet tells them"


def test_two_supervisors_that_act_on_old_looks_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if they use the same incarnation number twice: peers know only one of its two disks."""
    many_ghosts(monkeypatch)
    monkeypatch.setitem(ACTS_AFTER_S, "supervisors", (0.3, 1.5))
    monkeypatch.setattr(supervisor, "TWO", 1.0)
    monkeypatch.setattr(supervisor, "FORGETS", 1.0)
    replaced = twice = 0
    for seed in range(6):
        simulation = Simulation(seed, Plan.of(seed), chaos_s=8.0)
        simulation.run()
        replaced += simulation.supervisor.replaced
        twice += sum(address.endswith("+") for address in simulation.network.hosts)
    assert replaced > 6, "the fault misses"
    assert twice, "no incarnation was counted twice"


def test_an_old_look_costs_no_disk_that_the_group_has_come_to_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """All voters were seen. When the supervisor acts, seconds later, operators have changed the members, and
    the replica is one that the group needs: an empty one among two waits for a leader for ever."""
    many_ghosts(monkeypatch)
    many_changes(monkeypatch)
    monkeypatch.setitem(ACTS_AFTER_S, "supervisors", (2.0, 4.0))
    let_be, seeds = 0, range(23, 123)  # one seed of seven lets a replica be
    for seed in seeds:
        simulation = Simulation(seed, Plan.of(seed), chaos_s=8.0)
        simulation.run()
        let_be += simulation.supervisor.let_be
        if let_be >= 2:
            return
    raise AssertionError(f"in {len(seeds)} schedules from seed {seeds[0]} on, let_be is {let_be}")


def test_a_replica_is_given_up_as_long_as_any_supervisor_means_to_replace_it() -> None:
    simulation = Simulation(1, Plan.of(1, size=3), chaos_s=1.0, faults=[])
    simulation.run()
    victim, one = simulation.replicas[0], simulation.supervisor
    victim.given_up = 2
    one.first.ends_at = 0.0
    one.act(one.first, victim, 1)
    assert victim.given_up == 1 and knows_less(victim), "the other one has not acted yet"


def test_no_voter_goes_whose_leader_counts_on_a_ghost_that_it_takes_for_a_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator knows nothing of the supervisor's replacement, and the leader has not met the successor."""
    many_ghosts(monkeypatch)
    many_changes(monkeypatch)
    monkeypatch.setitem(CHANGES, "per_schedule", (2, 4))
    monkeypatch.setitem(ACTS_AFTER_S, "supervisors", (0.3, 1.5, 3.0))
    monkeypatch.setattr(supervisor, "TWO", 0.3)
    simulation = Simulation(1058, Plan.of(1058, size=3), chaos_s=8.0)
    simulation.faults = [fault for fault in simulation.faults or () if fault.kind in (GHOST, CHANGE)]
    broken = carry_out(simulation)
    assert broken is None, broken
    assert simulation.operators.misled


def test_a_successor_is_told_of_its_group_before_any_client_has_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reaches nobody who has more than the first entry, and would begin the group anew."""
    settings: dict[str, Any] = {"workload": BrokerWorkload, "chaos_s": 3.1, "actions_max": 1}
    faults = frozenset((0, 1, 4, 5, 1001))
    *_, broken = simulate(500327, only_faults=faults, **settings)
    assert broken is None, broken
    monkeypatch.setattr(Seat, "has_a_group", lambda self, founded: self.gid in founded)
    *_, broken = simulate(500327, only_faults=faults, **settings)
    assert broken is not None and "counts from its start on" in broken


def test_topics_are_created_in_the_end_if_a_broken_link_left_no_leader_before() -> None:
    """Of two replicas one cannot reach the other, and the third waits for a leader to copy its log from: so
    nothing can be created before the link is mended, half a second before the end is judged."""
    settings: dict[str, Any] = {"workload": BrokerWorkload, "chaos_s": 5.7, "actions_max": 1}
    faults = frozenset((0, 1, 2, 3, 6, GHOST_NUMBERS))
    *_, broken = simulate(710356, only_faults=faults, **settings)
    assert broken is None, broken


def test_every_fate_of_an_unseen_process_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    many_ghosts(monkeypatch)
    fates: set[str] = set()
    for seed in range(8):
        simulation = Simulation(seed, Plan.of(seed), chaos_s=8.0)
        simulation.happened = lambda text: fates.update(  # type: ignore[method-assign]
            fate for fate in FATES if "sees nothing of" in text and fate in text
        )
        simulation.run()
    assert fates == set(FATES)


def test_ghosts_are_drawn_beside_what_a_seed_always_drew() -> None:
    for seed in range(50):
        rng, at, before = random.Random(f"faults-{seed}"), FIRST_FAULT_S, []
        while at < 10.0:
            before.append((at, pick(rng, WEIGHTS), rng.getrandbits(32)))
            at += rng.expovariate(1 / MEAN_PAUSE_S)
        drawn = draw_faults(seed, 10.0)
        beside = (*ADDED, GHOST)
        assert [(f.at_s, f.kind, f.seed) for f in drawn if f.kind not in beside] == before
        assert all((GHOST_NUMBERS <= f.number < ADDED_NUMBERS) == (f.kind == GHOST) for f in drawn)
        assert all((f.number >= ADDED_NUMBERS) == (f.kind in ADDED) for f in drawn)
        shorter = {f.number: f for f in draw_faults(seed, 5.0)}
        assert shorter == {f.number: f for f in drawn if f.at_s < 5.0}
