"""``send_transactions_table``: a batch whose transactions are the rows of a table.

It is a run of ``send_transactions`` whose blocks are made from columns (transaction_rows.py), so everything
that happens to a block (limits, retries, failures, checks) is the same. Rows that are not like the others are
added one by one, as items of a list are, so what is said of them is the same as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from escrowmq.actors.producer.bulk.bulk import BulkRun, carry_out, decisions_of
from escrowmq.actors.producer.bulk.bulk_blocks import BlockUnit
from escrowmq.actors.producer.bulk.transaction_rows import Chunk, TransactionRows
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.encoder import check_id, check_query_id
from escrowmq.actors.producer.encoding.many import Delivery, check_topic
from escrowmq.actors.producer.encoding.table_rows import Integers, times_of_table
from escrowmq.actors.producer.transactions.local_transaction import (
    PreparedTransaction,
    TransactionColumns,
    decision_of,
)
from escrowmq.actors.producer.transactions.results import (
    CODES,
    COMMITTED,
    STATES,
    PreparedTransactions,
    TransactionResult,
    TransactionResults,
)
from escrowmq.actors.producer.transactions.transaction_base import timeout_ms
from escrowmq.replication.delivery_times import AT_ONCE, given_by
from escrowmq.replication.errors import (
    EscrowMQError,
    InvalidDecision,
    InvalidMessage,
    MessageTooLarge,
    TransactionRunning,
)
from escrowmq.replication.model import Message, TransactionState

Codes = NDArray[np.int8]
#: Called with all prepared transactions; returns one decision for all, or a column with one for each.
LocalTable = Callable[[PreparedTransactions], Any]
#: What such a callback may return besides, for the check of its type.
COLUMNS_OF_DECISIONS: tuple[object, ...] = (
    np.zeros(0, np.bool_),
    pa.array([], pa.bool_()),
    pa.chunked_array([], pa.bool_()),
)


def send_transactions_table(
    core: ProducerCore,
    topic: str,
    table: Any,
    columns: TransactionColumns,
    partition: int | None,
    local: LocalTable | None,
    transaction_timeout_s: float | None,
    delivery: Delivery,
) -> TransactionResults:
    """See ``Producer.send_transactions_table``."""
    ms = timeout_ms(transaction_timeout_s, core.config.transaction_timeout_s)
    partitions = core.encoder.partitions(check_topic(topic))
    group_of = None if core.info.groups == 1 else core.encoder.group_of
    rows = TransactionRows(
        core.config, topic, partitions, group_of, table, columns, partition, ms, core.encoder.pack_column
    )
    times = times_of_table(core.delays, table, delivery, len(rows))
    run = _TableRun(core, ms, topic, rows, partition, times, pipelined=local is None)
    carry_out(run, run.add_all, local)
    return run.columns()


class _TableRun(BulkRun):
    """One call, as BulkRun."""

    def __init__(
        self,
        core: ProducerCore,
        ms: int,
        topic: str,
        rows: TransactionRows,
        partition: int | None,
        times: list[int] | None,
        *,
        pipelined: bool,
    ) -> None:
        super().__init__(core, ms, pipelined=pipelined)
        self._topic, self._rows, self._partition, self._times = topic, rows, partition, times
        self._codes: Codes = np.full(len(rows), COMMITTED, np.int8)

    # ------------------------------------------------------------ adding

    def add_all(self) -> None:
        """Encodes all rows, and sends their blocks."""
        for chunk in self._rows.chunks():
            if self._times is not None:
                chunk.odd[:] |= np.array(self._times[chunk.start : chunk.start + len(chunk.odd)]) != AT_ONCE
            self._hold_all(chunk)
            for block in self._rows.blocks(chunk, self._core.ids):
                if isinstance(block, list):
                    chunk.odd[np.array(block) - chunk.start] = True
                else:
                    self._send(BlockUnit(self._core, block.gid, block.block, block.rows, self._given))
            for at in np.flatnonzero(chunk.odd).tolist():
                self._add_odd(chunk, at)

    def _hold_all(self, chunk: Chunk) -> None:
        """As ``_hold``, for the given ids of a chunk. Rows whose id is running elsewhere become odd."""
        given = chunk.given()
        taken = self._core.running.taken_of(given, begin=not self._pipelined)
        self._given.update(given)
        if taken:
            self._given.difference_update(taken)
            chunk.odd[:] |= pc.is_in(chunk.tx_ids, pa.array(list(taken), pa.large_string())).to_numpy(
                zero_copy_only=False
            )

    def _add_odd(self, chunk: Chunk, at: int) -> None:
        """Adds one row as an item of a list."""
        index = chunk.start + at
        given, query_id = chunk.cell(chunk.tx_ids, at), chunk.cell(chunk.query_ids, at)
        if not chunk.values[at].is_valid:
            null = InvalidMessage("its value is null, but a message's value must be bytes")
            self._refuse(index, given, query_id, null)
            return
        if chunk.large[at]:
            size, limit = self._rows.size_of(chunk, at), self._core.config.message_bytes_max
            self._refuse(index, given, query_id, MessageTooLarge(size, limit))
            return
        key = chunk.cell(chunk.keys, at)
        value = chunk.cell(chunk.values, at)
        message = Message(
            self._topic,
            _bytes(value),
            None if key is None else _bytes(key),
            partition=self._partition,
            **given_by(AT_ONCE if self._times is None else self._times[index]),
        )
        self.add(index, (message, query_id, given))

    def _refuse(self, index: int, given: str | None, query_id: str | None, error: EscrowMQError) -> None:
        """A row that cannot be sent; what is wrong with its ids comes first, as in ``add``."""
        tx_id, state = "", TransactionState.ROLLBACK
        try:
            if given is None:
                tx_id = next(self._core.ids)
            else:
                tx_id = check_id(given)
                self._hold(tx_id)
            if query_id is not None:
                check_query_id(query_id)
        except TransactionRunning as running:
            error, state = running, TransactionState.UNKNOWN
        except InvalidMessage as wrong:
            error = wrong
        self._failed.append((index, TransactionResult(tx_id, state, error)))

    # ------------------------------------------------------------ deciding

    def opened(self) -> Sequence[PreparedTransaction]:
        """See BulkRun."""
        rows: list[Integers] = []
        tx_ids: list[str] = []
        query_ids: list[str] = []
        for unit in self._units:
            chosen = unit.still_open()
            rows.append(_of(unit.indexes)[_of(chosen)])
            if len(chosen) == len(unit.tx_ids):
                tx_ids += unit.tx_ids
                query_ids += unit.query_ids
            else:
                tx_ids += map(unit.tx_ids.__getitem__, chosen)
                query_ids += map(unit.query_ids.__getitem__, chosen)
        indexes = np.concatenate(rows) if rows else _of([])
        order = np.argsort(indexes)
        listed = order.tolist()
        return PreparedTransactions(
            indexes[order],
            list(map(tx_ids.__getitem__, listed)),
            list(map(query_ids.__getitem__, listed)),
            self.guards,
        )

    def take_decisions(self, opened: Sequence[PreparedTransaction], returned: Any) -> None:
        """See BulkRun."""
        assert isinstance(opened, PreparedTransactions)
        self._carry_out(opened, _codes_of(returned, len(opened)))

    def decide_all(self, opened: Sequence[PreparedTransaction], decision: TransactionState) -> None:
        """See BulkRun."""
        assert isinstance(opened, PreparedTransactions)
        self._carry_out(opened, np.full(len(opened), CODES[decision], np.int8))

    def _carry_out(self, opened: PreparedTransactions, codes: Codes) -> None:
        for at, state in opened.differing(self.guards, codes).items():
            codes[at] = CODES[state]
        self._codes[opened.indexes.to_numpy()] = codes
        for unit in self._units:
            chosen = _of(unit.still_open())
            wanted = self._codes[_of(unit.indexes)[chosen]]
            self._send_decisions(
                unit, {STATES[code]: chosen[wanted == code].tolist() for code in np.unique(wanted)}
            )
        self.wait()

    # ------------------------------------------------------------ results

    def columns(self) -> TransactionResults:
        """All results, by row."""
        errors: dict[int, EscrowMQError] = {}
        tx_ids = np.full(len(self._codes), "", object)
        told: list[tuple[int, TransactionResult]] = list(self._failed)
        for unit in self._units:
            tx_ids[unit.indexes] = np.array(unit.tx_ids, object)
            told += ((unit.indexes[i], result) for i, result in unit.exceptions.items())
        for row, result in told:
            tx_ids[row] = result.tx_id
            self._codes[row] = CODES[result.state]
            if result.error is not None:
                errors[row] = result.error
        named = tx_ids.tolist()
        ids = {row: self._schedule_ids(row, named[row], STATES[self._codes[row]]) for row in self._delayed}
        return TransactionResults(self._codes, named, dict(sorted(errors.items())), ids)


def _codes_of(returned: Any, count: int) -> Codes:
    """What a callback's return value decides for each of ``count``. Raises InvalidDecision."""
    column = _column_of(returned)
    if column is None:
        decided = decisions_of(returned, count)
        return np.fromiter(map(CODES.__getitem__, decided), np.int8, count)
    if len(column) != count:
        decisions_of([True] * len(column), count)  # it raises
    if pa.types.is_boolean(column.type):
        column = pc.if_else(column, "COMMITTED", "ROLLBACK")
    names = pa.array([state.value for state in STATES])
    try:
        codes = pc.index_in(column.cast(pa.string()), names)
    except pa.ArrowException:
        codes = pa.nulls(len(column), pa.int32())
    if codes.null_count:
        wrong = column[int(np.argmax(codes.is_null().to_numpy(zero_copy_only=False)))].as_py()
        raise InvalidDecision(
            f"the callback returned a column of decisions with {wrong!r:.80}; the check decides these: "
            f"return True or False, or {', '.join(state.value for state in STATES)}, for each"
        )
    found: Codes = codes.to_numpy(zero_copy_only=False).astype(np.int8)
    return found


def _column_of(returned: Any) -> pa.Array | None:
    """A returned column as Arrow; None if it is none."""
    if isinstance(returned, pa.ChunkedArray):
        return returned.combine_chunks()
    if not isinstance(returned, pa.Array) and not (hasattr(returned, "__array__") and np.ndim(returned) == 1):
        return None
    try:
        return pa.array(returned, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):  # of states, say
        return pa.array([decision_of(each).value for each in returned], pa.string())


def _of(numbers: Sequence[int]) -> Integers:
    found: Integers = np.fromiter(numbers, np.int64, len(numbers))
    return found


def _bytes(cell: str | bytes) -> bytes:
    return cell.encode() if isinstance(cell, str) else cell
