"""Errors of an outbox's rows and shards."""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.errors import EscrowMQError, MessageTooLarge


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
