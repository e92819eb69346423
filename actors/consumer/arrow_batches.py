"""Messages that ``poll_arrow`` hands out: record batches, made without a Python object per message.

A chunk is decoded as a whole when the application gets to it, and parts of it are slices of the same memory.
Only this module and ``row_columns`` need pyarrow and numpy, so they are imported when they are first needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from escrowmq.actors.consumer.positions import PartitionState
from escrowmq.actors.consumer.records import Chunk, FetchedRun, cut_runs
from escrowmq.actors.consumer.row_columns import HEADERS, columns_of_rows, raw_columns
from escrowmq.replication.format.packing import UNPACKED_BYTES, PackedRows
from escrowmq.replication.message_headers import TAG
from escrowmq.replication.model import ConsumerRecord

#: The columns in their order. There are few topics, so each message has only the number of its topic.
TYPES: dict[str, pa.DataType] = {
    "topic": pa.dictionary(pa.int32(), pa.string()),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "tx_id": pa.string(),
}
SCHEMA = pa.schema(list(TYPES.items()))
#: Records that were nacked, per batch: a column of a batch holds less than 2 GiB, and a message up to 4 MiB.
RECORDS_PER_BATCH = 400


def columns_of(
    topic: str,
    partition: int,
    runs: Sequence[FetchedRun],
    raw: Mapping[str, pa.Array],
    wanted: Mapping[str, pa.DataType],
) -> dict[str, pa.Array]:
    """The ``wanted`` columns (name -> type) of all messages of ``runs``; ``raw``: their decoded rows."""
    bases, counts, times_ms, _ = np.array(runs, dtype=np.int64).T
    total = int(counts.sum())
    columns = {}
    for name, type in wanted.items():
        if name in raw:
            columns[name] = raw[name]
        elif name == "offset":  # they are dense
            columns[name] = pa.array(np.arange(bases[0], bases[0] + total, dtype=np.int64))
        elif name == "timestamp":
            per_ms = {"ms": 1, "us": 1000}[type.unit]
            columns[name] = pa.array(np.repeat(times_ms * per_ms, counts)).view(type)
        elif name == "topic" and pa.types.is_dictionary(type):
            places = pa.array(np.zeros(total, np.int32))
            columns[name] = pa.DictionaryArray.from_arrays(places, pa.array([topic]))
        else:
            columns[name] = pa.repeat(pa.scalar({"topic": topic, "partition": partition}[name], type), total)
    return columns


def take_batch(state: PartitionState, chunk: Chunk, limit: int, room: int = UNPACKED_BYTES) -> pa.RecordBatch:
    """The next messages of a chunk, at most ``limit``; ``room`` and errors as for ``Chunk.take``."""
    runs, rows = chunk.content()
    first = runs[0][0]
    if chunk.batch is None:
        raw = raw_columns(rows, chunk.end - first, TYPES) if isinstance(rows, bytes) else rows
        if isinstance(raw, PackedRows):
            if raw is not rows:
                chunk.keep(raw)
            return _take_packed(state, chunk, raw, limit, room)
        columns = columns_of_rows(raw, TYPES) if isinstance(raw, list) else raw
        chunk.batch = _batch_of(state, runs, columns)
    start = chunk.next
    chunk.skip_to(min(chunk.end, start + limit))
    return chunk.batch.slice(start - first, chunk.next - start)


def _take_packed(
    state: PartitionState, chunk: Chunk, rows: PackedRows, limit: int, room: int
) -> pa.RecordBatch:
    start = chunk.next
    part = chunk.unpack(rows, state.topic, state.partition, min(chunk.end, start + limit), room)
    end = start + len(part)
    batch = _batch_of(state, cut_runs(chunk.content()[0], start, end), columns_of_rows(part, TYPES))
    chunk.skip_to(end)
    return batch


def _batch_of(
    state: PartitionState, runs: Sequence[FetchedRun], raw: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    columns = columns_of(state.topic, state.partition, runs, raw, TYPES)
    return pa.RecordBatch.from_arrays([columns[name] for name in TYPES], schema=SCHEMA)


def tagged(batch: pa.RecordBatch, tags: frozenset[bytes]) -> pa.RecordBatch:
    """The rows whose messages have one of the tags."""
    headers = batch.column("headers")
    name, content = headers.flatten().flatten()
    hits = pc.and_(pc.equal(name, TAG), pc.is_in(content, value_set=pa.array(sorted(tags), pa.binary())))
    kept = np.zeros(batch.num_rows, bool)
    kept[pc.list_parent_indices(headers).filter(hits).to_numpy()] = True
    return batch.filter(pa.array(kept))


def batches_of(records: Sequence[ConsumerRecord]) -> list[pa.RecordBatch]:
    """Records that are Python objects already, because they were nacked."""
    batches = []
    for at in range(0, len(records), RECORDS_PER_BATCH):
        part = records[at : at + RECORDS_PER_BATCH]
        columns: list[list[object]] = [
            [getattr(record, name) for record in part] for name in TYPES if name != "headers"
        ]
        columns.insert(list(TYPES).index("headers"), [list(record.headers.items()) for record in part])
        arrays = [pa.array(column, type) for column, type in zip(columns, TYPES.values(), strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return batches


def table_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """One table, in which a topic has the same number everywhere; nothing but these numbers is copied."""
    return pa.Table.from_batches(batches, SCHEMA).unify_dictionaries()
