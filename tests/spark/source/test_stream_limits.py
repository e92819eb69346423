"""Shares of a limit, and the patience for enough."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.spark_integration.source.stream_limits import BatchDelay, share_out

sizes = st.dictionaries(st.integers(0, 50), st.integers(0, 10_000), max_size=12)


def test_shares_are_in_proportion() -> None:
    assert share_out({"a": 30, "b": 10, "c": 0}, 16) == {"a": 12, "b": 4, "c": 0}
    assert share_out({"a": 3, "b": 1}, 100) == {"a": 3, "b": 1}
    assert share_out({}, 5) == {}


def test_nobody_starves_beside_the_large() -> None:
    assert share_out({"large": 1_000_000, "small": 1}, 10) == {"large": 9, "small": 1}
    lags = {"a": 1000, "b": 1000, "c": 1000}
    served = {key for turn in range(3) for key, share in share_out(lags, 1, turn).items() if share}
    assert served == set(lags)


@settings(deadline=None)
@given(sizes, st.integers(1, 30_000), st.integers(0, 1000))
def test_a_limit_is_used_up_and_never_exceeded(lags: dict[int, int], limit: int, turn: int) -> None:
    shares = share_out(lags, limit, turn)
    assert shares.keys() == lags.keys()
    assert all(0 <= share <= lags[key] for key, share in shares.items())
    assert sum(shares.values()) == min(limit, sum(lags.values()))
    waiting = [key for key, lag in lags.items() if lag]
    if limit >= len(waiting):
        assert all(shares[key] > 0 for key in waiting)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=8), st.integers(8, 30_000))
def test_the_larger_lag_never_gets_less(lags: list[int], limit: int) -> None:
    shares = share_out(dict(enumerate(lags)), limit)
    ordered = [shares[i] for i, _ in sorted(enumerate(lags), key=lambda item: item[1])]
    assert all(b >= a - 1 for a, b in pairwise(ordered))


def test_too_few_wait_until_there_are_enough_or_it_takes_too_long() -> None:
    patience = BatchDelay(10, 60.0)
    assert not patience.waits(0, 0.0)  # the first batch of a run
    assert patience.waits(9, 59.0) and not patience.waits(10, 59.5)
    assert patience.waits(9, 119.0) and not patience.waits(9, 119.5)
    assert not BatchDelay(None, 60.0).waits(0, 1.0)
