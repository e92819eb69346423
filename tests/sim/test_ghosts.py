"""The simulated supervisor replaces replicas whose processes are still alive; old seeds keep their plans."""

from __future__ import annotations

import random

import pytest

from tests.controls.ghost_faults import many_ghosts
from tests.sim import supervisor
from tests.sim.faultplan import (
    ADDED,
    ADDED_NUMBERS,
    FIRST_FAULT_S,
    GHOST,
    GHOST_NUMBERS,
    MEAN_PAUSE_S,
    WEIGHTS,
    draw_faults,
)
from tests.sim.simulation import Plan, Simulation
from tests.sim.supervisor import ACTS_AFTER_S, FATES
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
