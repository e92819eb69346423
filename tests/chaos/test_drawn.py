"""A run reports what it leaves out, and why; a run of ``make chaos`` leaves out nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.drawn import GROUP_NAMES, absent, planned, possible
from tests.chaos.kinds import KINDS, Kind
from tests.chaos.plan import GROUPS, ROUND_TRIALS, Round, rounds
from tests.chaos.running import NothingPossible, Run, RunOptions
from tests.support.faults.absence import lines

ALL = tuple(Kind)
MACHINES = {kind.value for kind in Kind if KINDS[kind].machines}
NO_ROOT = "network namespaces need root"


class Told:
    """Keeps what is reported before the first round."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def left_out(self, reasons: dict[str, str]) -> None:
        self.reasons = dict(reasons)

    def round_begins(self, plan: Round) -> None:
        raise KeyboardInterrupt

    def told(self, plan: Round, event: dict[str, Any]) -> None: ...
    def failed(self, plan: Round, directory: Path, problems: list[str], replay: str) -> None: ...


@pytest.mark.parametrize("seed", range(1, 20))
def test_two_rounds_of_any_seed_have_every_kind_and_two_numbers_of_groups(seed: int) -> None:
    plans = rounds(seed, 2 * ROUND_TRIALS, ROUND_TRIALS, ALL)
    assert [plan.machines for plan in plans] == [False, True]
    kinds, groups = planned(plans)
    assert absent(kinds, (), ALL, None, 2 * ROUND_TRIALS) == {} and len(groups) == 2


def test_what_was_not_drawn_is_told_from_what_is_not_possible() -> None:
    reasons = absent({"leader-kill"}, {2, 3}, ALL, NO_ROOT, 10)
    names = {GROUP_NAMES[2], GROUP_NAMES[3]}
    assert set(reasons) == {kind.value for kind in Kind} - {"leader-kill"} | names
    assert {what for what, why in reasons.items() if NO_ROOT in why} == MACHINES
    assert "not drawn in 10 trials" in reasons["follower-kill"] and "10 trials" in reasons[GROUP_NAMES[3]]
    assert len(lines(reasons)) == 3
    assert absent({"leader-kill"}, (), [Kind.LEADER_KILL], NO_ROOT, 10) == {}, "nobody asked for more"


def test_without_machines_rounds_are_dealt_from_the_other_kinds_and_none_is_lost() -> None:
    assert set(possible(ALL, None)) == set(ALL)
    ordinary = possible(ALL, NO_ROOT)
    assert {kind.value for kind in ordinary} == {kind.value for kind in Kind} - MACHINES
    watcher = Told()
    run = Run(RunOptions(1, 2 * ROUND_TRIALS, ROUND_TRIALS, ALL), watcher, NO_ROOT)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    plans = run.options.plans()
    assert sum(len(plan.faults) for plan in plans) == 2 * ROUND_TRIALS and not any(
        plan.machines for plan in plans
    )
    third = GROUP_NAMES[(set(GROUPS) - {plan.groups for plan in plans}).pop()]
    assert set(watcher.reasons) == MACHINES | {third}, "said before the first round begins"
    assert set(run.results.left_out) > MACHINES, "and after the last, with what an early end left out"


def test_a_run_of_which_nothing_is_possible_does_not_pass() -> None:
    run = Run(RunOptions(1, 5, 5, (Kind.LEADER_CUT,)), Told(), NO_ROOT)
    with pytest.raises(NothingPossible, match=NO_ROOT):
        run.run()
