"""Rows as they stand in the log to Arrow columns."""

from __future__ import annotations

from collections.abc import Container

import pyarrow as pa

from escrowmq.replication.codec import decode_rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def raw_columns(blob: bytes, count: int, wanted: Container[str]) -> dict[str, pa.Array]:
    """Those of ``key``, ``value``, ``headers`` and ``tx_id`` that are wanted, of ``count`` rows in ``blob``.

    Raises CorruptLog unless the bytes are exactly so many rows.
    """
    keys, values, headers, tx_ids = zip(*decode_rows(blob, count), strict=True)
    columns = {}
    if "key" in wanted:
        columns["key"] = pa.array(keys, pa.binary())
    if "value" in wanted:
        columns["value"] = pa.array(values, pa.binary())
    if "headers" in wanted:
        columns["headers"] = pa.array([list(h.items()) if h else [] for h in headers], HEADERS)
    if "tx_id" in wanted:
        columns["tx_id"] = pa.array(tx_ids, pa.string())
    return columns
