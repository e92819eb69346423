"""A campaign aims schedules at what no schedule has reached yet, and each can be run again by its command."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.sim.faults.plan import AIMABLE, AIMED_NUMBERS, GROUP_KINDS, ONE_GROUP_KINDS
from tests.sim.running import coverage
from tests.sim.running.runner import Options, Schedule, schedules
from tests.sim.running.schedules import chosen_faults, simulate
from tests.sim.running.steering import FIRST, Steering
from tests.sim.running.totals import Totals
from tests.support.faults.tables import Cells, Grid


def filled(grid: Grid, *without: tuple[str, str]) -> Cells:
    return Cells(dict.fromkeys(set(grid.empty()) - set(without), 1))


def totals(*without: tuple[str, str]) -> Totals:
    """Totals in which all cells are reached but these."""
    one, across = coverage.grid(Cells()), coverage.across_grid(Cells())
    cells, several = filled(one, *without), filled(across, *without)
    return Totals(schedules=FIRST, cells=cells, across=several)


def drawn(sums: Totals, groups: str, count: int = 30) -> list[Schedule]:
    return list(islice(Steering(sums, groups, 7).among(schedules(range(7, 90), None, groups)), count))


def test_every_third_schedule_is_aimed_at_a_kind_that_misses_a_phase() -> None:
    phase = coverage.Phase.ROLLED_BACK.value
    found = drawn(totals((phase, "at-cut"), (phase, "flip-vote")), "mixed")
    aimed = [each for each in found if each.aim]
    assert {number % 3 for number, each in enumerate(found) if each.aim} == {2} and len(aimed) == 10
    assert {(each.groups, each.aim) for each in aimed} == {
        (groups, kind) for groups in (1, 3) for kind in ("at-cut", "flip-vote")
    }
    assert [each.seed for each in aimed if each.groups == 3] == [7, 8, 9, 10, 11]
    assert all(each.aim == "" or each.workload == "broker" for each in found)


def test_a_kind_that_stays_out_of_reach_does_not_keep_others_from_their_turn() -> None:
    aimed = [each.aim for each in drawn(Totals(schedules=FIRST), "3", 3 * len(AIMABLE)) if each.aim]
    kinds = set(GROUP_KINDS) - {"late-copy"}
    assert set(aimed) == kinds and len(aimed) >= len(kinds)
    assert aimed[0] == "flip-vote", "the rarest is the first"


@pytest.mark.parametrize(("groups", "worlds"), [("1", {1}), ("2", {2}), ("several", {3}), ("mixed", {1, 3})])
def test_an_aimed_schedule_lies_in_a_world_that_was_asked_for(groups: str, worlds: set[int]) -> None:
    assert {each.groups for each in drawn(Totals(schedules=FIRST), groups) if each.aim} == worlds


def test_where_all_is_reached_nothing_is_aimed() -> None:
    assert not [each for each in drawn(totals(), "mixed") if each.aim]
    late = (coverage.Phase.LOCAL.value, "late-copy")  # part of the wire: no plan brings it about
    assert not [each for each in drawn(totals(late), "mixed") if each.aim]


def test_a_new_campaign_first_runs_usual_schedules() -> None:
    assert not [each for each in drawn(Totals(schedules=FIRST - 1), "mixed") if each.aim]


def test_every_kind_can_be_aimed_at_in_its_world() -> None:
    for groups, kinds in ((1, ONE_GROUP_KINDS), (3, GROUP_KINDS)):
        for kind in set(kinds) & set(AIMABLE):
            usual, aimed = (
                chosen_faults(5, 10.0, None, None, groups),
                chosen_faults(5, 10.0, None, None, groups, kind),
            )
            added = aimed[len(usual) :]
            assert aimed[: len(usual)] == usual
            assert {fault.kind for fault in added if fault.aimed} == {kind}
            assert [fault.number for fault in added] == [AIMED_NUMBERS + n for n in range(len(added))]
            shorter = chosen_faults(5, 4.0, None, None, groups, kind)
            assert set(shorter) <= set(aimed)


def test_the_printed_command_names_the_aim() -> None:
    assert Options().command(3, "broker", 3, "at-cut").endswith("--groups 3 --aim at-cut")
    assert "--aim" not in Options().command(3, "broker", 3)


def test_aimed_faults_strike_and_a_run_again_is_the_same() -> None:
    """Topics are created again by clients and not by a plan: an aimed plan makes them begin at once."""
    settings = Options(chaos_s=5.0).keywords("broker", 1, "recreated-topic")
    log, figures, broken = simulate(5, **settings)
    assert broken is None
    assert len([kind for _, kind, _ in log if kind == "recreated-topic"]) >= 2
    assert simulate(5, **settings)[:2] == (log, figures)
