"""From columns of a table to encoded rows, for all that sends tables; and the checks of ``send_table``.

A message is stored as the msgpack of ``[key, value, headers, tx_id]`` (see ``format.codec``). Here it is
assembled from Arrow columns: length headers, bytes and constants are joined element by element in C, so no
Python code runs for a row, but for the checksum of its key. With values of 200 bytes a row costs 0.1 us,
instead of 1 to 4 us for one msgspec call and the Python objects that it needs. Imported only where there is a
table, since it needs numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.delayed_messages import DeliveryClock
from escrowmq.actors.producer.encoding.encoder import crc32c
from escrowmq.actors.producer.encoding.many import (
    Delivery,
    Piece,
    RowTooLarge,
    Run,
    check_partition,
    piece_bytes,
    times_of_rows,
)
from escrowmq.replication.errors import InvalidMessage

Integers = NDArray[np.int64]
#: Whether a type of Arrow is one of some.
Kinds = tuple[Callable[[pa.DataType], bool], ...]
NIL = b"\xc0"
_EMPTY = pa.scalar(b"", pa.binary())
#: An array of four, and no key.
_NO_KEY = pa.scalar(b"\x94" + NIL, pa.binary())
#: More than there are runs in a piece.
ANY = 1 << 40
#: Neither headers nor a transaction.
_NO_MORE = pa.scalar(NIL + NIL, pa.binary())


class TableRows:
    """The rows of one ``send_table``, checked. ``key`` None: messages without keys."""

    def __init__(
        self,
        config: ProducerConfig,
        topic: str,
        partitions: int,
        table: Any,
        value: str,
        key: str | None,
        partition: int | None,
        pack: Callable[[pa.Array], pa.Array] | None = None,
    ) -> None:
        """``pack``: compresses values.

        Raises InvalidMessage, MessageTooLarge or UnknownTopic; nothing was sent then.
        """
        self._config, self._count, self._pack = config, partitions, pack
        self._partition = check_partition(topic, partition, partitions)
        self._values = column_of(table, value)
        self._keys = None if key is None else column_of(table, key)
        self._check_rows(value)

    def __len__(self) -> int:
        return len(self._values)

    def _check_rows(self, value: str) -> None:
        """No value is null, and none of the messages is too large."""
        start, limit = 0, self._config.message_bytes_max
        for values, keys in self._batches():
            if values.null_count:
                row = start + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                raise InvalidMessage(
                    f"row {row}: column {value!r} is null, but a message's value must be bytes; leave out "
                    "such rows, or fill them with empty values"
                )
            sizes = row_sizes(values, keys)
            if len(sizes) and sizes.max() > limit:
                row = int(np.argmax(sizes > limit))
                raise RowTooLarge(int(sizes[row]), limit, start + row)
            start += len(values)

    def _batches(self) -> Iterator[tuple[pa.Array, pa.Array | None]]:
        """Values and keys, cut at the ends of both columns' chunks, as some type with bytes."""
        columns = [self._values] if self._keys is None else [self._values, self._keys]
        for batch in pa.Table.from_arrays(columns, ["value", "key"][: len(columns)]).to_batches():
            values, *keys = map(plain, batch.columns)
            yield values, keys[0] if keys else None

    def pieces(self, gathers: Callable[[], int]) -> Iterator[Piece]:
        """All messages in order, encoded; each piece as late as possible. ``gathers``: the partition in which
        messages without a key gather at present."""
        bytes_max, start = piece_bytes(self._config), 0
        for values, keys in self._batches():
            for some in slices(row_sizes(values, keys), bytes_max):
                of_keys = None if keys is None else as_binary(keys[some])
                yield self._piece(values[some], of_keys, start + some.start, gathers)
            start += len(values)

    def _piece(
        self, values: pa.Array, keys: pa.Array | None, start: int, gathers: Callable[[], int]
    ) -> Piece:
        rows = joined(row_parts(values, keys, _NO_MORE))
        if self._pack is not None:
            rows = self._pack(rows)
        return [
            Run(None if code < 0 else code, [body], _numbers(which + start), len(body), sizes)
            for code, which, sizes, body in bodies(rows, self._partitions_of(keys, offsets_of(rows), gathers))
        ]

    def _partitions_of(
        self, keys: pa.Array | None, offsets: NDArray[np.int32], gathers: Callable[[], int]
    ) -> Integers:
        """The partition of each row; below 0: any, and a higher number after about each request."""
        count = len(offsets) - 1
        if self._partition is not None:
            return np.full(count, self._partition, np.int64)
        if keys is None:
            before = (offsets[:-1] - offsets[0]).astype(np.int64)
            partitions: Integers = before // self._config.full_bytes - ANY
            return partitions
        hashes = checksums(keys.drop_null()) % self._count
        if keys.null_count:  # these are known before rows are sorted, so that all keep their order
            partitions = np.full(count, gathers(), np.int64)
            partitions[keys.is_valid().to_numpy(zero_copy_only=False)] = hashes
            return partitions
        return hashes


def _numbers(numbers: Integers) -> Any:
    """As a range, if they are one."""
    first, last = int(numbers[0]), int(numbers[-1])
    return range(first, last + 1) if last - first == len(numbers) - 1 else numbers


# ---------------------------------------------------------------- rows


#: Messages with one code: it; their positions before they were sorted; the size of each in bytes; all of
#: them, encoded and concatenated. (A plain tuple: making a named one takes 0.4 us.)
Body = tuple[int, Integers, list[int], bytes]


def row_parts(values: pa.Array, keys: pa.Array | None, *rest: pa.Array | pa.Scalar) -> list[Any]:
    """What encoded rows consist of, to be ``joined``. ``rest``: their headers and transaction ids, as
    msgpack."""
    values = as_binary(values)
    head = [_NO_KEY]
    if keys is not None:
        keys = as_binary(keys)
        head = [length_headers(keys, b"\x94"), pc.fill_null(keys, b"")]
    return [*head, length_headers(values), values, *rest]


def joined(parts: Sequence[Any]) -> pa.Array:
    """The encoded rows."""
    return pc.binary_join_element_wise(*parts, _EMPTY)


def slices(sizes: Integers, bytes_max: int) -> Iterator[slice]:
    """All rows in order, in slices of at most ``bytes_max`` bytes, but at least one row."""
    ends, done = np.cumsum(sizes), 0
    while done < len(ends):
        before = int(ends[done - 1]) if done else 0
        end = max(done + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield slice(done, end)
        done = end


def bodies(rows: pa.Array, codes: Integers) -> Iterator[Body]:
    """Encoded rows by their ``codes``, in ascending order; those of one code keep their order."""
    order: Integers = np.arange(len(codes))
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        rows, codes = rows.take(pa.array(order)), codes[order]
    offsets, data = offsets_of(rows), memoryview(rows.buffers()[2])
    sizes: list[int] = np.diff(offsets).tolist()
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    at = offsets[cuts].tolist()
    for n, (code, a, b) in enumerate(zip(codes[cuts[:-1]].tolist(), cuts, cuts[1:], strict=False)):
        yield code, order[a:b], sizes[a:b], bytes(data[at[n] : at[n + 1]])


def checksums(column: pa.Array) -> Integers:
    """Of each element, none of which is null."""
    return np.fromiter(map(crc32c, column.to_pylist()), np.int64, len(column))


def offsets_of(rows: pa.Array) -> NDArray[np.int32]:
    offsets: NDArray[np.int32] = np.frombuffer(rows.buffers()[1], np.int32)
    return offsets[rows.offset : rows.offset + len(rows) + 1]


def row_sizes(values: pa.Array, keys: pa.Array | None) -> Integers:
    """The size of each message as encoded; a value that is null counts as an empty one."""
    sizes = _field_sizes(values) + 3  # the array's header, no headers, no transaction
    sizes += 1 if keys is None else _field_sizes(keys)
    return sizes


def _field_sizes(column: pa.Array) -> Integers:
    lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    headers = np.where(lengths < 1 << 8, 2, np.where(lengths < 1 << 16, 3, 5))
    sizes: Integers = np.where(lengths < 0, 1, lengths + headers)
    return sizes


# ---------------------------------------------------------------- columns


def column_of(table: Any, name: str, kinds: Kinds | None = None, wanted: str = "string") -> pa.ChunkedArray:
    """A column of a table of Arrow or pandas, if it can be sent: of one of ``kinds``, which are ``wanted`` in
    words; None: any with bytes."""
    arrow = isinstance(table, pa.Table | pa.RecordBatch)
    names = table.schema.names if arrow else getattr(table, "columns", None)
    if names is None or not (arrow or hasattr(table, "iloc")):
        raise InvalidMessage(
            f"expected a pyarrow Table or RecordBatch, or a pandas DataFrame, not {type(table).__name__}"
        )
    if list(names).count(name) != 1:
        shown = ", ".join(map(str, names))
        raise InvalidMessage(f"the table needs one column {name!r}; it has: {shown:.200}")
    try:
        column = table.column(name) if arrow else pa.array(table[name], from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidMessage(f"column {name!r} is not of one type that Arrow knows: {error}") from error
    if not isinstance(column, pa.ChunkedArray):
        column = pa.chunked_array([column])
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(is_one(kind) for is_one in kinds or _WITH_BYTES):
        wanted = "binary or string" if kinds is None else wanted
        raise InvalidMessage(f"column {name!r} has type {kind}; make it {wanted} before you send it")
    return column


_WITH_BYTES: Kinds = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_null,
)


#: For ids, which are text.
TEXT: Kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)


def plain(column: pa.Array) -> pa.Array:
    """Without the types that the functions used here do not know."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pa.types.is_null(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.large_binary())
    return column


def as_binary(column: pa.Array) -> pa.Array:
    """The same with the type ``binary``; the column's own bytes must be less than 2 GiB."""
    kind = column.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        # A cast refuses a part of a column beyond 2 GiB for where it begins; a copy begins at 0.
        column = column.take(pa.array(np.arange(len(column))))
    return column if kind == pa.binary() else column.cast(pa.binary())


def length_headers(column: pa.Array, before: bytes = b"", *, text: bool = False) -> pa.Array:
    """The msgpack header of each element, after ``before``; for null, nil instead. ``text``: of strings."""
    header = _str_header if text else _bin_header
    lengths = pc.fill_null(pc.binary_length(column), -1).dictionary_encode()
    known = [before + (NIL if n < 0 else header(n)) for n in lengths.dictionary.to_pylist()]
    return pa.array(known, pa.binary()).take(lengths.indices)


def _bin_header(size: int) -> bytes:
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    return b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + size.to_bytes(4, "big")


def _str_header(size: int) -> bytes:
    if size < 1 << 5:
        return (0xA0 + size).to_bytes(1, "big")
    if size < 1 << 8:
        return b"\xd9" + size.to_bytes(1, "big")
    return b"\xda" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xdb" + size.to_bytes(4, "big")


def packed_column(rows: pa.Array, pack: Callable[[bytes], bytes], least: int) -> pa.Array:
    """Encoded rows of type ``binary``, with ``pack`` applied to those of more than ``least`` bytes.

    Arrow compresses single buffers, not the elements of a column, so there is one call for each value, in
    Python. All others stay in Arrow: a column without values to compress costs one comparison of its offsets.
    """
    long = np.diff(offsets_of(rows)) > least
    count = int(long.sum())
    if not count:
        return rows
    if count == len(rows):
        return pa.array(map(pack, rows.to_pylist()), pa.binary(), size=count)
    made = pa.array(map(pack, rows.take(pa.array(np.flatnonzero(long))).to_pylist()), pa.binary(), size=count)
    return pc.replace_with_mask(rows, pa.array(long), made)


# ---------------------------------------------------------------- times


def times_of_table(clock: DeliveryClock, table: Any, delivery: Delivery, count: int) -> list[int] | None:
    """``times_of_rows`` for the rows of a table; a str is the name of a column."""
    return times_of_rows(clock, Delivery(*(_cells(table, given) for given in delivery)), count)


def _cells(table: Any, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    kinds = pa.types.is_timestamp, pa.types.is_integer, pa.types.is_floating, pa.types.is_null
    column = column_of(table, given, kinds, "a timestamp with a time zone, or numbers")
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise InvalidMessage(f"column {given!r} has no time zone; give it one, such as UTC")
        ms = pa.timestamp("ms", column.type.tz)
        column = pc.ceil_temporal(column, 1, "millisecond").cast(ms).cast(pa.int64())
    return column.to_pylist()
