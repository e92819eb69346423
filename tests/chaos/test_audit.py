"""Which transactions the brokers are asked about when a round has ended."""

from __future__ import annotations

from tests.chaos.audit import never_told
from tests.history.written import Written


def test_the_brokers_are_asked_for_what_was_prepared_and_of_which_nobody_was_told() -> None:
    history = Written().prepare("told", "a").commit("told").prepare("conflict", "b")
    history.rollback("conflict", told="COMMITTED").prepare("one-way", "c").commit("one-way", end="unknown")
    history.prepare("left", "d").prepare("refused", "e", end="fail").prepare("unheard", "f", end="unknown")
    history.prepare("died", "g").rollback("died", end="crash")
    assert never_told(history.recorder.events) == [("a", "one-way"), ("a", "left"), ("a", "died")]
