"""Options of the data source: what is accepted, and that every bad value names its option."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.options import BoundKind, SourceOptions, parse_options


def parse(**options: str) -> SourceOptions:
    return parse_options(options, default_address="127.0.0.1:6379")


def test_defaults_read_everything_that_is_committed() -> None:
    options = parse(subscribe="orders")
    assert options.subscription.topics == ("orders",)
    assert (options.starting.kind, options.ending.kind) == (BoundKind.EARLIEST, BoundKind.LATEST)
    assert options.min_partitions is None and options.max_records_per_partition is None
    assert options.include_headers is False and options.fail_on_data_loss is True
    assert (options.address, options.namespace) == ("127.0.0.1:6379", "escrowmq")


def test_names_are_case_insensitive_and_values_trimmed() -> None:
    options = parse(
        SUBSCRIBE=" a, b ,a", startingoffsets="Earliest", includeheaders="TRUE", minpartitions=" 7 "
    )
    assert options.subscription.topics == ("a", "b")
    assert options.include_headers is True and options.min_partitions == 7


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
    assert options.starting.offsets == {"a": {0: 23, 1: -2}}
    assert options.ending.offsets == {"a": {0: 50, 1: -1}}


def test_timestamps() -> None:
    options = parse(subscribe="a", startingTimestamp="1000", endingTimestamp="2000")
    assert options.starting.kind is options.ending.kind is BoundKind.TIMESTAMP
    assert (options.starting.timestamp_ms, options.ending.timestamp_ms) == (1000, 2000)


@pytest.mark.parametrize(
    ("named", "given"),
    [
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
