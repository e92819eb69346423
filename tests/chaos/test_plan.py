"""The plan is a function of the seed; every kind has its turn, and every parameter is within its bounds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from tests.chaos.faults import Faults, method_of
from tests.chaos.kinds import KINDS, LASTING, MEANWHILE, Kind, kind_of
from tests.chaos.plan import (
    GROUPS,
    MEANWHILE_SHARE,
    OVERLAP_SHARE,
    ROUND_TRIALS,
    cards,
    groups_of,
    only,
    plan_round,
    rounds,
)
from tests.support.faults.dealing import deal

ALL = tuple(Kind)
ORDINARY = [kind for kind in Kind if not KINDS[kind].machines]
MACHINES = [kind for kind in Kind if KINDS[kind].machines]


def test_the_same_seed_is_the_same_plan_and_another_seed_another() -> None:
    assert rounds(7, 100, ROUND_TRIALS, ALL) == rounds(7, 100, ROUND_TRIALS, ALL)
    assert rounds(7, 100, ROUND_TRIALS, ALL) != rounds(8, 100, ROUND_TRIALS, ALL)


def test_a_round_can_be_planned_without_the_others() -> None:
    planned = rounds(3, 130, ROUND_TRIALS, ALL)
    assert [len(plan.faults) for plan in planned] == [30, 30, 30, 30, 10]
    assert all(plan == plan_round(3, plan.number, len(plan.faults), ALL) for plan in planned)
    assert planned[4].faults == plan_round(3, 4, ROUND_TRIALS, ALL).faults[:10]


def test_every_kind_comes_once_before_any_comes_twice_and_as_often_as_its_cards_say() -> None:
    dealt = list(islice(deal(random.Random(1), cards(ORDINARY)), sum(KINDS[kind].cards for kind in ORDINARY)))
    assert set(dealt[: len(ORDINARY)]) == set(ORDINARY)
    assert Counter(dealt) == {kind: KINDS[kind].cards for kind in ORDINARY}


def test_rounds_on_machines_have_all_kinds_and_the_others_those_on_processes() -> None:
    planned = rounds(5, 12 * ROUND_TRIALS, ROUND_TRIALS, ALL)
    assert {plan.machines for plan in planned} == {True, False}
    for plan in planned:
        assert {fault.kind for fault in plan.faults} == set(ALL if plan.machines else ORDINARY)
    drawn = Counter(fault.kind for plan in planned for fault in plan.faults)
    assert drawn[Kind.LEADER_KILL] >= 20, "enough to speak of a p95"


def test_faults_on_processes_strike_while_cuts_and_full_disks_last() -> None:
    pairs = {
        (fault.kind, fault.meanwhile.kind)
        for seed in range(40)
        for plan in rounds(seed, 12 * ROUND_TRIALS, ROUND_TRIALS, ALL)
        for fault in plan.faults
        if fault.meanwhile is not None
    }
    assert pairs == {(first, second) for first in LASTING for second in MEANWHILE}
    assert {(Kind.LEADER_CUT, Kind.LEADER_KILL), (Kind.DISK_FULL, Kind.BROKERS_KILL)} < pairs
    lasting = [f for plan in rounds(11, 3000, ROUND_TRIALS, ALL) for f in plan.faults if f.kind in LASTING]
    doubled = [fault for fault in lasting if fault.meanwhile is not None]
    assert abs(len(doubled) / len(lasting) - MEANWHILE_SHARE) < 0.1
    for fault in doubled:
        assert fault.meanwhile is not None and fault.meanwhile.before_s < KINDS[fault.kind].seconds[0]
    alone = [f for plan in rounds(2, 60, 10, [Kind.LEADER_CUT]) for f in plan.faults]
    assert all(fault.meanwhile is None for fault in alone), "no kind that was not asked for"


def test_a_run_of_some_kinds_draws_only_those() -> None:
    for chosen in ([Kind.LEADER_CUT], [Kind.LEADER_KILL, Kind.DISK_FULL], ORDINARY, MACHINES):
        planned = rounds(2, 60, 10, chosen)
        assert {fault.kind for plan in planned for fault in plan.faults} == set(chosen)
    with pytest.raises(ValueError, match="no kinds"):
        rounds(1, 10, 5, ())


def test_parameters_are_within_what_is_said_of_the_kind() -> None:
    faults = [fault for plan in rounds(11, 600, ROUND_TRIALS, ALL) for fault in plan.faults]
    for fault in faults:
        low, high = KINDS[fault.kind].seconds
        assert low <= fault.seconds <= high
        assert (0.5 <= fault.delay_s <= 3.0) == (fault.kind is Kind.SLOW_LINKS)
    overlapping = sum(fault.overlaps for fault in faults) / len(faults)
    assert abs(overlapping - OVERLAP_SHARE) < 0.06


@pytest.mark.parametrize("seed", range(1, 20))
def test_rounds_have_one_two_and_three_groups_on_machines_and_without(seed: int) -> None:
    planned = rounds(seed, 12 * ROUND_TRIALS, ROUND_TRIALS, ALL)
    for groups in GROUPS:
        of_them = [plan for plan in planned if plan.groups == groups]
        assert len(of_them) == 4
        assert [plan.machines for plan in of_them].count(True) == 2
        slow = [plan for plan in of_them if plan.slow_database]
        assert {plan.machines for plan in slow} == {True, False}, "two instances with a slow database"
    assert {plan.groups for plan in rounds(seed, 12 * ROUND_TRIALS, ROUND_TRIALS, ALL, groups=2)} == {2}
    assert [replace(plan, groups=2) for plan in planned] == rounds(
        seed, 12 * ROUND_TRIALS, ROUND_TRIALS, ALL, groups=2
    )


def test_the_seed_says_how_many_groups_the_first_round_has() -> None:
    assert {groups_of(seed, 0) for seed in range(20)} == set(GROUPS)


def test_a_trial_can_be_repeated_alone() -> None:
    plan = plan_round(3, 1, ROUND_TRIALS, ALL)
    assert only(plan, None) is plan
    assert only(plan, 7) == replace(plan, faults=(plan.faults[7],))
    with pytest.raises(ValueError, match="0 to 29"):
        only(plan, 30)


def test_every_kind_can_be_named_and_inflicted() -> None:
    for kind in Kind:
        assert kind_of(kind.value) is kind and KINDS[kind].text
        assert callable(getattr(Faults, method_of(kind)))
    with pytest.raises(ValueError, match="leader-kill"):
        kind_of("leader-tickle")
