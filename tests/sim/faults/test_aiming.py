"""Faults that wait for a phase strike in it, or when their time to wait is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sim.environment.world import START_S, World
from tests.sim.faults import aiming
from tests.sim.faults.aiming import SHORT, WAITS_S, Aim
from tests.sim.faults.plan import Fault
from tests.sim.running.coverage import Phase


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(aiming, "SHARE", 1.0)
    return World(1)


def held(
    world: World, strikes: Any, kind: str = "flip-vote", *, aimed: bool = False
) -> tuple[Aim, Phase, bool]:
    """Hold one fault; returns the aim, the phase that the fault waits for, and whether it is held."""
    aim = Aim(cast(Any, SimpleNamespace(world=world, prefix="")))
    aim.entered(Phase.LOCAL)
    waits = aim.hold(Fault(0, 1.0, kind, 7, aimed=aimed), strikes)
    return aim, cast(Phase, aim._held[0].phase if waits else Phase.LOCAL), waits


def test_it_strikes_when_a_transaction_enters_its_phase(world: World) -> None:
    struck: list[float] = []
    aim, phase, _ = held(world, lambda: struck.append(world.now) or True)
    world.later(0.5, aim.entered, next(other for other in SHORT if other is not phase))
    world.later(1.0, aim.entered, phase)
    world.later(2.0, aim.entered, phase)
    world.run(START_S + 2 * WAITS_S)
    assert struck == [START_S + 1.0]


def test_it_waits_on_where_it_met_nothing_and_strikes_in_the_end(world: World) -> None:
    struck: list[float] = []
    aim, phase, _ = held(world, lambda: bool(struck.append(world.now)))
    world.later(1.0, aim.entered, phase)
    world.run(START_S + 2 * WAITS_S)
    assert struck == [START_S + 1.0, START_S + WAITS_S]


def test_other_kinds_and_worlds_without_phases_wait_for_nothing(world: World) -> None:
    assert not held(world, lambda: True, "kill")[2]
    assert held(world, lambda: True, "kill", aimed=True)[2]
    assert not Aim(cast(Any, SimpleNamespace(world=world, prefix=""))).hold(
        Fault(0, 1.0, "flip-vote", 7), lambda: True
    )
