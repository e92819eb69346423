"""What a fence needs of a producer and of its transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.model import Message

#: Asks the fence's database about (tx_id, query_id), as a check does.
Ask = Callable[[list[tuple[str, str]]], Sequence[TransactionState]]


class Guard:
    """What is known of a database transaction that holds a fence's row. A producer decides by this, and not
    by the exception that reaches its block: a time-out, a group of exceptions or a wrapped one says nothing
    about what the database has done, and its transaction may still run in another thread or task."""

    __slots__ = ("ask", "known")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        #: COMMITTED or ROLLBACK, for good; None: only the database knows.
        self.known: TransactionState | None = None

    def states(self, tx_ids: Sequence[str]) -> Sequence[TransactionState]:
        """What the database says; UNKNOWN if the row is locked, or the database cannot be asked."""
        if self.known is not None:
            return [self.known] * len(tx_ids)
        try:
            return self.ask([(tx_id, "") for tx_id in tx_ids])
        except Exception:
            return [TransactionState.UNKNOWN] * len(tx_ids)


def undecided(checks: list[tuple[str, str]]) -> Sequence[TransactionState]:
    """An ``Ask`` of a fence that has not found out yet whether its table is the one that checks go to."""
    return [TransactionState.UNKNOWN] * len(checks)


class ProducedTransaction(Protocol):
    """A producer's transaction, or one of ``send_transactions``."""

    @property
    def tx_id(self) -> str:
        """Its id."""


class TransactionBlock(Protocol):
    """What ``Producer.transaction`` returns, as far as a fence needs it."""

    tx_id: str

    def send(self, *messages: Message) -> None:
        """Add messages."""

    def prepare(self) -> None:
        """Make them durable."""

    def commit(self) -> None:
        """Release them."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> Any: ...


class Producing(Protocol):
    """A producer with the blocking API."""

    @property
    def app(self) -> str:
        """Its app."""

    def transaction(
        self,
        query_id: str | None = None,
        tx_id: str | None = None,
        *,
        transaction_timeout_s: float | None = None,
    ) -> Any:
        """A transaction for a ``with`` block."""


def note_known(tx: ProducedTransaction, state: TransactionState) -> None:
    """The fence knows how the database transaction has ended that holds the row of ``tx``."""
    guard = getattr(tx, "_guard", None)
    if guard is not None:
        guard.known = state


def named_by(tx: ProducedTransaction) -> bytes:
    """The table that checks of it go to; empty: any."""
    return getattr(tx, "fence", b"")


def may_repeat(tx: ProducedTransaction) -> bool:
    """Whether another attempt, or another process, may have run this id before."""
    return bool(getattr(tx, "given_id", True))


def guard_repeated(transactions: Sequence[ProducedTransaction], ask: Ask) -> None:
    """As ``guard_all``, before anything is written: another attempt may have committed."""
    guard_all([tx for tx in transactions if may_repeat(tx)], ask)


def guard_all(transactions: Sequence[ProducedTransaction], ask: Ask) -> None:
    """Called when the rows are written and not committed: from here on none of them is decided without asking
    the database. Raises DatabaseMisused if one has ended for its producer."""
    guard = Guard(ask)
    for tx in transactions:
        guarded_by = getattr(tx, "_guarded_by", None)
        if guarded_by is not None and not guarded_by(guard):
            raise DatabaseMisused(
                f"transaction {tx.tx_id!r} has ended for its producer (a time-out around the local "
                "transaction, or a block that it has outlived): roll the database transaction back"
            )


def refuse_unprepared(*transactions: ProducedTransaction) -> None:
    """Raises DatabaseMisused for a transaction whose messages the broker has not accepted yet."""
    for tx in transactions:
        if not getattr(tx, "prepared", True):
            raise DatabaseMisused(
                f"transaction {tx.tx_id!r} is not prepared, or has ended for its producer: call tx.prepare() "
                "first, and the fence before the end of the producer's block, or the database could commit "
                "what the broker has not accepted, or has rolled back"
            )
