"""From the bytes of a fetch to Arrow columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from escrowmq.actors.reader import Block
from escrowmq.replication.codec import encode_row
from escrowmq.replication.errors import CorruptLog
from escrowmq.spark_integration import records
from escrowmq.spark_integration.records import arrow_schema, record_batch, record_batches, schema_ddl

ROWS = [
    encode_row(b"k0", b"v0", None, None),
    encode_row(None, b"", {"h": b"\x00", "g": b"2"}, "tx-1"),
    encode_row(b"", b"v2", None, "tx-1"),
    encode_row(b"k3", b"v3", {"h": b"3"}, "tx-2"),
]
#: Two entries of the log: one message at offset 7, then three at 8 to 10.
BLOCKS = [
    Block(7, 1, 1_700_000_000_123, ROWS[0]),
    Block(8, 3, 1_700_000_001_000, b"".join(ROWS[1:])),
]


def test_columns_hold_what_was_sent() -> None:
    batch = record_batch("t", 3, BLOCKS, arrow_schema(True))
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


def test_batches_are_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [Block(i, 1, 0, encode_row(b"k", bytes(100), None, None)) for i in range(10)]
    schema = arrow_schema(False)

    def sizes() -> list[int]:
        return [batch.num_rows for batch in record_batches("t", 0, blocks, schema)]

    assert sizes() == [10]
    monkeypatch.setattr(records, "BATCH_ROWS", 4)
    assert sizes() == [4, 4, 2]
    monkeypatch.setattr(records, "BATCH_BYTES", 200)
    assert sizes() == [2] * 5
    assert list(record_batches("t", 0, [], schema)) == []


def test_headers_are_a_column_only_on_request() -> None:
    assert "headers" not in arrow_schema(False).names and "headers" not in schema_ddl(False)
    plain = [part.split()[0] for part in schema_ddl(False).split(", ")]
    assert plain == arrow_schema(False).names
    assert arrow_schema(True).names == [*plain[:-1], "headers", "tx_id"]


def test_a_damaged_blob_is_refused() -> None:
    rows = BLOCKS[1].rows
    for damaged in (rows[:-1], rows + b"\x00", b"\xc1" + rows[1:]):
        with pytest.raises(CorruptLog):
            record_batch("t", 0, [BLOCKS[1]._replace(rows=damaged)], arrow_schema(False))
