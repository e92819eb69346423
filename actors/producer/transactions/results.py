"""The outcome of a transaction as its caller gets it, and how it follows from the brokers' answers.

Nothing here may turn "not known" into a failure: once the local transaction has run, every missing answer is
OutcomeUnknown, and the check decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.claiming import fenced
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.delayed_messages import too_many_scheduled
from escrowmq.actors.producer.encoding.encoder import TxPlan
from escrowmq.actors.producer.transactions.local_transaction import Guards, PreparedTransaction
from escrowmq.replication.errors import (
    EscrowMQError,
    GroupKindMismatch,
    InvalidMessage,
    OffsetsMoved,
    OffsetsPending,
    OutcomeUnknown,
    Overloaded,
    TooManyOpenTransactions,
    TopicRecreated,
    TransactionConflict,
    TransactionIdTaken,
    TransactionSettled,
    Unavailable,
    UnknownTopic,
    UnknownTransaction,
    decided_otherwise,
)
from escrowmq.replication.model import ResultCode, TransactionState

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


#: Suggested pause for a caller that found the limit of open transactions reached.
LIMIT_RETRY_AFTER_S = 0.5


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """``state``: COMMITTED, ROLLBACK, or UNKNOWN (left to the check).

    ``error`` is set only by ``send_transactions``, which raises nothing for a single transaction: why it
    was refused (state ROLLBACK: none of its messages will ever be read), what was recorded before, or
    OutcomeUnknown.

    ``schedule_ids``: one for each of its messages, for ``Producer.cancel``. None for a message that is not
    delayed, and for one with ``delay_s``, whose time is known only once the transaction is committed. Empty
    if none of them is delayed, or the transaction is rolled back.
    """

    tx_id: str
    state: TransactionState
    error: EscrowMQError | None = None
    schedule_ids: tuple[str | None, ...] = ()


def prepare_problem(
    tx_id: str, code: int, info: Any, *, opened: bool = False
) -> EscrowMQError | TransactionState:
    """Why a transaction was not prepared; a state if the same transaction is already settled. ``opened``: its
    home group has opened it, so another group has refused it, perhaps because it was decided meanwhile."""
    if code == ResultCode.DUPLICATE:
        return TransactionState(info)
    if code == ResultCode.TX_CONFLICT:
        return (TransactionConflict if opened else TransactionIdTaken)(tx_id, str(info))
    if code == ResultCode.TOO_MANY_OPEN:
        text = f"the limit of {info} open transactions of this app and topic is reached: settle some first"
        return TooManyOpenTransactions(text, LIMIT_RETRY_AFTER_S)
    if code == ResultCode.TOO_MANY_SCHEDULED:
        return too_many_scheduled(info)
    if code == ResultCode.UNKNOWN_TOPIC:
        return UnknownTopic(str(info[0]) if info else "?")
    if code == ResultCode.BAD_PARTITION:
        return UnknownTopic(str(info[0]), info[1])
    if code == ResultCode.OTHER_TOPIC:
        return TopicRecreated(str(info[0]))
    if code == ResultCode.UNKNOWN_TX:
        return UnknownTransaction(tx_id)
    if code in (ResultCode.OFFSETS_MOVED, ResultCode.OFFSETS_PENDING, ResultCode.GROUP_KIND):
        return _of_offsets(code, info)
    if code == ResultCode.TOO_MANY_IDS:
        text = f"the group already remembers {info} ids that applications gave, its limit; try again later"
        return Overloaded(text, LIMIT_RETRY_AFTER_S)
    if code == ResultCode.STALE:
        text = f"transaction {tx_id!r} took so long to prepare that it may be settled; send it again"
        return Unavailable(text, LIMIT_RETRY_AFTER_S)
    if code == ResultCode.FENCED:
        return fenced(f"transaction {tx_id!r}", info)
    return InvalidMessage(f"transaction {tx_id!r} was refused: {ResultCode(code).name} {info!r}")


def _of_offsets(code: int, info: Any) -> EscrowMQError:
    """Why the committed offsets of a consumer group cannot be moved."""
    if code == ResultCode.GROUP_KIND:
        return GroupKindMismatch(*info)
    group, topic, partition, *committed = info
    if code == ResultCode.OFFSETS_PENDING:
        return OffsetsPending(group, topic, partition)
    return TopicRecreated(topic) if partition < 0 else OffsetsMoved(group, topic, partition, *committed)


def prepared(plan: TxPlan, outcome: Outcome) -> EscrowMQError | TransactionState | None:
    """None: prepared, run the local transaction. Otherwise do not run it; see :func:`prepare_problem`.

    For a generated id, a missing answer is Unavailable: its rollback is on the way, and the id will never be
    used again. For a caller's own id it is OutcomeUnknown, as the transaction may be open.
    """
    if isinstance(outcome, Failure):
        return unprepared(plan.tx_id, plan.given_id, outcome)
    if not outcome:
        return None
    return prepare_problem(plan.tx_id, *outcome[0], opened=plan.home_index is not None)


def settled_before(result: TransactionResult) -> TransactionResult:
    """The ``result`` of a call that did not run its callback: the same transaction was settled before.

    If it was committed, that is the result. If it was rolled back, TransactionSettled is raised: ROLLBACK as
    a result always means that the local transaction had its turn.
    """
    if result.state is not TransactionState.COMMITTED:
        raise TransactionSettled(result.tx_id, result.state.value)
    return result


def unprepared(tx_id: str, given_id: bool, failure: Failure) -> EscrowMQError:
    """The error of a PREPARE without answer. The local transaction was not run."""
    if failure.nothing_done or given_id:
        return failure.error(tx_id)
    return Unavailable(
        f"transaction {tx_id!r} could not be prepared in time; its local transaction was not run", 1.0
    )


def decided(tx_id: str, outcome: Outcome) -> EscrowMQError | None:
    """None: the decision stands. TransactionSettled: the opposite decision does. Otherwise OutcomeUnknown."""
    if not isinstance(outcome, Failure):
        if not outcome:
            return None
        code, info = outcome[0]
        if code == ResultCode.TX_CONFLICT:
            return decided_otherwise(tx_id, str(info))
    # UNKNOWN_TX too: it was open a moment ago, so it was settled and has been forgotten since.
    return OutcomeUnknown(tx_id)


# ------------------------------------------------------------------------------------------------------------
# What became of the transactions of one table: one object for all of them, and columns for those who ask.
#
# A result for each row is made only when it is asked for. What a callback gets is of the same kind. The
# columns are Arrow arrays; there is always pyarrow here, since the transactions came from a table.

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
