"""Micro-batches: every offset in one of them, losses by name, shares of a limit, the patience for enough."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.errors import ConfigError, DataLoss
from escrowmq.spark_integration.source.planning import OffsetRange
from escrowmq.spark_integration.source.stream_planning import (
    BatchDelay,
    Bounds,
    advance,
    batch,
    from_json,
    lags,
    losses,
    require,
    share_out,
    to_json,
)

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
HEADS = {A0: Bounds(0, 10), A1: Bounds(5, 9), B0: Bounds(0, 4)}


def test_offsets_are_written_as_kafka_s_source_writes_them() -> None:
    assert to_json({B0: 3, A1: 2, A0: 1}) == {"a": {"0": 1, "1": 2}, "b": {"0": 3}}
    first = to_json({A0: 5}, {A0: 2})
    assert from_json(json.loads(json.dumps(first))) == ({A0: 5}, {A0: 2})
    assert from_json({"a": {"0": 1}}) == ({A0: 1}, None)
    for other in ({"a": 5}, {"a": {"x": 5}}, {"a": {"0": None}}):
        with pytest.raises(ConfigError, match="checkpoint"):
            from_json(other)


def test_a_batch_reads_what_lies_between() -> None:
    start, end = {A0: 4, A1: 7, B0: 4}, {A0: 10, A1: 9, B0: 4}
    assert advance(start, HEADS, None) == end
    found = batch(start, end, HEADS)
    assert found.ranges == [OffsetRange("a", 0, 4, 10), OffsetRange("a", 1, 7, 9)] and not found.missing
    assert losses(start, HEADS) == []


def test_new_partitions_start_with_their_first_message() -> None:
    start = {A0: 10, A1: 9}
    assert lags(start, HEADS) == {A0: 0, A1: 0, B0: 4}
    assert batch(start, advance(start, HEADS, None), HEADS).ranges == [OffsetRange("b", 0, 0, 4)]
    trimmed = {**HEADS, B0: Bounds(2, 4)}
    assert losses(start, trimmed) == ["b/0: new, and starts at offset 2 instead of 0"]


def test_retention_that_overtakes_is_told_and_only_the_rest_is_read() -> None:
    start, end = {A1: 2}, {A1: 9}
    heads = {A1: Bounds(5, 9)}
    assert losses(start, heads) == ["a/1: offsets 2 to 5 are gone"]
    found = batch(start, end, heads)
    assert found.ranges == [OffsetRange("a", 1, 5, 9)] and found.missing == ["a/1: offsets 2 to 5 are gone"]
    assert batch({A1: 2}, {A1: 4}, heads).ranges == []
    with pytest.raises(DataLoss, match=r"a/1: offsets 2 to 5 are gone.*failOnDataLoss"):
        require(found.missing, True)
    assert require(found.missing, False) == found.missing


def test_a_topic_that_was_created_anew_is_read_from_its_start() -> None:
    start, heads = {A0: 50}, {A0: Bounds(0, 10)}
    assert "deleted and created again" in losses(start, heads)[0]
    assert lags(start, heads) == {A0: 10}
    end = advance(start, heads, {A0: 4})
    assert end == {A0: 4}
    found = batch(start, end, heads)
    assert found.ranges == [OffsetRange("a", 0, 0, 4)] and "created again" in found.missing[0]


def test_what_is_gone_is_told_once_and_then_forgotten() -> None:
    start, heads = {A0: 10, B0: 4}, {A0: Bounds(0, 10)}
    assert losses(start, heads) == ["b/0: deleted, or no longer subscribed"]
    end = advance(start, heads, None)
    assert end == {A0: 10} and losses(end, heads) == []
    assert batch(start, end, heads).missing == ["b/0: deleted, or no longer subscribed"]


@settings(deadline=None)
@given(st.data())
def test_batches_of_any_size_cover_every_offset_once(data: st.DataObject) -> None:
    heads = {("t", p): Bounds(0, data.draw(st.integers(0, 60))) for p in range(3)}
    offsets = {which: data.draw(st.integers(0, head.end)) for which, head in heads.items()}
    expected = {(which, o) for which, head in heads.items() for o in range(offsets[which], head.end)}
    seen: list[tuple[tuple[str, int], int]] = []
    for turn in range(25):
        if data.draw(st.booleans()):
            grown = ("t", data.draw(st.integers(0, 3)))
            before = heads.get(grown, Bounds(0, 0))
            heads[grown] = Bounds(0, before.end + 2)
            expected |= {(grown, before.end), (grown, before.end + 1)}
        shares = share_out(lags(offsets, heads), data.draw(st.integers(1, 20)), turn)
        end = advance(offsets, heads, shares)
        found = batch(offsets, end, heads)
        assert not found.missing
        seen += [((r.topic, r.partition), o) for r in found.ranges for o in range(r.start, r.end)]
        offsets = dict(end)
        if len(seen) == len(expected):
            break
    assert sorted(seen) == sorted(expected & set(seen)) and len(seen) == len(set(seen))
    final = advance(offsets, heads, None)
    rest = [
        ((r.topic, r.partition), o)
        for r in batch(offsets, final, heads).ranges
        for o in range(r.start, r.end)
    ]
    assert sorted([*seen, *rest]) == sorted(expected)


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
