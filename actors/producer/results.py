"""The outcome of a transaction as its caller gets it, and how it follows from the brokers' answers.

Nothing here may turn "not known" into a failure: once the local transaction has run, every missing answer is
OutcomeUnknown, and the check decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.blocks import Outcome
from escrowmq.actors.producer.claiming import fenced
from escrowmq.actors.producer.delayed_messages import too_many_scheduled
from escrowmq.actors.producer.encoder import TxPlan
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
        return _of_places(code, info)
    if code == ResultCode.TOO_MANY_IDS:
        text = f"the group already remembers {info} ids that applications gave, its limit; try again later"
        return Overloaded(text, LIMIT_RETRY_AFTER_S)
    if code == ResultCode.STALE:
        text = f"transaction {tx_id!r} took so long to prepare that it may be settled; send it again"
        return Unavailable(text, LIMIT_RETRY_AFTER_S)
    if code == ResultCode.FENCED:
        return fenced(f"transaction {tx_id!r}", info)
    if code == ResultCode.MALFORMED:  # home accepted it at level 1, and a branch's group is now at level 3
        text = f"transaction {tx_id!r} began while the cluster raised its format level, and was rolled back"
        return Unavailable(text, LIMIT_RETRY_AFTER_S)
    return InvalidMessage(f"transaction {tx_id!r} was refused: {ResultCode(code).name} {info!r}")


def _of_places(code: int, info: Any) -> EscrowMQError:
    """Why the places of a consumer group cannot be moved."""
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
