"""The plan of kill trials, and the count at their end: it must find what can go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.spark_trials.plan import DECK, Strike, Trial, long_trial, trials
from tests.spark_trials.running import epochs_of
from tests.spark_trials.target import Written, problems_of


def test_a_plan_depends_on_its_seed_alone() -> None:
    assert trials(7, 30) == trials(7, 40)[:30] != trials(8, 30)
    assert long_trial(7, 100, 10) == long_trial(7, 100, 10)


def test_as_many_trials_as_there_are_kinds_have_had_all_of_them() -> None:
    planned = trials(3, len(DECK))
    firsts = {(trial.strikes[0].victim, trial.strikes[0].step) for trial in planned}
    assert firsts == set(DECK)
    for trial in planned:
        assert len({strike.epoch for strike in trial.strikes}) == len(trial.strikes)
        assert all(0 <= strike.epoch < len(trial.rows) for strike in trial.strikes)


def test_running_totals_are_those_of_a_batch() -> None:
    trial = Trial(0, 0, 1, (8, 9), (), totals=True)
    found = epochs_of(trial)
    assert found["f000"] == ["0=2", "1=1", "2=1", "3=1", "4=1", "5=1", "6=1"]
    assert found["f001"] == ["0=4", "1=3", "2=2", "3=2", "4=2", "5=2", "6=2"]
    strike = Strike(0, *DECK[0], 1, 0.5)
    assert epochs_of(replace(trial, strikes=(strike,))) == found


EPOCHS = {"a": ["a/0", "a/1"], "b": ["b/0"]}
GOOD = [("a/0", "t0"), ("a/1", "t0"), ("b/0", "t1")]


def written(rows: list[tuple[str, str | None]]) -> list[Written]:
    return [Written(None, value, tx_id, 0, i) for i, (value, tx_id) in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (GOOD, []),
        (GOOD[:2], ["1 rows lost, for instance ['b/0']"]),
        ([*GOOD, ("b/0", "t1")], ["1 rows more than once, for instance ['b/0']"]),
        ([*GOOD, ("x", "t2")], ["1 rows never sent, for instance ['x']"]),
        ([("a/0", "t0"), ("a/1", "t2"), ("b/0", "t1")], ["a is spread over ['t0', 't2']"]),
        ([("a/0", "t0"), ("a/1", "t0"), ("b/0", "t0")], ["'t0' holds rows of ['a', 'b']"]),
        ([("a/0", "t0"), ("a/1", "t0"), ("b/0", None)], ["None holds rows of ['b']"]),
    ],
)
def test_the_count_finds_what_is_lost_doubled_torn_or_foreign(
    rows: list[tuple[str, str | None]], said: list[str]
) -> None:
    assert problems_of(written(rows), EPOCHS) == said
