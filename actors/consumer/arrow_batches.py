"""Messages that ``poll_arrow`` hands out: record batches, made without a Python object per message.

A chunk is decoded as a whole when the application gets to it, and parts of it are slices of the same memory.
Only this module needs pyarrow and numpy, so it is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from escrowmq.actors.consumer.positions import PartitionState
from escrowmq.actors.consumer.records import Chunk, FetchedRun, cut_runs
from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format.codec import Row, decode_lazily
from escrowmq.replication.format.packing import UNPACKED_BYTES, PackedRows
from escrowmq.replication.message_headers import TAG
from escrowmq.replication.model import ConsumerRecord

# ------------------------------------------------------------------------------------------------------------
# Decodes rows in the log's format into Arrow columns, a whole batch at once.
#
# A row is msgpack: 0x94, key (bin or nil), value (bin), headers (map or nil), tx_id (str or nil). The start
# of a row is known for certain only after the row before it, but among short rows it can be guessed: a byte
# 0x94 followed by a plausible key. All candidates are decoded at once with numpy, and the guess was right if
# each one ends where the next one starts. Candidates inside values break that chain and are removed one by
# one; text contains none, random bytes about one in 16 KiB. So no guess is used unless the chain covers all
# bytes from first to last. Longer rows are skipped one after the other instead (by msgpack, in C): to look at
# every byte would cost more. Rows with headers, very long rows, and anything else that is not understood are
# decoded as Python objects (the "plain way"). A row with a compressed value starts with 0x95, which no chain
# passes.
#
# (Processor time per row, by guesses, by skipping and the plain way, on a busy machine: 256 bytes 330, 480
# and 700 ns; 700 bytes 550, 580 and 1,090; 1 KiB 760, 590 and 1,200; 4 KiB 2,400, 1,300 and 1,700; 64 KiB 35,
# 16 and 14 us.)

Positions = npt.NDArray[np.int64]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_ROW, _NIL = 0x94, 0xC0
#: Length of a field's header by its first byte; 0 for bytes that start no such field.
_BIN = np.zeros(256, np.int64)
_BIN[[_NIL, 0xC4, 0xC5, 0xC6]] = 1, 2, 3, 5
_STR = np.zeros(256, np.int64)
_STR[[_NIL, 0xD9, 0xDA]] = 1, 2, 3
_STR[0xA0:0xC0] = 1
#: Mean length of rows up to which their starts are guessed, and up to which rows are skipped.
GUESSED_ROW_BYTES_MAX = 700
SKIPPED_ROW_BYTES_MAX = 16 << 10
#: If the chain breaks more often than this and than at every fourth row, the plain way is faster.
_BREAKS = 1_000


class _Field(NamedTuple):
    """One field of every row: its first byte, and the start and length of its content."""

    tag: npt.NDArray[np.uint8]
    start: Positions
    size: Positions

    def at(self, rows: Any) -> _Field:
        return _Field(*(column[rows] for column in self))


def raw_columns(
    blob: bytes | memoryview, count: int, wanted: Container[str]
) -> dict[str, pa.Array] | PackedRows:
    """The wanted ones of ``key``, ``value``, ``headers`` and ``tx_id`` for the ``count`` rows in ``blob``; or
    the rows, if there are compressed values among them that are wanted.

    ``tx_id`` is always included. Raises CorruptLog unless the bytes are exactly ``count`` rows.
    """
    fields = _scan(blob, count) if len(blob) <= SKIPPED_ROW_BYTES_MAX * count else None
    if fields is None:
        rows = decode_lazily(blob, count)
        if isinstance(rows, PackedRows):
            if "value" in wanted:
                return rows
            rows = rows.without_values()
        return columns_of_rows(rows, wanted)
    key, value, tx_id = fields
    columns = {}
    if "key" in wanted:
        columns["key"] = _gather(blob, key)
    if "value" in wanted:
        columns["value"] = _gather(blob, value)
    if "headers" in wanted:
        empty = pa.array(np.zeros(count + 1, np.int32))
        columns["headers"] = pa.ListArray.from_arrays(empty, pa.array([], HEADERS.value_type), type=HEADERS)
    try:  # decoded even if not wanted, so that every reader notices a damaged log
        columns["tx_id"] = _gather(blob, tx_id).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptLog(f"message rows cannot be decoded: {error}") from error
    return columns


def columns_of_rows(rows: Sequence[Row], wanted: Container[str]) -> dict[str, pa.Array]:
    """The columns of :func:`raw_columns`, for rows that are already decoded; at least one."""
    keys, values, headers, tx_ids = zip(*rows, strict=True)
    columns = {}
    if "key" in wanted:
        columns["key"] = pa.array(keys, pa.binary())
    if "value" in wanted:
        columns["value"] = pa.array(values, pa.binary())
    if "headers" in wanted:
        columns["headers"] = pa.array([list(h.items()) if h else [] for h in headers], HEADERS)
    columns["tx_id"] = pa.array(tx_ids, pa.string())
    return columns


def _scan(blob: bytes | memoryview, count: int) -> tuple[_Field, _Field, _Field] | None:
    """Key, value and tx_id of every row; None if the rows have to be decoded the plain way."""
    data = np.frombuffer(blob, np.uint8)
    starts = _guessed(data) if len(blob) <= GUESSED_ROW_BYTES_MAX * count else _skipped(blob, count)
    if starts is None or len(starts) < count:
        return None
    key, value_at = _read(data, starts + 1, _BIN)
    value, headers_at = _read(data, value_at, _BIN)
    tx_id, ends = _read(data, headers_at + 1, _STR)
    plain = data.take(starts, mode="clip") == _ROW
    plain &= (value.tag != _NIL) & (data.take(headers_at, mode="clip") == _NIL)
    for field, heads in ((key, _BIN), (value, _BIN), (tx_id, _STR)):
        plain &= heads[field.tag] > 0
    rows = _chain(starts, ends, len(data), count)
    if rows is None or not plain[rows].all():
        return None
    return key.at(rows), value.at(rows), tx_id.at(rows)


def _guessed(data: npt.NDArray[np.uint8]) -> Positions:
    """Where a row may start."""
    starts = np.flatnonzero(data == _ROW)
    return starts[_BIN[data.take(starts + 1, mode="clip")] > 0]


def _skipped(blob: bytes | memoryview, count: int) -> Positions | None:
    """Where the rows start; None if they cannot be told apart."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(blob))
    unpacker.feed(blob)
    starts, skip, tell = [0], unpacker.skip, unpacker.tell
    try:
        for _ in range(count - 1):
            skip()
            starts.append(tell())
    except (msgpack.UnpackException, ValueError):
        return None
    return np.array(starts, np.int64)


def _read(data: npt.NDArray[np.uint8], at: Positions, heads: Positions) -> tuple[_Field, Positions]:
    """The fields at ``at``, and the positions after them.

    Beyond the end of the data the result is arbitrary; no chain of rows gets there.
    """
    tag = data.take(at, mode="clip")
    size = data.take(at + 1, mode="clip").astype(np.int64)
    for wide, bytes_ in ((0xC5, 2), (0xDA, 2), (0xC6, 4)):
        if (which := np.flatnonzero(tag == wide)).size:
            number = np.zeros(len(which), np.int64)
            for i in range(bytes_):
                number = number << 8 | data.take(at[which] + 1 + i, mode="clip")
            size[which] = number
    size[tag == _NIL] = 0
    if heads is _STR and (which := np.flatnonzero((tag >= 0xA0) & (tag < 0xC0))).size:
        size[which] = tag[which] - 0xA0
    start = at + heads[tag]
    return _Field(tag, start, size), start + size


def _chain(starts: Positions, ends: Positions, size: int, count: int) -> Any:
    """The candidates that are rows: those that form a chain from the first byte. None if there is none."""
    if starts[0] != 0:
        return None
    breaks = np.flatnonzero(ends[:-1] != starts[1:])
    if len(breaks) > max(_BREAKS, count // 4):
        return None
    keep = np.ones(len(starts), bool)
    row = 0
    for broken in breaks.tolist():
        if broken < row:
            continue  # a candidate that was already removed
        row = int(np.searchsorted(starts, ends[broken]))
        keep[broken + 1 : row] = False
        if row < len(starts) and starts[row] != ends[broken]:
            return None
    rows = np.flatnonzero(keep) if len(breaks) else slice(None)
    return rows if int(keep.sum()) == count and ends[rows][-1] == size else None


def _gather(blob: bytes | memoryview, field: _Field) -> pa.Array:
    """The field's contents as one array, null where the field is nil."""
    count = len(field.start)
    nil = field.tag == _NIL
    if nil.all():
        return pa.nulls(count, pa.binary())
    bounds = np.empty(2 * count, np.int32)  # contents alternate with the gaps between them
    bounds[0::2], bounds[1::2] = field.start, field.start + field.size
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(blob)]
    parts = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return parts.take(pa.array(np.arange(0, 2 * count, 2), mask=nil if nil.any() else None))


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
            indices = pa.array(np.zeros(total, np.int32))
            columns[name] = pa.DictionaryArray.from_arrays(indices, pa.array([topic]))
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
