"""What the benchmark with many open transactions sends."""

from __future__ import annotations

from benchmarks.open_transactions import request_of
from tests.support.forgetting_group import TOPIC, ForgettingGroup


def test_transactions_are_opened_by_a_group_that_has_begun_to_forget() -> None:
    """The rest of the benchmark settles millions before: its PREPAREs were refused as too old."""
    group = ForgettingGroup(groups=1)
    group.forget()
    assert group.opens(request_of("bench", TOPIC, ["a", "b", "c"], 60_000))
