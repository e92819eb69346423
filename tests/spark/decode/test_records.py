"""From the bytes of a fetch to Arrow columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from escrowmq.actors.consumer.reader import Stretch
from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format.codec import encode_row
from escrowmq.spark_integration.decode import records
from escrowmq.spark_integration.decode.records import (
    BATCH_BYTES,
    BATCH_ROWS,
    COLUMNS,
    RowFormat,
    record_batches,
    schema_ddl,
)

ALL = RowFormat(COLUMNS)

ROWS = [
    encode_row(b"k0", b"v0", None, None),
    encode_row(None, b"", {"h": b"\x00", "g": b"2"}, "tx-1"),
    encode_row(b"", b"v2", None, "tx-1"),
    encode_row(b"k3", b"v3", {"h": b"3"}, "tx-2"),
]
#: Two entries of the log: one message at offset 7, then three at 8 to 10.
STRETCH = Stretch(
    [(7, 1, 1_700_000_000_123, len(ROWS[0])), (8, 3, 1_700_000_001_000, sum(map(len, ROWS[1:])))],
    memoryview(b"".join(ROWS)),
)


def test_columns_hold_what_was_sent() -> None:
    (batch,) = record_batches("t", 3, [STRETCH], ALL)
    assert batch.column("key").to_pylist() == [b"k0", None, b"", b"k3"]
    assert batch.column("value").to_pylist() == [b"v0", b"", b"v2", b"v3"]
    assert batch.column("offset").to_pylist() == [7, 8, 9, 10]
    assert batch.column("tx_id").to_pylist() == [None, "tx-1", "tx-1", "tx-2"]
    assert set(batch.column("topic").to_pylist()) == {"t"} and set(batch.column("partition").to_pylist()) == {
        3
    }
    assert batch.column("timestamp").to_pylist()[:2] == [
        datetime.fromtimestamp(1_700_000_000.123, UTC),
        datetime.fromtimestamp(1_700_000_001, UTC),
    ]
    assert batch.column("headers").to_pylist() == [
        [],
        [{"key": "h", "value": b"\x00"}, {"key": "g", "value": b"2"}],
        [],
        [{"key": "h", "value": b"3"}],
    ]


def test_batches_are_bounded_by_rows_and_by_bytes() -> None:
    format = RowFormat(("offset",))

    def found(value: bytes, rows: int) -> list[tuple[int, int]]:
        """First offset and length of the batches of two stretches of ten runs each."""
        row = encode_row(b"k", value, None, None)
        runs = [(i * rows, rows, 0, rows * len(row)) for i in range(10)]
        stretch = Stretch(runs, memoryview(row * 10 * rows))
        offsets = [batch.column("offset") for batch in record_batches("t", 0, [stretch] * 2, format)]
        return [(column[0].as_py(), len(column)) for column in offsets]

    assert found(bytes(100), 1) == [(0, 10)] * 2
    rows = BATCH_ROWS // 4
    assert found(b"", rows) == [(0, BATCH_ROWS), (4 * rows, BATCH_ROWS), (8 * rows, 2 * rows)] * 2
    assert found(bytes(BATCH_BYTES // 2), 1) == [(i, 2) for i in range(0, 10, 2)] * 2
    assert list(record_batches("t", 0, [], format)) == []


def test_only_the_wanted_columns_are_made_and_in_that_order() -> None:
    (batch,) = record_batches("t", 3, [STRETCH], RowFormat(("offset", "tx_id", "timestampType")))
    assert batch.schema.names == ["offset", "tx_id", "timestampType"]
    assert batch.to_pylist()[1] == {"offset": 8, "tx_id": "tx-1", "timestampType": 1}
    assert schema_ddl(["offset", "value"]) == "offset BIGINT, value BINARY"
    assert schema_ddl(["value"], "STRUCT<a INT>") == "value STRUCT<a INT>"
    assert "headers" not in RowFormat().columns


def test_a_damaged_blob_is_refused() -> None:
    whole = bytes(STRETCH.rows)
    for damaged in (whole[:-1], whole + b"\x00", b"\xc1" + whole[1:]):
        with pytest.raises(CorruptLog):
            list(records._batches("t", 0, STRETCH._replace(rows=memoryview(damaged)), RowFormat()))
