"""Decodes values that are Arrow IPC streams into one column of lists, one batch at a time.

Opening a stream costs more than reading its first thousand rows. So values whose schemas are equal byte for
byte are combined into one stream: the schema, followed by the messages of all values. Before that, the end of
each value's messages is determined with numpy for all values at once, from the same length fields that
Arrow's reader uses; so a value can neither consume its neighbour nor be taken for two. Values of other kinds
(with dictionaries, with the framing before Arrow 0.15, damaged) are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from escrowmq.actors.consumer.arrow_batches import Positions
from escrowmq.spark_integration.decode.halving import BAD, halved

#: The continuation marker that starts a message. The length of its metadata follows; 0 ends the stream.
_CONTINUES = 0xFFFFFFFF
#: Kinds of messages, as in their metadata.
_SCHEMA, _RECORD_BATCH = 1, 3
#: A value with more messages than this is read by itself: each round costs a pass over the remaining values.
_MESSAGES_MAX = 64

#: numpy types by width in bytes.
_NUMBERS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8"}

Mask = npt.NDArray[np.bool_]


class _ArrowMessages(NamedTuple):
    """One message of each of several values: its kind, rows, start of its body, and end.

    ``plain``: whether these could be determined.
    """

    kind: Positions
    rows: Positions
    body: Positions
    end: Positions
    plain: Mask


class _Layout(NamedTuple):
    """For each value: its start, the ends of its schema and of its messages, and the messages' rows.

    ``plain``: whether these could be determined; if not, the value is read by itself.
    """

    start: Positions
    body: Positions
    end: Positions
    rows: Positions
    plain: Mask


def arrow_lists(values: pa.BinaryArray, type: pa.ListType) -> tuple[pa.Array, list[int]]:
    """Decode values: (a list of rows per value, positions of the values that cannot be read and are null).

    Columns are matched by name: missing ones are null, additional ones are ignored.
    """
    layout = _layout(values)
    parts, indexes = [pa.nulls(0, type)], [np.zeros(0, np.int64)]
    bad: list[int] = []
    for members in _same_schema(values, layout):

        def joined(at: int, size: int, members: Positions = members) -> pa.Array:
            return _joined(values, layout, members[at : at + size], type)

        part, wrong = halved(len(members), joined, type)
        parts.append(part)
        indexes.append(members)
        bad += members[wrong].tolist()
    others = np.flatnonzero(~layout.plain)
    part, wrong = _one_by_one(values, others, type)
    bad += others[wrong].tolist()
    column = pa.concat_arrays([*parts, part])
    order = np.concatenate([*indexes, others])
    if (order[1:] < order[:-1]).any():
        column = column.take(pa.array(np.argsort(order)))
    return column, sorted(bad)


def _one_by_one(values: pa.BinaryArray, members: Positions, type: pa.ListType) -> tuple[pa.Array, list[int]]:
    """As :func:`arrow_lists`, for the given values only, reading each one by itself."""
    parts: list[pa.StructArray] = [pa.array([], type.value_type)]
    bounds: list[int | None] = []
    total = 0
    bad: list[int] = []
    for i, at in enumerate(members.tolist()):
        try:
            rows = _rows(values[at].as_buffer(), type.value_type)
        except (*BAD, StopIteration):
            bad.append(i)
            bounds.append(None)
            continue
        parts.append(rows)
        bounds.append(total)
        total += len(rows)
    # A null bound makes its list null; the last bound is the end of the last list.
    lists = pa.ListArray.from_arrays(pa.array([*bounds, total], pa.int32()), pa.concat_arrays(parts))
    return lists.cast(type), bad


def _joined(values: pa.BinaryArray, layout: _Layout, members: Positions, type: pa.ListType) -> pa.Array:
    """Values with the same schema, read as one stream: the first one with its schema, the others without."""
    starts = layout.body[members]
    starts[0] = layout.start[members[0]]
    ends = layout.end[members]
    stream = _slices(values, starts, ends).buffers()[2].slice(0, int((ends - starts).sum()))
    rows = _rows(stream, type.value_type)
    bounds = np.concatenate([[0], np.cumsum(layout.rows[members])])
    if bounds[-1] != len(rows):
        raise ValueError("the number of rows differs from the messages' metadata")
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), rows).cast(type)


def _rows(stream: pa.Buffer, row: pa.StructType) -> pa.StructArray:
    source = pa.BufferReader(stream)
    with pa.ipc.open_stream(source) as reader:
        table = reader.read_all()
        if source.tell() < stream.size:  # such as a second stream, whose rows would be lost silently
            raise ValueError("there are bytes after the end of the stream")
    table.validate(full=True)  # untrusted bytes; nothing after this validates them
    columns = []
    for i in range(row.num_fields):
        field = row.field(i)
        found = table.schema.get_all_field_indices(field.name)
        if len(found) > 1:
            raise ValueError(f"column {field.name!r} occurs twice")
        if found:
            columns.append(table.column(found[0]).combine_chunks().cast(field.type))
        else:
            columns.append(pa.nulls(len(table), field.type))
    if not columns:
        raise ValueError("no columns")
    return pa.StructArray.from_arrays(columns, fields=[row.field(i) for i in range(row.num_fields)])


def _same_schema(values: pa.BinaryArray, layout: _Layout) -> Iterator[Positions]:
    """The positions of plain values, grouped by schema, in order within each group."""
    plain = np.flatnonzero(layout.plain)
    if not len(plain):
        return
    schemas = _slices(values, layout.start[plain], layout.body[plain]).dictionary_encode()
    codes = schemas.indices.to_numpy()
    by_code = np.argsort(codes, kind="stable")
    yield from np.split(plain[by_code], np.flatnonzero(np.diff(codes[by_code])) + 1)


def _slices(values: pa.BinaryArray, starts: Positions, ends: Positions) -> pa.BinaryArray:
    """The bytes ``[start, end)`` of the values' buffer for each pair of ascending bounds, contiguously."""
    bounds = np.empty(2 * len(starts), np.int32)  # slices alternate with the gaps between them
    bounds[0::2], bounds[1::2] = starts, ends
    buffers = [None, pa.py_buffer(bounds), values.buffers()[2]]
    parts = pa.Array.from_buffers(pa.binary(), 2 * len(starts) - 1, buffers)
    return parts.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def _layout(values: pa.BinaryArray) -> _Layout:
    _, offsets, content = values.buffers()
    count = len(values)
    bounds = np.zeros(count + 1, np.int64)
    if count:
        bounds[:] = np.frombuffer(offsets, np.int32, count + 1, 4 * values.offset)
    start, limit = bounds[:-1], bounds[1:]
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(1, np.uint8)
    schema = _message(data, start, limit)
    plain = schema.plain & (schema.kind == _SCHEMA) & (schema.body == schema.end)
    end, rows = schema.end.copy(), np.zeros(count, np.int64)
    left = np.flatnonzero(plain)
    for _ in range(_MESSAGES_MAX):
        at = end[left]
        stops = (_number(data, at, 4) == _CONTINUES) & (_number(data, at + 4, 4) == 0)
        stops &= limit[left] - at >= 8
        plain[left[stops & (limit[left] - at > 8)]] = False  # bytes follow: read by itself, and then refused
        left = left[(at < limit[left]) & ~stops]
        if not len(left):
            break
        message = _message(data, end[left], limit[left])
        good = message.plain & (message.kind == _RECORD_BATCH) & (message.rows >= 0)
        plain[left[~good]] = False
        end[left] = message.end
        rows[left] += message.rows
        left = left[good]
    plain[left] = False
    return _Layout(start, schema.end, end, rows, plain)


def _message(data: npt.NDArray[np.uint8], at: Positions, limit: Positions) -> _ArrowMessages:
    """The messages at ``at``, in values that end at ``limit``.

    The metadata is a flatbuffer: the first number of a table is the distance back to its vtable, which has
    for each field its offset from the table's start. If these numbers point outside of the metadata, the
    result is arbitrary; Arrow's reader later refuses such a message.
    """
    length = _number(data, at + 4, 4)
    root = at + 8 + _number(data, at + 8, 4)
    body = at + 8 + length
    size = _field(data, root, 3, 8)
    header = _field_position(data, root, 2)
    rows = _field(data, header + _number(data, header, 4), 0, 8)
    plain = (limit - at >= 16) & (_number(data, at, 4) == _CONTINUES) & (length > 0) & (body <= limit)
    plain &= (size >= 0) & (size <= limit - body) & (length % 8 == 0) & (size % 8 == 0)
    return _ArrowMessages(_field(data, root, 1, 1), rows, body, body + np.where(plain, size, 0), plain)


def _field_position(data: npt.NDArray[np.uint8], table: Positions, field: int) -> Positions:
    """The position of a field of flatbuffer tables; 0, which no field can have, if it is absent."""
    fields = table - _number(data, table, 4).astype(np.int32)
    known = _number(data, fields, 2) >= 6 + 2 * field
    behind = np.where(known, _number(data, fields + 4 + 2 * field, 2), 0)
    return np.where(behind > 0, table + behind, 0)


def _field(data: npt.NDArray[np.uint8], table: Positions, field: int, width: int) -> Positions:
    """A number in flatbuffer tables; 0 if it is absent."""
    position = _field_position(data, table, field)
    return np.where(position > 0, _number(data, position, width), 0)


def _number(data: npt.NDArray[np.uint8], at: Positions, width: int) -> Positions:
    """Little-endian numbers of ``width`` bytes, unsigned unless the width is 8."""
    taken = data.take(at[:, None] + np.arange(width), mode="clip")
    return taken.view(_NUMBERS[width])[:, 0].astype(np.int64)
