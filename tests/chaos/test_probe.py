"""The longest gap between acknowledgements while something goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

from tests.chaos.probe import longest_gap

SECOND = 10**9


def gaps(*values: float) -> Iterator[float]:
    return chain(values, repeat(0.01))


def test_it_is_the_longest_of_all_and_counts_what_began_before_the_end() -> None:
    for times, expected in (
        ((0.1, 0.9, 0.2), 0.9),
        ((0.9, 0.1, 0.2), 0.9),
        ((0.1, 0.2, 0.9), 0.9),  # struck just before the end
    ):
        row = gaps(*times)
        going_on = iter((True, True, False))
        assert longest_gap(lambda _, row=row: next(row), 0, lambda go=going_on: next(go)) == expected  # type: ignore[misc]


def test_each_gap_begins_where_the_one_before_ended_and_the_first_at_the_blow() -> None:
    begins: list[int] = []
    row, going_on = gaps(0.5, 0.25), iter((True, True, False))

    def acknowledged(last: int) -> float:
        begins.append(last)
        return next(row)

    longest_gap(acknowledged, 7 * SECOND, lambda: next(going_on))
    assert begins == [7 * SECOND, 7 * SECOND + SECOND // 2, 7 * SECOND + SECOND // 2 + SECOND // 4]


def test_what_is_over_at_once_has_the_gap_of_one_acknowledgement() -> None:
    assert longest_gap(lambda _: 0.03, 0, lambda: False) == 0.03
