"""What a fence needs of a producer and of its transactions."""

from __future__ import annotations

from typing import Any, Protocol

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.replication.model import Message


class Transaction(Protocol):
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


def refuse_unprepared(*transactions: Transaction) -> None:
    """Raises DatabaseMisused for a transaction whose messages the broker has not accepted yet."""
    for tx in transactions:
        if not getattr(tx, "prepared", True):
            raise DatabaseMisused(
                f"transaction {tx.tx_id!r} is not prepared: call tx.prepare() first, or the database "
                "could commit messages that were never accepted"
            )
