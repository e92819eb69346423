"""Errors of what ties an application's database to the broker. All of them are ``EscrowMQError``.

A mistake in the set-up (``DatabaseMisused`` and its subclasses) is raised before the fence's or the inbox's
row is written, or in such a way that the database transaction cannot be committed with it. For a fence it
says nothing about an earlier attempt under the same id: for an id of the application's own,
``OutcomeUnknown`` takes its place if the database cannot be asked about that.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.feedback.states import AnotherTable
from escrowmq.replication.errors import EscrowMQError, MessageTooLarge, OutcomeUnknown


class FenceLost(EscrowMQError):
    """A check came first: the messages of this transaction are rolled back, so roll back the local one too.

    Inside ``fence.transaction`` both are already rolled back. Run the business again under a new transaction
    id.
    """

    def __init__(self, tx_id: str) -> None:
        super().__init__(tx_id)
        self.tx_id = tx_id

    def __str__(self) -> str:
        return (
            f"transaction {self.tx_id!r} was checked before its local transaction began, and is rolled back; "
            "roll back the local transaction and start again under a new id"
        )


class AlreadyDone(OutcomeUnknown):
    """A local transaction of this id committed before. Roll back this one, but never the messages.
    With a note, it has committed now, and its cause came after that: a hook, or another database.

    An ``OutcomeUnknown``, so that the producer's transaction is left to the check, which commits it.
    ``fence.transaction`` has already committed it when it raises this.
    """

    def __str__(self) -> str:
        return (
            f"the local transaction of {self.tx_id!r} committed before, so its messages are committed too; "
            "do not run it again"
        )


class DatabaseMisused(EscrowMQError):
    """A fence or an inbox cannot protect this call; the text says what to change. Base of the four classes
    below."""


class TableMissing(DatabaseMisused, AnotherTable):
    """The database has no table of the fence's, or of the inbox's."""


class NoDatabaseTransaction(DatabaseMisused):
    """There is no transaction that the row could share with the business's rows: the connection is in
    autocommit, or its transaction has failed, or is rolled back already, or the database has rolled back the
    one with the row while its block went on."""


class WrongDatabase(DatabaseMisused, AnotherTable):
    """The connection leads to another database than the one from which the fence answers checks. A check
    that finds this answers nothing, and waits for a producer that has the table."""


class NotPrimary(DatabaseMisused):
    """The database accepts no writes: a standby, or a read-only file."""


# ------------------------------------------------------------------------------------------------------------
# Errors of an outbox's rows and shards.


class OutboxBehind(EscrowMQError):
    """A shard of an outbox has stopped: the broker has batches that the database does not know of, e.g.
    because the database was restored from a backup. Nothing is sent from it until a person has decided.

    ``shard``: its number.
    """

    def __init__(self, shard: int, why: str) -> None:
        super().__init__(shard, why)
        self.shard, self.why = shard, why

    def __str__(self) -> str:
        return (
            f"shard {self.shard} of the outbox has stopped: {self.why}; find out with 'escrowmq outbox list' "
            f"and 'escrowmq message find' which rows are sent already, then use 'escrowmq outbox adopt'"
        )


class OutboxRowBusy(EscrowMQError):
    """Rows of an outbox are being sent now, or a person cannot change them. Nothing was done.

    ``ids``: theirs.
    """

    def __init__(self, ids: Sequence[int], why: str) -> None:
        super().__init__(ids, why)
        self.ids, self.why = tuple(ids), why

    def __str__(self) -> str:
        return f"{_rows(self.ids)}: {self.why}"


class SendTooLarge(MessageTooLarge):
    """The messages of one ``Outbox.send``, which are sent together, are larger than a transaction of the
    broker's can be. Nothing was inserted."""

    def __str__(self) -> str:
        return (
            f"the messages of this send, which are sent together, have {self.size_bytes} bytes, and a "
            f"transaction of the broker can have {self.limit_bytes}; use several calls of send, or raise "
            "producer.transaction_bytes_max for the relay and transaction_bytes_max of the Outbox"
        )


class UnknownOutboxRow(EscrowMQError):
    """An outbox has no such row: it was sent, dropped, or never there. Nothing was done. ``ids``: those that
    were asked for and are not there."""

    def __init__(self, ids: Sequence[int]) -> None:
        super().__init__(ids)
        self.ids = tuple(ids)

    def __str__(self) -> str:
        return (
            f"the outbox has no {_rows(self.ids)}: sent or dropped meanwhile; 'escrowmq outbox list' shows "
            "what is there"
        )


def _rows(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:10])) + (", ..." if len(ids) > 10 else "")
    return f"row {shown}" if len(ids) == 1 else f"rows {shown}"
