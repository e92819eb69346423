"""What became of the transactions of one table: one object for all of them, and columns for those who ask.

A result for each row is made only when it is asked for. What a callback gets is of the same kind. The columns
are Arrow arrays; there is always pyarrow here, since the transactions came from a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from escrowmq.actors.producer.bulk_requests import PreparedTransaction
from escrowmq.actors.producer.local_transaction import Guards
from escrowmq.actors.producer.results import TransactionResult
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.model import TransactionState

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

#: States of results by their number in a column.
STATES = (TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
CODES = {state: code for code, state in enumerate(STATES)}
COMMITTED = CODES[TransactionState.COMMITTED]


class PreparedTransactions(Sequence[PreparedTransaction]):
    """The prepared transactions of a table, for its callback. ``prepared[i]`` is one of them.

    ``indexes``, ``tx_ids`` and ``query_ids`` are Arrow arrays: ``orders.take(prepared.indexes)`` are their
    rows.
    """

    def __init__(
        self,
        indexes: NDArray[np.int64],
        tx_ids: list[str],
        query_ids: list[str],
        guards: Guards | None = None,
    ) -> None:
        self._indexes, self._tx_ids, self._query_ids, self._guards = indexes, tx_ids, query_ids, guards

    def __len__(self) -> int:
        return len(self._tx_ids)

    @overload
    def __getitem__(self, at: int) -> PreparedTransaction: ...
    @overload
    def __getitem__(self, at: slice) -> list[PreparedTransaction]: ...
    def __getitem__(self, at: int | slice) -> PreparedTransaction | list[PreparedTransaction]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return PreparedTransaction(
            self._tx_ids[at], self._query_ids[at], int(self._indexes[at]), self._guards
        )

    def __repr__(self) -> str:
        return f"<PreparedTransactions: {len(self)}>"

    def differing(self, guards: Guards, codes: Any) -> dict[int, TransactionState]:
        """See ``Guards.differing``; ``codes``: the decisions."""
        return guards.differing(self._tx_ids, lambda at: STATES[codes[at]])

    @property
    def indexes(self) -> pa.Array:
        """The row of each in the table, in ascending order."""
        return _arrow().array(self._indexes)

    @property
    def tx_ids(self) -> pa.Array:
        """The transaction id of each."""
        return _text(self._tx_ids)

    @property
    def query_ids(self) -> pa.Array:
        """The query id of each."""
        return _text(self._query_ids)


class TransactionResults(Sequence[TransactionResult]):
    """What became of each transaction of one ``send_transactions_table``, by row.

    ``results[row]`` is one row's TransactionResult. ``states``, ``tx_ids`` and ``schedule_ids`` are Arrow
    arrays; ``errors`` has the rows with an error.
    """

    def __init__(
        self,
        codes: NDArray[np.int8],
        tx_ids: Sequence[str],
        errors: Mapping[int, EscrowMQError],
        schedule_ids: Mapping[int, tuple[str | None, ...]],
    ) -> None:
        """``codes``: numbers of ``STATES``. ``schedule_ids``: of the rows that are delayed."""
        self._codes, self._tx_ids, self._errors, self._ids = codes, tx_ids, errors, schedule_ids

    def __len__(self) -> int:
        return len(self._codes)

    @overload
    def __getitem__(self, row: int) -> TransactionResult: ...
    @overload
    def __getitem__(self, row: slice) -> list[TransactionResult]: ...
    def __getitem__(self, row: int | slice) -> TransactionResult | list[TransactionResult]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        state, at = STATES[self._codes[row]], row % len(self)
        return TransactionResult(self._tx_ids[row], state, self._errors.get(at), self._ids.get(at, ()))

    def __repr__(self) -> str:
        return f"<TransactionResults: {self.committed} of {len(self)} committed>"

    @property
    def committed(self) -> int:
        """How many rows are committed."""
        return int((self._codes == COMMITTED).sum())

    @property
    def states(self) -> pa.DictionaryArray:
        """``"COMMITTED"``, ``"ROLLBACK"`` or ``"UNKNOWN"`` for each row; see TransactionResult."""
        arrow = _arrow()
        names = arrow.array([state.value for state in STATES])
        return arrow.DictionaryArray.from_arrays(arrow.array(self._codes), names)

    @property
    def tx_ids(self) -> pa.Array:
        """The transaction id of each row; empty where its own id was refused."""
        return _text(self._tx_ids)

    @property
    def schedule_ids(self) -> pa.Array:
        """For ``Producer.cancel``, text. Null for a row that is not delayed or was rolled back, and for one
        with ``delay_s``: see TransactionResult."""
        ids: list[str | None] = [None] * len(self)
        for row, of_row in self._ids.items():
            ids[row] = of_row[0] if of_row else None
        return _text(ids)

    @property
    def errors(self) -> dict[int, EscrowMQError]:
        """The error of each row that has one: why it was refused, or OutcomeUnknown."""
        return dict(self._errors)


def _text(column: Any) -> pa.Array:
    arrow = _arrow()
    return arrow.array(column, arrow.large_string())


def _arrow() -> Any:
    import pyarrow

    return pyarrow
