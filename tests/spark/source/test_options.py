"""Options of the data source: what is accepted, and that every bad value names its option."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.decode.records import COLUMNS
from escrowmq.spark_integration.source.options import (
    OPTIONS,
    BatchLimits,
    BoundKind,
    SourceOptions,
    Use,
    parse_options,
)


def parse(use: Use = Use.BATCH, **options: str) -> SourceOptions:
    return parse_options(options, use, default_address="127.0.0.1:6379")


def test_defaults_read_everything_that_is_committed() -> None:
    options = parse(subscribe="orders")
    assert options.subscription.topics == ("orders",)
    assert (options.starting.kind, options.ending.kind) == (BoundKind.EARLIEST, BoundKind.LATEST)
    assert options.min_partitions is None and options.max_records_per_partition is None
    assert options.columns == tuple(name for name in COLUMNS if name != "headers")
    assert options.fail_on_data_loss is True and options.limits == BatchLimits() and not options.limits.any
    assert (options.value_format, options.value_schema, options.value_mode) == ("binary", None, "PERMISSIVE")
    assert (options.address, options.namespace) == ("127.0.0.1:6379", "escrowmq")


def test_names_are_case_insensitive_and_values_trimmed() -> None:
    options = parse(
        SUBSCRIBE=" a, b ,a", startingoffsets="Earliest", includeheaders="TRUE", minpartitions=" 7 "
    )
    assert options.subscription.topics == ("a", "b")
    assert options.columns == COLUMNS and options.min_partitions == 7


def test_connection_options_win_over_the_session_s() -> None:
    given = {"subscribe": "a", "escrowmq.address": "10.0.0.1:1234", "escrowmq.namespace": "shop"}
    options = parse_options(given, default_address="127.0.0.1:6379")
    assert (options.address, options.namespace) == ("10.0.0.1:1234", "shop")


def test_offsets_and_assignment_as_json() -> None:
    options = parse(
        assign='{"a": [1, 0, 1]}',
        startingOffsets='{"a": {"0": 23, "1": -2}}',
        endingOffsets='{"a": {"0": 50, "1": -1}}',
    )
    assert options.subscription.assigned == {"a": (0, 1)}
    assert options.starting.table == {"a": {0: 23, 1: -2}}
    assert options.ending.table == {"a": {0: 50, 1: -1}}


def test_timestamps() -> None:
    options = parse(subscribe="a", startingTimestamp="1000", endingTimestamp="2000")
    assert options.starting.kind is options.ending.kind is BoundKind.TIMESTAMP
    assert (options.starting.timestamp_ms, options.ending.timestamp_ms) == (1000, 2000)


def test_a_stream_starts_at_the_end_unless_told_otherwise_and_has_no_end() -> None:
    assert parse(Use.STREAM, subscribe="a").starting.kind is BoundKind.LATEST
    for word in ("earliest", "latest"):
        assert parse(Use.STREAM, subscribe="a", startingOffsets=word).starting.kind is BoundKind(word)
    table = parse(Use.STREAM, subscribe="a", startingOffsets='{"a": {"0": -1, "1": -2}}').starting.table
    assert table == {"a": {0: -1, 1: -2}}
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigError, match=f"{name}.*has no end"):
            parse(Use.STREAM, subscribe="a", **{name: "1"})


def test_what_only_one_of_both_may_mean_is_left_open_while_the_schema_is_asked_for() -> None:
    assert parse(Use.SCHEMA, subscribe="a", startingOffsets="latest").starting.kind is BoundKind.LATEST
    both = parse(Use.SCHEMA, subscribe="a", endingOffsets="latest", maxOffsetsPerTrigger="5")
    assert both.ending.kind is BoundKind.LATEST


def test_times_by_partition_and_what_becomes_of_times_to_come() -> None:
    options = parse(
        subscribe="a",
        startingOffsetsByTimestamp='{"a": {"0": 5}}',
        endingOffsetsByTimestamp='{"a": {"0": 9}}',
        startingOffsetsByTimestampStrategy="ERROR",
    )
    assert options.starting.kind is options.ending.kind is BoundKind.TIMESTAMPS
    assert options.starting.table == {"a": {0: 5}} and options.starting.strict
    assert options.ending.table == {"a": {0: 9}} and not options.ending.strict


def test_filters_are_pushed_only_where_a_batch_read_asks_for_it() -> None:
    assert not parse(subscribe="a").push_filters
    assert parse(subscribe="a", pushFilters="true").push_filters
    with pytest.raises(ConfigError, match=r"pushFilters.*batch"):
        parse(Use.STREAM, subscribe="a", pushFilters="true")


def test_limits_with_units() -> None:
    given = {"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "3", "maxBytesPerTrigger": "64m"}
    limits = parse(Use.STREAM, subscribe="a", maxTriggerDelay="90s", **given).limits
    assert limits == BatchLimits(9, 64 << 20, 3, 90.0)
    for text, seconds in {"250": 0.25, "15m": 900, "2 h": 7200, "500ms": 0.5, "1d": 86400}.items():
        assert parse(Use.STREAM, subscribe="a", maxTriggerDelay=text).limits.max_trigger_delay_s == seconds


def test_limits_of_micro_batches_are_refused_where_there_are_none() -> None:
    """A batch read took all there was, whatever they said."""
    limits = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
    for name in limits:
        with pytest.raises(ConfigError, match=f"{name}.*is for streaming queries"):
            parse(Use.BATCH, subscribe="a", **{name: "9"})
        parse(Use.SCHEMA, subscribe="a", **{name: "9"})


def test_columns_are_delivered_as_named() -> None:
    assert parse(subscribe="a", columns="Offset, value,HEADERS").columns == ("offset", "value", "headers")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*OPTIONS, "other"]), st.text(max_size=20)), st.sampled_from(Use))
def test_whatever_is_given_is_understood_or_refused_by_name(given: dict[str, str], use: Use) -> None:
    try:
        parse_options(given, use, default_address="127.0.0.1:6379")
    except ConfigError as error:
        assert any(name in str(error) for name in OPTIONS)


@pytest.mark.parametrize(
    ("named", "given"),
    [
        (
            "startingTimestamp",
            {"subscribe": "a", "startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"},
        ),
        ("startingOffsetsByTimestamp", {"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -2}}'}),
        ("startingOffsetsByTimestampStrategy", {"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}),
        ("maxOffsetsPerTrigger", {"subscribe": "a", "maxOffsetsPerTrigger": "0"}),
        ("maxBytesPerTrigger", {"subscribe": "a", "maxBytesPerTrigger": "lots"}),
        (
            "minOffsetsPerTrigger",
            {"subscribe": "a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        ),
        ("maxTriggerDelay", {"subscribe": "a", "maxTriggerDelay": "soon"}),
        ("columns", {"subscribe": "a", "columns": "value,price"}),
        ("columns", {"subscribe": "a", "columns": "value,VALUE"}),
        ("columns", {"subscribe": "a", "columns": ""}),
        ("valueFormat", {"subscribe": "a", "valueFormat": "avro"}),
        ("valueMode", {"subscribe": "a", "valueFormat": "json", "valueMode": "strict"}),
        ("valueSchema", {"subscribe": "a", "valueSchema": "id BIGINT"}),
        ("subscribe", {}),
        ("subscribe", {"subscribe": " , "}),
        ("subscribePattern", {"subscribePattern": "a("}),
        ("subscribePattern", {"subscribePattern": ""}),
        ("'subscribe' and 'assign'", {"subscribe": "a", "assign": '{"a": [0]}'}),
        ("assign", {"assign": "a"}),
        ("assign", {"assign": "[0]"}),
        ("assign", {"assign": "{}"}),
        ("assign", {"assign": '{"a": 0}'}),
        ("assign", {"assign": '{"a": [-1]}'}),
        ("assign", {"assign": '{"a": ["0"]}'}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": "first"}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": "latest"}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": "7"}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": '{"a": 7}'}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": '{"a": {"x": 7}}'}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": '{"a": {"0": -1}}'}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": '{"a": {"0": "7"}}'}),
        ("startingOffsets", {"subscribe": "a", "startingOffsets": '{"a": {"0": true}}'}),
        ("endingOffsets", {"subscribe": "a", "endingOffsets": "earliest"}),
        ("endingOffsets", {"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}),
        ("startingTimestamp", {"subscribe": "a", "startingTimestamp": "yesterday"}),
        ("endingTimestamp", {"subscribe": "a", "endingTimestamp": "-5"}),
        ("startingTimestamp", {"subscribe": "a", "startingTimestamp": "1", "startingOffsets": "earliest"}),
        ("minPartitions", {"subscribe": "a", "minPartitions": "0"}),
        ("minPartitions", {"subscribe": "a", "minPartitions": "many"}),
        ("maxRecordsPerPartition", {"subscribe": "a", "maxRecordsPerPartition": "1.5"}),
        ("includeHeaders", {"subscribe": "a", "includeHeaders": "yes"}),
        ("failOnDataLoss", {"subscribe": "a", "failOnDataLoss": "0"}),
        ("escrowmq.address", {"subscribe": "a", "escrowmq.address": "auto"}),
        ("escrowmq.address", {"subscribe": "a", "escrowmq.address": "ray://host:10001"}),
        ("escrowmq.address", {"subscribe": "a", "escrowmq.address": "host:port"}),
        ("startingOffset", {"subscribe": "a", "startingOffset": "earliest"}),
        ("kafka.bootstrap.servers", {"subscribe": "a", "kafka.bootstrap.servers": "x:1"}),
    ],
)
def test_a_bad_value_names_its_option(named: str, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(given, default_address="127.0.0.1:6379")
    assert named in str(caught.value)


def test_without_an_address_it_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"escrowmq\.address"):
        parse_options({"subscribe": "a"})


def test_a_read_may_end_at_a_stable_cut() -> None:
    assert parse(subscribe="a").at_a_cut is False
    assert parse(subscribe="a", isolation="Cut", endingOffsets="latest", pushFilters="false").at_a_cut is True
    assert parse(Use.STREAM, subscribe="a", isolation="cut", minOffsetsPerTrigger="5").at_a_cut is True


@pytest.mark.parametrize(
    ("use", "name", "value"),
    [
        (Use.BATCH, "endingOffsets", '{"a": {"0": 5}}'),
        (Use.BATCH, "endingTimestamp", "5"),
        (Use.BATCH, "pushFilters", "true"),
        (Use.STREAM, "maxOffsetsPerTrigger", "5"),
        (Use.STREAM, "maxBytesPerTrigger", "5m"),
    ],
)
def test_a_cut_says_where_a_read_ends_and_nothing_else_does(use: Use, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*isolation"):
        parse(use, subscribe="a", isolation="cut", **{name: value})


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(ConfigError, match="isolation"):
        parse(subscribe="a", isolation="serializable")
