"""What the sink refuses before anything runs, and how it says so."""

from __future__ import annotations

import pytest

from escrowmq.actors.producer.config import Compression
from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.sink.options import check_columns, parse_sink_options

HEADERS = "array<struct<key:string,value:binary>>"
GIVEN = {"escrowmq.address": "127.0.0.1:6379", "checkpointLocation": "/tmp/c"}


@pytest.mark.parametrize(
    "columns",
    [
        [("value", "string")],
        [("key", "binary"), ("value", "binary"), ("headers", HEADERS), ("partition", "int")],
        [("value", "string collate UTF8_LCASE"), ("key", "varchar(10)")],
        [("value", "binary"), ("topic", "string"), ("offset", "bigint"), ("timestampType", "int")],
    ],
)
def test_columns_of_kafkas_sink_are_taken(columns: list[tuple[str, str]]) -> None:
    check_columns(columns, "orders")


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ([("key", "string")], "t", "column 'value' is missing among the columns to write \\(key\\)"),
        ([("value", "int")], "t", "column 'value' has type int; it must be string or binary"),
        (
            [("value", "string"), ("key", "bigint")],
            "t",
            "column 'key' has type bigint.*CAST\\(key AS STRING\\)",
        ),
        ([("value", "string"), ("partition", "bigint")], "t", "column 'partition' has type bigint"),
        ([("value", "string"), ("headers", "map<string,string>")], "t", "column 'headers' has type map"),
        ([("value", "string"), ("amount", "double")], "t", "column 'amount' cannot be written"),
        ([("Value", "string")], "t", "column 'Value' cannot be written \\(did you mean 'value'\\?\\)"),
        ([("value", "string"), ("value", "string")], "t", "column 'value' occurs twice"),
        ([("value", "string")], None, "no topic; set option 'topic', or add a column 'topic'"),
    ],
)
def test_a_wrong_column_is_named(columns: list[tuple[str, str]], topic: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_columns(columns, topic)


def test_options_have_defaults_and_any_case() -> None:
    options = parse_sink_options({**GIVEN, "TOPIC": " orders ", "queryName": "q"}, streaming=True)
    assert (options.topic, options.checkpoint, options.namespace) == ("orders", "/tmp/c", "escrowmq")
    assert (options.message_bytes_max, options.transaction_timeout_ms) == (1 << 20, 60_000)
    batch = parse_sink_options({"maxMessageBytes": "5"}, streaming=False, default_address="h:1")
    assert (batch.topic, batch.checkpoint, batch.message_bytes_max, batch.address) == (None, "", 5, "h:1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"escrowmq.address": "h:1"}, "'checkpointLocation' is missing"),
        ({"checkpointLocation": "/c"}, "'escrowmq.address' is missing"),
        ({**GIVEN, "escrowmq.address": "auto"}, "'escrowmq.address' must be host:port"),
        ({**GIVEN, "topik": "x"}, "unknown option 'topik'"),
        ({**GIVEN, "path": "/x"}, "not to a path"),
        (
            {**GIVEN, "maxMessageBytes": "5000000"},
            "'maxMessageBytes' must be a whole number from 1 to 4194304",
        ),
        ({**GIVEN, "transactionTimeoutMs": "0"}, "'transactionTimeoutMs'"),
        ({**GIVEN, "epoch": "3"}, "'epoch' is for writes in foreachBatch"),
        ({**GIVEN, "compression": "gzip"}, "'compression'.*must be 'zstd', 'lz4' or None, not 'gzip'"),
        ({**GIVEN, "compressionLevel": "3"}, "'compressionLevel': .*for compression='zstd' only"),
        ({**GIVEN, "compression": "zstd", "compressionLevel": "23"}, "a whole number from 1 to 22"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_sink_options(given, streaming=True)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, None),
        ({"compression": "none"}, None),
        ({"compression": "LZ4"}, Compression("lz4", None, 1_024)),
        ({"compression": "zstd", "compressionLevel": "3", "compressfrom": "9"}, Compression("zstd", 3, 9)),
    ],
)
def test_values_are_compressed_if_an_option_says_so(given: dict[str, str], meant: Compression | None) -> None:
    assert parse_sink_options({**GIVEN, **given}, streaming=True).compression == meant


def test_a_write_in_foreach_batch_says_which_batch_and_which_write() -> None:
    options = parse_sink_options({**GIVEN, "topic": "orders", "epoch": "7"}, streaming=False)
    assert (options.epoch, options.name, options.checkpoint) == (7, "orders", "/tmp/c")
    named = parse_sink_options({**GIVEN, "sinkName": "second", "epoch": "7"}, streaming=False)
    assert named.name == "second"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epoch": "7", "topic": "t", "escrowmq.address": "h:1"}, "'checkpointLocation' is missing"),
        ({**GIVEN, "epoch": "7"}, "'sinkName' must be"),
        ({**GIVEN, "epoch": "7", "sinkName": "../x"}, "'sinkName' must be"),
        ({**GIVEN, "epoch": "-1", "topic": "t"}, "'epoch' must be the number of the batch"),
        ({**GIVEN, "sinkName": "x"}, "'sinkName' is for writes in foreachBatch"),
    ],
)
def test_a_wrong_option_in_foreach_batch_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_sink_options(given, streaming=False)
