"""From fetched bytes to Arrow: the schema of the source, and one record batch per fetch.

The rows of a fetch are decoded by one C call and turned over into columns; offsets and timestamps come
from the runs and never pass through Python objects. Here a million messages a minute go by, so
nothing is done per message that can be done per run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from escrowmq.replication.codec import decode_rows

#: (base offset, messages, timestamp in ms, bytes) of messages that stand together in the log.
Run = tuple[int, int, int, int]

#: Timestamps are the broker's, set when the message became readable; Kafka calls that LogAppendTime = 1.
LOG_APPEND_TIME = 1

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


def record_batch(
    topic: str,
    partition: int,
    runs: Sequence[Run],
    blob: bytes | memoryview,
    *,
    start: int,
    end: int,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """The messages of ``runs`` whose offsets lie in [start, end); ``blob`` holds the rows of all of them.

    The first run may begin before ``start`` and the last may end after ``end``. Raises CorruptLog
    when the blob is not what the runs say.
    """
    counts = np.array([run[1] for run in runs], dtype=np.int64)
    total = int(counts.sum())
    rows = decode_rows(blob, total)
    bases = np.array([run[0] for run in runs], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    offsets = np.arange(total, dtype=np.int64) + np.repeat(bases - firsts, counts)
    times = np.repeat(np.array([run[2] for run in runs], dtype=np.int64) * 1000, counts)
    low, high = np.searchsorted(offsets, (start, end))
    size = int(high - low)
    keys, values, headers, tx_ids = zip(*rows[low:high], strict=True) if size else ((), (), (), ())
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), size),
        pa.repeat(pa.scalar(partition, pa.int32()), size),
        pa.array(offsets[low:high]),
        pa.array(times[low:high]).view(pa.timestamp("us", tz="UTC")),
        pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), size),
    ]
    if "headers" in schema.names:
        columns.append(pa.array([list(h.items()) if h else [] for h in headers], _HEADERS))
    columns.append(pa.array(tx_ids, pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
