"""Members change in simulated groups, together with every other fault; old seeds keep their plans."""

from __future__ import annotations

import pytest

from tests.controls.ghost_faults import ghosts_amid_changes
from tests.controls.member_faults import many_changes, without_looking_who_stays
from tests.sim.faults.plan import CHANGE, WEIGHTS, draw_faults
from tests.sim.group.members import LATE_S
from tests.sim.group.simulation import Plan, Simulation
from tests.sim.running.schedules import run_seed


@pytest.mark.parametrize("first", [0, 1000])
def test_groups_change_their_members_under_every_other_fault(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    many_changes(monkeypatch)
    done = refused = 0
    for seed in range(first, first + 8):
        simulation = Simulation(seed, Plan.of(seed))
        simulation.run()
        assert not simulation.operators.under_way
        done += sum(change.steps for change in simulation.operators.done)
        refused += sum(change.refused for change in simulation.operators.done)
    assert done > 24, "the fault misses"
    assert refused > 10, "nobody asks for what is not allowed"


def test_operators_who_act_on_an_old_look_change_members_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many_changes(monkeypatch)
    monkeypatch.setitem(LATE_S, "operators", (0.3, 1.0))
    done = refused = 0
    for seed in range(3):
        simulation = Simulation(seed, Plan.of(seed), chaos_s=6.0)
        simulation.run()
        assert not simulation.operators.under_way
        done += sum(change.steps for change in simulation.operators.done)
        refused += sum(change.refused for change in simulation.operators.done)
    assert done > 6, "the fault misses"
    assert refused > 3, "no look is too old"


@pytest.mark.parametrize("seed", [75, 242, 356])
def test_a_voter_without_others_commits_only_what_its_disk_has(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Otherwise learners apply entries that it reports as committed, and that are lost when it dies."""
    many_changes(monkeypatch)
    without_looking_who_stays(monkeypatch)
    _, broken = run_seed(seed, chaos_s=6.0)
    assert broken is None, broken


def test_no_voter_goes_while_an_empty_one_would_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the group is stuck for good, with all its entries on two disks. A control uses seed 27."""
    ghosts_amid_changes(monkeypatch)
    _, broken = run_seed(40, chaos_s=8.0)
    assert broken is None, broken


def test_an_entry_is_judged_by_those_who_counted_when_it_was_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A voter is removed between the commit of an entry and its acknowledgement."""
    many_changes(monkeypatch)
    without_looking_who_stays(monkeypatch)
    for kind in ("kill", "power-cut"):
        monkeypatch.setitem(WEIGHTS, kind, 60)
    _, broken = run_seed(1001, chaos_s=6.0)
    assert broken is None, broken


def test_changes_are_drawn_beside_what_a_seed_always_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        before = draw_faults(seed, 10.0)
        with monkeypatch.context() as patch:
            many_changes(patch)
            drawn = draw_faults(seed, 10.0)
        assert [fault for fault in drawn if fault.kind != CHANGE] == before
        assert len(drawn) - len(before) in (4, 6)
