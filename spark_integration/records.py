"""From fetched bytes to Arrow: the schema of the source, and one record batch per fetch.

The rows of a fetch are decoded by one C call and turned over into columns; offsets and timestamps come
from the runs and never pass through Python objects. Here a million messages a minute go by, so
nothing is done per message that can be done per run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from escrowmq.actors.reader import Block
from escrowmq.replication.codec import decode_rows

#: Timestamps are the broker's, set when the message became readable; Kafka calls that LogAppendTime = 1.
LOG_APPEND_TIME = 1
#: Spark's own default for Arrow batches is 10,000 rows; the bytes bound memory when messages are large.
BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20

COLUMNS_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP, timestampType INT"
)
HEADERS_DDL = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
TX_ID_DDL = "tx_id STRING"

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def schema_ddl(include_headers: bool) -> str:
    """The columns of Kafka's source, in its order, and ``tx_id`` (null for plain messages)."""
    return ", ".join([COLUMNS_DDL, *([HEADERS_DDL] if include_headers else []), TX_ID_DDL])


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The same as :func:`schema_ddl`, for the batches."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        *([("headers", _HEADERS)] if include_headers else []),
        ("tx_id", pa.string()),
    ]
    return pa.schema(fields)


def record_batch(topic: str, partition: int, blocks: Sequence[Block], schema: pa.Schema) -> pa.RecordBatch:
    """The messages of ``blocks``, in order. Raises CorruptLog when the rows are not what the blocks say."""
    counts = np.array([block.messages for block in blocks], dtype=np.int64)
    total = int(counts.sum())
    rows = decode_rows(b"".join([block.rows for block in blocks]), total)
    bases = np.array([block.base_offset for block in blocks], dtype=np.int64)
    firsts = np.cumsum(counts) - counts  # place of each block's first message in the batch
    times_ms = np.array([block.ts_ms for block in blocks], dtype=np.int64)
    keys, values, headers, tx_ids = zip(*rows, strict=True)
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), total),
        pa.repeat(pa.scalar(partition, pa.int32()), total),
        pa.array(np.arange(total, dtype=np.int64) + np.repeat(bases - firsts, counts)),
        pa.array(np.repeat(times_ms * 1000, counts)).view(pa.timestamp("us", tz="UTC")),
        pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), total),
    ]
    if "headers" in schema.names:
        columns.append(pa.array([list(h.items()) if h else [] for h in headers], _HEADERS))
    columns.append(pa.array(tx_ids, pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def record_batches(
    topic: str, partition: int, blocks: Iterable[Block], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Batches of about BATCH_ROWS messages or BATCH_BYTES, whichever comes first."""
    waiting: list[Block] = []
    rows = size = 0
    for block in blocks:
        waiting.append(block)
        rows += block.messages
        size += len(block.rows)
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield record_batch(topic, partition, waiting, schema)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield record_batch(topic, partition, waiting, schema)
