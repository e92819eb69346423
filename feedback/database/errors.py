"""Errors of what ties an application's database to the broker. All of them are ``EscrowMQError``.

A mistake in the set-up (``DatabaseMisused`` and its subclasses) is raised before the fence's or the inbox's
row is written, or in such a way that the database transaction cannot be committed with it. For a fence it
says nothing about an earlier attempt under the same id: for an id of the application's own,
``OutcomeUnknown`` takes its place if the database cannot be asked about that.
"""

from __future__ import annotations

from escrowmq.feedback.states import AnotherTable
from escrowmq.replication.errors import EscrowMQError, OutcomeUnknown


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
