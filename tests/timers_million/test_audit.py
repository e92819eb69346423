"""The audit finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.timers_million.audit import Plan, Sent, judge

PLAN = Plan(begin_ms=1_000, span_ms=100)
SENT = Sent(batch=2, begun=[0, 2, 4], acknowledged={0, 2})
RIGHT = [(number, PLAN.due_ms(number)) for number in range(4)]


def test_all_that_was_acknowledged_and_perhaps_more_is_right() -> None:
    assert judge(SENT, PLAN, RIGHT) == []
    assert judge(SENT, PLAN, [*RIGHT, (4, 2_000), (5, 2_000)]) == []


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (RIGHT[1:], "lost: 1 messages: [0]"),
        ([*RIGHT, (3, 5_000)], "twice: 1 messages: [3]"),
        ([*RIGHT, (4, 2_000), (4, 2_000)], "twice: 1 messages: [4]"),
        ([(0, 999), *RIGHT[1:]], "early: 1 messages: [0]"),
        ([*RIGHT, (6, 2_000)], "never sent: 1 messages: [6]"),
    ],
)
def test_each_wrong_is_named(read: list[tuple[int, int]], problem: str) -> None:
    assert judge(SENT, PLAN, read) == [problem]
