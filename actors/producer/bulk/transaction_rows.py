"""From columns of a table to blocks of transactions: checks and encoding of ``send_transactions_table``.

Each row is a transaction of one message, so it is in one broker group, and a block per group holds hundreds
of them. Rows are joined from Arrow columns as in table_rows.py; a short-lived ``bytes`` for each row and key,
for its checksum, is all that exists of a single row. Rows that are not like the others (a null, an id that
occurs twice) are only marked here: their caller treats them one by one. Needs numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from escrowmq.actors.producer.batcher import TX_OVERHEAD
from escrowmq.actors.producer.bulk.bulk import BLOCK_TRANSACTIONS
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Column, PrepareBlock
from escrowmq.actors.producer.encoding.encoder import crc32c
from escrowmq.actors.producer.encoding.many import PIECE_BYTES, check_partition
from escrowmq.actors.producer.encoding.table_rows import (
    NIL,
    TEXT,
    Integers,
    as_binary,
    bodies,
    checksums,
    column_of,
    joined,
    length_headers,
    offsets_of,
    plain,
    row_parts,
    row_sizes,
    slices,
)
from escrowmq.actors.producer.transactions.local_transaction import TransactionColumns
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.limits import NAME_CHARS_MAX

Marks = NDArray[np.bool_]
#: The columns of a table; all but the first may be absent.
PARTS = ("value", "key", "tx_id", "query_id")


class Chunk(NamedTuple):
    """Rows of a table from ``start`` on. ``odd``: those to be treated one by one. ``large``: those of them
    that are larger than a message may be."""

    start: int
    values: pa.Array
    keys: pa.Array | None
    tx_ids: pa.Array | None
    query_ids: pa.Array | None
    odd: Marks
    large: Marks

    def cell(self, column: pa.Array | None, at: int) -> Any:
        """One cell; None if it is null or there is no such column."""
        return None if column is None else column[at].as_py()

    def given(self) -> list[str]:
        """The ids that the application gave, of rows that are not odd."""
        if self.tx_ids is None:
            return []
        ids: list[str] = self.tx_ids.filter(pa.array(~self.odd)).drop_null().to_pylist()
        return ids


class TableBlock(NamedTuple):
    """A block of transactions, and which rows of the table they are."""

    gid: int
    block: PrepareBlock
    rows: list[int]


class TransactionRows:
    """The rows of one ``send_transactions_table``. ``group_of``: see ``Encoder``."""

    def __init__(
        self,
        config: ProducerConfig,
        topic: str,
        partitions: int,
        group_of: Callable[[str, int], int] | None,
        table: Any,
        columns: TransactionColumns,
        partition: int | None,
        timeout_ms: int,
        pack: Callable[[pa.Array], pa.Array] | None = None,
    ) -> None:
        """Raises InvalidMessage or UnknownTopic for what is wrong with the whole table. ``group_of`` None:
        there is one group. ``pack``: compresses values."""
        self._config, self._topic, self._count = config, topic, partitions
        self._group_of, self._timeout_ms, self._pack = group_of, timeout_ms, pack
        self._partition = check_partition(topic, partition, partitions)
        found = {
            part: _texts(table, name) if part.endswith("_id") else column_of(table, name)
            for part, name in zip(PARTS, columns, strict=True)
            if name is not None
        }
        self._table = pa.Table.from_arrays(list(found.values()), list(found))
        self._repeats = _repeats(found.get("tx_id"))

    def __len__(self) -> int:
        return len(self._table)

    # ------------------------------------------------------------ chunks

    def chunks(self) -> Iterator[Chunk]:
        """All rows in order, some hundreds of KB at a time."""
        limit = self._config.message_bytes_max
        bytes_max = max(PIECE_BYTES, self._config.full_bytes * (1 if self._group_of is None else 8))
        start = 0
        for batch in self._table.to_batches():
            columns = dict(zip(batch.schema.names, map(plain, batch.columns), strict=True))
            values = columns["value"]
            sizes = _sizes(values, columns.get("key"), columns.get("tx_id"))
            large = sizes > limit
            for some in slices(np.minimum(sizes, limit) + TX_OVERHEAD, bytes_max):
                yield self._chunk(columns, start + some.start, some, large[some])
            start += len(values)

    def size_of(self, chunk: Chunk, at: int) -> int:
        """The size of a row's message, without an id that it has yet to get."""
        cells = (None if column is None else column[at : at + 1] for column in chunk[1:4])
        return int(_sizes(*cells)[0])

    def _chunk(self, columns: dict[str, pa.Array], start: int, some: slice, large: Marks) -> Chunk:
        values = columns["value"][some]
        keys, tx_ids, query_ids = (columns[part][some] if part in columns else None for part in PARTS[1:])
        odd = large | _marks(values.is_null())
        for ids in (tx_ids, query_ids):
            if ids is not None:
                odd |= _doubtful(ids)
        if self._repeats is not None:
            odd |= self._repeats[start : start + len(odd)]
        return Chunk(start, values, keys, tx_ids, query_ids, odd, large)

    # ------------------------------------------------------------ blocks

    def blocks(self, chunk: Chunk, ids: Iterator[str]) -> Iterator[TableBlock | list[int]]:
        """The rows of a chunk that are not odd, as blocks. ``ids``: where a row has none. Rows that are
        too large only with such an id come as a list instead, to be treated one by one."""
        numbers: Integers = np.flatnonzero(~chunk.odd)
        values, keys, tx_ids, query_ids = chunk[1:5]
        if len(numbers) < len(values):
            kept = pa.array(numbers)
            values, keys, tx_ids, query_ids = (
                None if column is None else column.take(kept) for column in chunk[1:5]
            )
        numbers = numbers + chunk.start
        if not len(numbers):
            return
        tx_ids = _with_ids(tx_ids, len(values), ids)
        encoded_ids = as_binary(tx_ids)
        rows = joined(row_parts(values, keys, length_headers(encoded_ids, NIL, text=True), encoded_ids))
        sizes: Integers = np.diff(offsets_of(rows)).astype(np.int64)
        fits = sizes <= self._config.message_bytes_max
        if not fits.all():
            yield numbers[~fits].tolist()
            kept = pa.array(np.flatnonzero(fits))
            rows, tx_ids, numbers, sizes = rows.take(kept), tx_ids.take(kept), numbers[fits], sizes[fits]
            keys, query_ids = (None if column is None else column.take(kept) for column in (keys, query_ids))
        if len(numbers):
            partitions, given = self._partitions_of(keys, tx_ids), bool(chunk.given())
            yield from self._cut(rows, sizes, numbers, tx_ids, query_ids, partitions, given)

    def _partitions_of(self, keys: pa.Array | None, tx_ids: pa.Array) -> Integers:
        """The partition of each row, as ``Encoder.encode`` chooses it."""
        if self._partition is not None:
            return np.full(len(tx_ids), self._partition, np.int64)
        hashed = as_binary(tx_ids) if keys is None else pc.coalesce(as_binary(keys), as_binary(tx_ids))
        return checksums(hashed) % self._count

    def _cut(
        self,
        rows: pa.Array,
        sizes: Integers,
        numbers: Integers,
        tx_ids: pa.Array,
        query_ids: pa.Array | None,
        partitions: Integers,
        given: bool,
    ) -> Iterator[TableBlock]:
        """Sorts the rows by block and partition, and makes the blocks, of about a request each."""
        before = rows
        if self._pack is not None:
            rows = self._pack(rows)
            sizes = np.diff(offsets_of(rows)).astype(np.int64)
        groups = self._groups_of(partitions)
        codes = (self._blocks_of(sizes, groups) << 32) + partitions
        order = np.argsort(codes, kind="stable")
        taken = pa.array(order)
        named: list[str] = tx_ids.take(taken).to_pylist()
        asked = named
        if query_ids is not None:
            asked = pc.coalesce(query_ids, tx_ids).take(taken).to_pylist()
        sorted_rows, where = rows.take(taken), numbers[order].tolist()
        # Digests are those of the rows before compression: see ValuePacker.pack_block.
        digested = sorted_rows if rows is before else before.take(taken)
        digests = list(map(crc32c, digested.to_pylist()))
        begin = 0
        for _, of_block in groupby(bodies(sorted_rows, codes[order]), lambda body: body[0] >> 32):
            content: dict[tuple[str, int], Column] = {}
            size = count = 0
            for code, _, lengths, body in of_block:
                txs = list(range(count, count + len(lengths)))
                content[self._topic, code & 0xFFFFFFFF] = txs, lengths, [body]
                count, size = count + len(lengths), size + len(body)
            some = slice(begin, begin + count)
            block = PrepareBlock(
                self._topic,
                -1,
                self._timeout_ms,
                0,
                named[some],
                asked[some],
                digests[some],
                content,
                size,
                given,
            )
            yield TableBlock(int(groups[order[begin]]), block, where[some])
            begin += count

    def _groups_of(self, partitions: Integers) -> Integers:
        """The broker group of each row."""
        if self._group_of is None:
            return np.zeros(len(partitions), np.int64)
        found, which = np.unique(partitions, return_inverse=True)
        groups: Integers = np.array([self._group_of(self._topic, int(p)) for p in found], np.int64)[which]
        return groups

    def _blocks_of(self, sizes: Integers, groups: Integers) -> Integers:
        """The number of each row's block; a block is in one group, and its rows follow one another there."""
        request = self._config.full_bytes
        cost = np.maximum(sizes + TX_OVERHEAD, -(-request // BLOCK_TRANSACTIONS))
        numbers: Integers = np.zeros(len(sizes), np.int64)
        first = 0
        for gid in np.unique(groups):
            here = groups == gid
            numbers[here] = first + (np.cumsum(cost[here]) - cost[here]) // request
            first = int(numbers[here].max()) + 1
        return numbers


def _sizes(values: pa.Array, keys: pa.Array | None, tx_ids: pa.Array | None) -> Integers:
    """The size of each row's message, without the ids that are yet to be made."""
    sizes = row_sizes(values, keys)
    if tx_ids is not None:
        lengths = pc.fill_null(pc.binary_length(tx_ids), -1).to_numpy(zero_copy_only=False)
        steps = (lengths >= 0) * 1 + (lengths >= 1 << 5) + (lengths >= 1 << 8)  # of the header; nil: 1 byte
        sizes = sizes + np.where(lengths < 0, 0, lengths + steps - 1)
    return sizes


def _with_ids(tx_ids: pa.Array | None, count: int, ids: Iterator[str]) -> pa.Array:
    """The id of each row, with new ones from ``ids`` where there is none."""
    if tx_ids is None:
        return pa.array(list(islice(ids, count)), pa.large_string())
    if not tx_ids.null_count:
        return tx_ids
    made = pa.array(list(islice(ids, tx_ids.null_count)), pa.large_string())
    return pc.replace_with_mask(tx_ids, tx_ids.is_null(), made)


def _marks(column: pa.Array) -> Marks:
    marks: Marks = column.to_numpy(zero_copy_only=False)
    return marks


def _doubtful(ids: pa.Array) -> Marks:
    """Ids that may be refused: no text of usual characters and length. Null is none of them."""
    lengths = pc.utf8_length(ids)
    fine = pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, NAME_CHARS_MAX))
    return ~_marks(pc.fill_null(pc.and_(fine, pc.utf8_is_printable(ids)), True))


def _texts(table: Any, name: str) -> pa.ChunkedArray:
    """A column of ids, as one type."""
    kind = pa.large_string()
    chunks = [plain(chunk) for chunk in column_of(table, name, TEXT).chunks]
    try:  # by way of bytes, so that what claims to be text is looked at
        return pa.chunked_array([chunk.cast(pa.large_binary()).cast(kind) for chunk in chunks], kind)
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"column {name!r} is not valid Unicode: {error}") from error


def _repeats(ids: pa.ChunkedArray | None) -> Marks | None:
    """The rows whose id an earlier row has, too; None if there are none."""
    if ids is None:
        return None
    different = pc.unique(ids).drop_null()
    if len(different) == len(ids) - ids.null_count:
        return None
    which = pc.fill_null(pc.index_in(ids, different), -1).to_numpy()
    repeats = np.ones(len(ids), np.bool_)
    repeats[np.unique(which, return_index=True)[1]] = False
    repeats[which < 0] = False
    return repeats
