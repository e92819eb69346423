"""Filters that shorten a plan, and what is left for Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.spark_integration.source.options import parse_options
from escrowmq.spark_integration.source.planning import plan, push
from tests.support.offset_table import OffsetTable

f = pytest.importorskip("pyspark.sql.datasource")
LOG = OffsetTable({"a": [(0, 10), (0, 10)], "b": [(3, 20)]})


def ranges(*filters: Any) -> list[tuple[str, int, int, int]]:
    only, _ = push(filters)
    options = parse_options({"subscribe": "a,b"}, default_address="h:1")
    return [(r.topic, r.partition, r.start, r.end) for r in plan(options, LOG, only)]


def at(ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def test_partitions_and_topics_that_cannot_match_are_not_planned() -> None:
    assert ranges(f.EqualTo(("topic",), "a"), f.EqualTo(("partition",), 1)) == [("a", 1, 0, 10)]
    assert ranges(f.Not(f.In(("topic",), ("a", "x")))) == [("b", 0, 3, 20)]
    assert ranges(f.GreaterThan(("partition",), 0)) == [("a", 1, 0, 10)]
    assert ranges(f.LessThanOrEqual(("partition",), -1)) == []


def test_offsets_shorten_ranges() -> None:
    assert ranges(f.GreaterThanOrEqual(("offset",), 8), f.LessThan(("offset",), 12)) == [
        ("a", 0, 8, 10),
        ("a", 1, 8, 10),
        ("b", 0, 8, 12),
    ]
    assert ranges(f.EqualTo(("offset",), 15)) == [("b", 0, 15, 16)]


def test_times_become_offsets_and_stay_with_spark() -> None:
    later = f.GreaterThan(("timestamp",), at(7500))
    assert ranges(later, f.LessThanOrEqual(("timestamp",), at(9000))) == [
        ("a", 0, 8, 10),  # the message of 9 s is in
        ("a", 1, 8, 10),
        ("b", 0, 8, 10),
    ]
    assert push([later])[1] == [later]
    naive = f.GreaterThan(("timestamp",), datetime(2024, 1, 1))
    assert ranges(naive) == ranges() and push([naive])[1] == [naive]


def test_what_is_not_understood_is_left_to_spark() -> None:
    left = [
        f.StringStartsWith(("topic",), "a"),
        f.EqualTo(("value",), b"x"),
        f.EqualTo(("headers", "key"), "x"),
        f.Not(f.GreaterThan(("offset",), 5)),
        f.IsNull(("key",)),
        f.EqualTo(("partition",), True),
        f.EqualNullSafe(("offset",), None),
        f.In(("offset",), (1, 7)),
    ]
    assert push(left)[1] == left
    assert push([f.IsNotNull(("offset",)), f.EqualTo(("offset",), 3)])[1] == []


comparisons: dict[str, Callable[[int, int], bool]] = {
    "EqualTo": lambda a, b: a == b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
}
columns: dict[str, Callable[[str, int, int], int]] = {
    "partition": lambda t, p, o: p,
    "offset": lambda t, p, o: o,
    "timestamp": lambda t, p, o: o * 1000,
}
one = st.tuples(st.sampled_from(sorted(columns)), st.sampled_from(sorted(comparisons)), st.integers(-2, 21))


@settings(deadline=None)
@given(st.lists(one, max_size=4))
def test_no_row_that_qualifies_is_left_out(chosen: list[tuple[str, str, int]]) -> None:
    filters, checks = [], []
    for column, comparison, number in chosen:
        value = at(number * 1000) if column == "timestamp" else number
        filters.append(getattr(f, comparison)((column,), value))
        bound = number * 1000 if column == "timestamp" else number
        checks.append((columns[column], comparisons[comparison], bound))
    only, left = push(filters)
    options = parse_options({"subscribe": "a,b"}, default_address="h:1")
    planned = {(r.topic, r.partition, o) for r in plan(options, LOG, only) for o in range(r.start, r.end)}
    everything = {
        (t, p, o) for t, ps in LOG.table.items() for p, (s, e) in enumerate(ps) for o in range(s, e)
    }
    wanted = {row for row in everything if all(test(of(*row), bound) for of, test, bound in checks)}
    assert wanted <= planned
    if not left:
        assert planned == wanted
