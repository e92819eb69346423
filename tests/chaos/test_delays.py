"""The judge of delayed messages finds each of their anomalies."""

from __future__ import annotations

import json

import pytest

from tests.chaos.delays import CANCELLED, CANCELLING, SENDING, STORED, TOO_LATE, Scheduled, judge, written

SENT = {
    "stored": Scheduled(100, STORED),
    "unknown": Scheduled(100, SENDING),
    "cancelled": Scheduled(100, CANCELLED),
    "perhaps": Scheduled(100, CANCELLING),
    "late": Scheduled(100, TOO_LATE),
}
RIGHT = [("stored", 100), ("late", 105)]


def test_what_nobody_knows_may_come_or_not() -> None:
    assert judge(SENT, RIGHT) == []
    assert judge(SENT, [*RIGHT, ("unknown", 100), ("perhaps", 100)]) == []


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (RIGHT[1:], "schedule-lost"),
        (RIGHT[:1], "cancel-lied"),
        ([*RIGHT, ("stored", 200)], "schedule-duplicate"),
        ([*RIGHT, ("unknown", 99)], "early"),
        ([*RIGHT, ("cancelled", 100)], "cancelled-delivered"),
        ([*RIGHT, ("stranger", 100)], "never sent"),
    ],
)
def test_each_anomaly_is_found(read: list[tuple[str, int]], kind: str) -> None:
    (problem,) = judge(SENT, read)
    assert problem.startswith(f"{kind}: 1 messages")


def test_the_file_of_a_process_that_died_ends_anywhere() -> None:
    rows = [(SENDING, "a", 7), (SENDING, "b", 8), (STORED, "a", 0), (CANCELLING, "a", 0)]
    lines = [json.dumps(row) + "\n" for row in rows]
    assert written([*lines, '["cancel']) == {"a": Scheduled(7, CANCELLING), "b": Scheduled(8)}
