"""Label values have a bound that is said aloud, and totals over processes never fall."""

from __future__ import annotations

import logging

import pytest

from escrowmq.cluster.exporter.series import FORGET_AFTER_S, OTHER, Names, Totals


def test_further_names_share_a_slot_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    names = Names("app", 2)
    with caplog.at_level(logging.WARNING):
        assert [names.label_of(name, 0.0) for name in "abcad"] == ["a", "b", OTHER, "a", OTHER]
    assert names.limited
    (said,) = caplog.messages
    assert said == "there are more than 2 values of label 'app'; the others are counted as 'other'"


def test_a_slot_is_free_again_when_nothing_was_heard_of_it_for_long() -> None:
    names = Names("app", 2)
    for name in "abc":
        names.label_of(name, 0.0)
    names.label_of("b", FORGET_AFTER_S - 1)
    assert names.tidy(FORGET_AFTER_S) == ["a"]
    assert names.label_of("c", FORGET_AFTER_S) == "c"
    names.tidy(FORGET_AFTER_S)
    assert not names.limited


def test_a_new_leader_counts_from_where_it_stands() -> None:
    totals = Totals()
    totals.feed("t", "group 0", "pid 1", 500)
    totals.feed("t", "group 0", "pid 1", 700)
    totals.feed("t", "group 0", "pid 2", 90)  # another process, which has counted since its own start
    totals.feed("t", "group 0", "pid 2", 100)
    totals.feed("t", "group 0", "pid 2", 50)  # cannot be; a total never falls
    assert totals.values == {"t": 210}


def test_what_began_at_nothing_is_news_as_a_whole() -> None:
    totals = Totals()
    totals.feed("t", "replica 0", "pid 1", 2, at_first=True)
    totals.feed("t", "replica 0", "pid 9", 1, at_first=True)
    assert totals.values == {"t": 3}
    totals.keep(set())
    assert totals.sources == set()
    assert totals.values == {"t": 3}
