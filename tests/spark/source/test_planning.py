"""Which offsets are read, and how ranges are cut into tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.errors import ConfigError, DataLoss, Unavailable, UnknownTopic
from escrowmq.spark_integration.source.options import Use, parse_options
from escrowmq.spark_integration.source.planning import (
    OffsetRange,
    TopicPartition,
    initial_offsets,
    plan,
    present_partitions,
    select_partitions,
    split,
)
from tests.support.offset_table import OffsetTable

LOG = OffsetTable({"a": [(0, 10), (5, 5)], "b": [(3, 20)], "other": [(0, 1)]})


def planned(**options: str) -> list[OffsetRange]:
    return plan(parse_options(options, default_address="127.0.0.1:6379"), LOG)


def test_everything_committed_is_read_and_empty_partitions_cost_no_task() -> None:
    assert planned(subscribe="b,a") == [OffsetRange("a", 0, 0, 10), OffsetRange("b", 0, 3, 20)]


def test_a_pattern_matches_whole_names() -> None:
    assert planned(subscribePattern="[ab]") == planned(subscribe="a,b")
    assert planned(subscribePattern="oth") == []


def test_assigned_partitions_only() -> None:
    assert planned(assign='{"a": [0]}') == [OffsetRange("a", 0, 0, 10)]


def test_explicit_offsets_are_inclusive_then_exclusive() -> None:
    found = planned(assign='{"a": [0]}', startingOffsets='{"a": {"0": 2}}', endingOffsets='{"a": {"0": 7}}')
    assert found == [OffsetRange("a", 0, 2, 7)]


def test_timestamps_mean_the_first_message_then_or_later() -> None:
    assert planned(subscribe="b", startingTimestamp="4500", endingTimestamp="9000") == [
        OffsetRange("b", 0, 5, 9)
    ]
    assert planned(subscribe="b", startingTimestamp="99000000") == []


def test_times_by_partition() -> None:
    found = planned(
        subscribe="a,b",
        startingOffsetsByTimestamp='{"a": {"0": 2000, "1": 0}, "b": {"0": 7000}}',
        endingOffsetsByTimestamp='{"a": {"0": 4000, "1": 0}, "b": {"0": 99000}}',
    )
    assert found == [OffsetRange("a", 0, 2, 4), OffsetRange("b", 0, 7, 20)]


def test_a_time_to_come_means_the_end_or_an_error() -> None:
    moment = {"subscribe": "b", "startingTimestamp": "99000000"}
    with pytest.raises(ConfigError, match=r"startingTimestamp.*b/0 has no message of 99000000 ms"):
        planned(**moment, startingOffsetsByTimestampStrategy="error")
    assert initial(**moment) == {("b", 0): 20}


def initial(**options: str) -> dict[TopicPartition, int]:
    return initial_offsets(parse_options(options, Use.STREAM, default_address="127.0.0.1:6379"), LOG)


def test_where_a_stream_starts() -> None:
    assert initial(subscribe="a,b") == {("a", 0): 10, ("a", 1): 5, ("b", 0): 20}
    assert initial(subscribe="a,b", startingOffsets="earliest") == {("a", 0): 0, ("a", 1): 5, ("b", 0): 3}
    assert initial(subscribe="a", startingOffsets='{"a": {"0": 7, "1": -1}}') == {("a", 0): 7, ("a", 1): 5}
    assert initial(subscribe="b", startingTimestamp="4500") == {("b", 0): 5}
    assert initial(subscribePattern="no.*") == {}
    with pytest.raises(DataLoss):
        initial(subscribe="b", startingOffsets='{"b": {"0": 1}}')
    assert initial(subscribe="b", startingOffsets='{"b": {"0": 1}}', failOnDataLoss="false") == {("b", 0): 3}
    with pytest.raises(DataLoss, match=r"b/0: ends at offset 20, before 21.*failOnDataLoss"):
        initial(subscribe="b", startingOffsets='{"b": {"0": 21}}')


def test_a_running_stream_takes_what_is_there() -> None:
    given = {"subscribe": "b,gone", "assign": '{"a": [1, 9], "gone": [0]}', "subscribePattern": "[ab]"}
    found = [
        present_partitions(
            parse_options({name: value}, Use.STREAM, default_address="h:1").subscription, LOG.topics()
        )
        for name, value in given.items()
    ]
    assert found == [[("b", 0)], [("a", 1)], [("a", 0), ("a", 1), ("b", 0)]]


def test_unknown_topics_and_partitions_are_errors() -> None:
    for options in ({"subscribe": "a,nope"}, {"assign": '{"nope": [0]}'}, {"assign": '{"a": [2]}'}):
        with pytest.raises(UnknownTopic):
            planned(**options)


def test_offsets_must_name_exactly_what_is_read() -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets.*missing a/1, not read b/0"):
        planned(subscribe="a", startingOffsets='{"a": {"0": 1}, "b": {"0": 1}}')


def test_offsets_outside_of_the_log_are_errors() -> None:
    with pytest.raises(DataLoss, match=r"b/0: ends at offset 20, before 21.*failOnDataLoss"):
        planned(subscribe="b", endingOffsets='{"b": {"0": 21}}')
    with pytest.raises(DataLoss, match=r"b/0: offsets 2 to 3 are gone.*failOnDataLoss"):
        planned(subscribe="b", startingOffsets='{"b": {"0": 2}}')
    assert planned(subscribe="b", startingOffsets='{"b": {"0": 2}}', failOnDataLoss="false") == [
        OffsetRange("b", 0, 3, 20)
    ]


@pytest.mark.parametrize(
    ("start", "end", "found", "said"),
    [
        (5, 25, (5, 20), ["ends at offset 20, before 25"]),
        (22, 25, None, ["ends at offset 20, before 22", "ends at offset 20, before 25"]),
        (1, 2, None, ["offsets 1 to 3 are gone"]),
        (1, 21, (3, 20), ["offsets 1 to 3 are gone", "ends at offset 20, before 21"]),
        (3, 20, (3, 20), []),
    ],
)
def test_offsets_behind_the_log_s_end_are_skipped_with_a_warning_if_one_wishes(
    caplog: pytest.LogCaptureFixture, start: int, end: int, found: tuple[int, int] | None, said: list[str]
) -> None:
    ranges = planned(
        subscribe="b",
        failOnDataLoss="false",
        startingOffsets=f'{{"b": {{"0": {start}}}}}',
        endingOffsets=f'{{"b": {{"0": {end}}}}}',
    )
    assert ranges == ([OffsetRange("b", 0, *found)] if found else [])
    assert [record.getMessage() for record in caplog.records] == [
        f"b/0: {what}: skipped, since failOnDataLoss is false" for what in said
    ]


def test_a_stream_that_is_to_start_behind_the_end_starts_at_the_end_if_one_wishes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"subscribe": "b", "startingOffsets": '{"b": {"0": 21}}', "failOnDataLoss": "false"}
    assert initial(**options) == {("b", 0): 20}
    assert "b/0: ends at offset 20, before 21" in caplog.text
    assert initial(**{**options, "startingOffsets": '{"b": {"0": 1}}'}) == {("b", 0): 3}
    assert "b/0: offsets 1 to 3 are gone" in caplog.text


def test_partitions_are_sorted_however_they_were_named() -> None:
    options = parse_options({"subscribe": "b,a"}, default_address="h:1")
    assert select_partitions(options.subscription, LOG.topics()) == [("a", 0), ("a", 1), ("b", 0)]


def test_a_pattern_leaves_out_topics_of_brokers_and_a_name_does_not() -> None:
    there = {"a": 1, "__mine": 1, "__dead.g": 1}
    pattern = parse_options({"subscribePattern": ".*"}, default_address="h:1").subscription
    assert select_partitions(pattern, there) == [("__mine", 0), ("a", 0)]
    named = parse_options({"subscribe": "__dead.g"}, default_address="h:1").subscription
    assert select_partitions(named, there) == [("__dead.g", 0)]


sizes = st.lists(st.integers(1, 500), min_size=1, max_size=6)
limits = st.one_of(st.none(), st.integers(1, 60))


@settings(deadline=None)  # a machine may be busy
@given(sizes, limits, limits)
def test_pieces_cover_every_record_once(
    lengths: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [OffsetRange("t", i, 10 * i, 10 * i + n) for i, n in enumerate(lengths)]
    pieces = split(ranges, min_partitions, max_records)
    covered = [(p.partition, offset) for p in pieces for offset in range(p.start, p.end)]
    assert covered == [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
    assert all(p.start < p.end for p in pieces)
    if max_records is not None:
        assert max(p.end - p.start for p in pieces) <= max_records
    if min_partitions is not None:
        assert len(pieces) >= min(min_partitions, sum(lengths))
    if min_partitions is None and max_records is None:
        assert pieces == ranges


@pytest.mark.parametrize(
    ("lengths", "min_partitions", "max_records", "expected"),
    [
        ([10, 10, 500], 3, None, [10, 10, 500]),  # there are enough
        ([10, 10, 500], 2, None, [10, 10, 500]),
        ([1, 1, 1, 97], 6, None, [1, 1, 1, 32, 32, 33]),  # small ones stay whole, and take their share along
        ([4], 3, None, [1, 1, 2]),
        ([40, 10], 5, None, [10, 10, 10, 10, 10]),
        ([10, 10, 10], 4, None, [10, 10, 5, 5]),  # Kafka's source rounds this to 3
        ([2, 1], 10, None, [1, 1, 1]),
        ([100, 10], 4, 40, [33, 33, 34, 10]),  # pieces count, not partitions
        ([100, 10], 5, 60, [25, 25, 25, 25, 10]),
    ],
)
def test_ranges_are_cut_only_as_far_as_there_are_too_few(
    lengths: list[int], min_partitions: int, max_records: int | None, expected: list[int]
) -> None:
    ranges = [OffsetRange("t", i, 100, 100 + n) for i, n in enumerate(lengths)]
    pieces = split(ranges, min_partitions, max_records)
    found = [piece.end - piece.start for piece in pieces]
    assert sorted(found) == sorted(expected)
    assert [p.partition for p in pieces] == sorted(p.partition for p in pieces)


@settings(deadline=None)
@given(sizes, st.integers(1, 60))
def test_tasks_are_about_as_many_as_wanted_and_of_about_one_size(lengths: list[int], wanted: int) -> None:
    ranges = [OffsetRange("t", i, 0, n) for i, n in enumerate(lengths)]
    pieces = split(ranges, wanted, None)
    if len(ranges) >= wanted:
        assert pieces == ranges
        return
    assert min(wanted, sum(lengths)) <= len(pieces) <= wanted + len(ranges) // 2
    longest = max(p.end - p.start for p in pieces)
    assert longest <= -(-3 * sum(lengths) // wanted) + 1


def test_a_batch_ends_at_a_cut_and_a_stream_begins_at_one() -> None:
    log = OffsetTable({"a": [(0, 10), (5, 9)]}, cut={("a", 0): 8, ("a", 1): 5})
    options = {"subscribe": "a", "isolation": "cut"}
    batch = parse_options(options, default_address="127.0.0.1:6379")
    assert plan(batch, log) == [OffsetRange("a", 0, 0, 8)]
    stream = parse_options(options, Use.STREAM, default_address="127.0.0.1:6379")
    assert initial_offsets(stream, log) == {("a", 0): 8, ("a", 1): 5}
    assert log.cuts == [["a"], ["a"]]


def test_a_partition_that_is_new_before_the_cut_is_not_left_out() -> None:
    class Growing(OffsetTable):
        def cut(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
            self.table = {"a": [(0, 10), (0, 1)]}
            return {("a", 0): 10, ("a", 1): 1}

    options = {"subscribe": "a", "isolation": "cut"}
    log = Growing({"a": [(0, 10)]})
    with pytest.raises(Unavailable, match="read again"):
        plan(parse_options(options, default_address="127.0.0.1:6379"), log)
    assert len(plan(parse_options(options, default_address="127.0.0.1:6379"), log)) == 2
