"""Percentiles of the last minutes in a fixed number of buckets."""

from __future__ import annotations

import random

import pytest

from escrowmq.actors.client.statistics import BOUNDS_S, PERIOD_S, RecentLatencies


@pytest.mark.parametrize("seed", range(5))
def test_a_percentile_is_told_to_within_a_quarter(seed):
    rng = random.Random(seed)
    values = sorted(rng.lognormvariate(-5.0, 1.5) for _ in range(5000))
    recent = RecentLatencies()
    for value in rng.sample(values, len(values)):
        recent.observe(value, 10.0)
    for share, told in zip((0.5, 0.99), recent.quantiles(10.0, 0.5, 0.99), strict=True):
        exact = values[int(share * len(values))]
        assert exact / 1.26 <= told <= exact * 1.26, (share, exact, told)


def test_they_are_of_the_last_one_to_two_periods():
    recent = RecentLatencies()
    assert recent.quantiles(0.0, 0.5) == [None]
    recent.observe(1.0, 0.0)
    recent.observe(0.001, PERIOD_S)
    (half, most) = recent.quantiles(PERIOD_S, 0.5, 0.99)
    assert half < 0.002 and most > 0.8, "the period before counts still"
    recent.observe(0.001, 2 * PERIOD_S)
    assert recent.quantiles(2 * PERIOD_S, 0.99)[0] < 0.002
    assert recent.quantiles(3 * PERIOD_S - 1, 0.99)[0] < 0.002
    assert recent.quantiles(4 * PERIOD_S, 0.99) == [None]
    recent.observe(5.0, 9 * PERIOD_S)
    assert recent.quantiles(9 * PERIOD_S, 0.5)[0] > 4.0, "after a long silence nothing of before is left"


def test_what_is_beyond_the_buckets_counts_in_the_last():
    recent = RecentLatencies()
    recent.observe(1e6, 0.0)
    assert recent.quantiles(0.0, 0.5) == [BOUNDS_S[-1]]
