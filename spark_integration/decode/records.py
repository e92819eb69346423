"""Turns fetched bytes into Arrow: the schema of the source, and record batches of the wanted columns.

Columns that are not wanted are not built. This code handles a million messages per minute, so nothing is
done per message that can be done per run or per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from escrowmq.actors.consumer.arrow_batches import HEADERS, columns_of, columns_of_rows, raw_columns
from escrowmq.actors.consumer.reader import Stretch
from escrowmq.actors.consumer.records import FetchedRun, cut_runs
from escrowmq.replication.errors import DamagedValue
from escrowmq.replication.format.packing import PackedRows, UnsoundValue
from escrowmq.spark_integration.decode.values import ValueDecoder

#: The broker sets a timestamp when the message becomes readable; Kafka calls this LogAppendTime = 1.
LOG_APPEND_TIME = 1
#: Spark's own default for Arrow batches is 10,000 rows; the limit in bytes bounds memory for large messages.
BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20

#: Column -> (type as DDL, type in Arrow): the columns of the Kafka source in its order, and ``tx_id``.
_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "key": ("BINARY", pa.binary()),
    "value": ("BINARY", pa.binary()),
    "topic": ("STRING", pa.string()),
    "partition": ("INT", pa.int32()),
    "offset": ("BIGINT", pa.int64()),
    "timestamp": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
    "timestampType": ("INT", pa.int32()),
    "headers": ("ARRAY<STRUCT<key: STRING, value: BINARY>>", HEADERS),
    "tx_id": ("STRING", pa.string()),
}
COLUMNS = tuple(_TYPES)
#: Headers are included only on request.
_DEFAULT = tuple(name for name in COLUMNS if name != "headers")


@dataclass(frozen=True)
class RowFormat:
    """The columns in their order, and how values are decoded. ``decoder`` None: values stay bytes."""

    columns: tuple[str, ...] = _DEFAULT
    decoder: ValueDecoder | None = None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return pa.schema([(name, self._type(name)) for name in self.columns])

    def _type(self, name: str) -> pa.DataType:
        return self.decoder.type if name == "value" and self.decoder else _TYPES[name][1]


def schema_ddl(columns: Sequence[str], value_ddl: str | None = None) -> str:
    """The columns as DDL, as Spark expects them from a source. ``value_ddl``: the type of ``value``."""
    types = {name: ddl for name, (ddl, _) in _TYPES.items()} | ({"value": value_ddl} if value_ddl else {})
    return ", ".join(f"{name} {types[name]}" for name in columns)


def _batch_of(
    topic: str,
    partition: int,
    runs: Sequence[FetchedRun],
    raw: Mapping[str, pa.Array],
    format: RowFormat,
) -> pa.RecordBatch:
    """The messages of ``runs``, in order; ``raw``: the columns of their rows."""
    first, total = runs[0][0], sum(run[1] for run in runs)
    same = {"timestampType": pa.scalar(LOG_APPEND_TIME, _TYPES["timestampType"][1])}
    types = {name: _TYPES[name][1] for name in format.columns if name not in same}
    found = columns_of(topic, partition, runs, raw, types)
    columns = [pa.repeat(same[name], total) if name in same else found[name] for name in format.columns]
    decoder = format.decoder
    if decoder is None or "value" not in format.columns:
        return pa.RecordBatch.from_arrays(columns, schema=format.schema)
    at = format.columns.index("value")
    columns[at], stays = decoder.decode(columns[at], lambda i: f"{topic}/{partition}, offset {first + i}")
    batch = pa.RecordBatch.from_arrays(columns, schema=format.schema)
    return batch if stays is None else batch.filter(stays)


def _batches(topic: str, partition: int, stretch: Stretch, format: RowFormat) -> Iterator[pa.RecordBatch]:
    """One batch of all messages, or several if values have to be unpacked, each of about BATCH_BYTES.

    Raises CorruptLog if the rows do not match the runs; DamagedValue."""
    runs = stretch.runs
    first, total = runs[0][0], sum(run[1] for run in runs)
    raw = raw_columns(stretch.rows, total, format.columns)
    if not isinstance(raw, PackedRows):
        yield _batch_of(topic, partition, runs, raw, format)
        return
    done = 0
    while done < total:
        try:
            part = raw.unpacked(done, raw.fitting(done, total, BATCH_BYTES))
        except UnsoundValue as error:
            raise DamagedValue(topic, partition, first + done, error.reason) from error
        cut = cut_runs(runs, first + done, first + done + len(part))
        yield _batch_of(topic, partition, cut, columns_of_rows(part, format.columns), format)
        done += len(part)


def record_batches(
    topic: str, partition: int, stretches: Iterable[Stretch], format: RowFormat
) -> Iterator[pa.RecordBatch]:
    """Batches of about BATCH_ROWS messages or BATCH_BYTES, whichever is reached first."""
    for runs, view in stretches:
        begun = rows = size = at = 0
        for i, run in enumerate(runs, 1):
            rows += run[1]
            size += run[3]
            if rows >= BATCH_ROWS or size >= BATCH_BYTES or i == len(runs):
                yield from _batches(topic, partition, Stretch(runs[begun:i], view[at : at + size]), format)
                begun, at, rows, size = i, at + size, 0, 0
