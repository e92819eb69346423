"""Comparing the fence's rows with the broker's record: the comparison that a reconciliation job would make.

Both sides are read while the system is running. A transaction's row and the broker's record may differ as
long as it is open, so only what the broker has decided counts as a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from escrowmq.feedback.database import rows
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.statements import Statements
from escrowmq.replication.model import TransactionState


class TransactionStates(Protocol):
    """What an audit needs from ``cluster.admin``."""

    def transaction_states(self, app: str, tx_ids: Sequence[str]) -> list[TransactionState]:
        """What the broker has recorded for each; UNKNOWN: nothing, or no longer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A transaction on which database and broker permanently disagree."""

    tx_id: str
    database: TransactionState
    broker: TransactionState


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit found. ``read``: rows. ``open``: not decided yet. ``forgotten``: committed rows of which
    the broker knows nothing (any more: it remembers the last 500,000 outcomes)."""

    read: int
    open: int
    forgotten: int
    differences: tuple[Difference, ...]


def audit(
    link: Link, statements: Statements, app: str, admin: TransactionStates, since_ms: int, slice_rows: int
) -> Audited:
    """One pass over the rows of the app that were written since ``since_ms`` (ms since the epoch)."""
    after, read, opened, forgotten = rows.IDENTITY_KEY, 0, 0, 0
    differences: list[Difference] = []
    while True:
        values = {"after": after, "app": app.encode(), "since": since_ms, "most": slice_rows}
        found = link.rows(statements.since, values)
        link.commit()
        ids = [bytes(tx_id).decode() for _, tx_id, _ in found]
        told = admin.transaction_states(app, ids) if ids else []
        for tx_id, (_, _, outcome), broker in zip(ids, found, told, strict=True):
            database = rows.state_of(int(outcome))
            if broker is TransactionState.PREPARE:
                opened += 1
            elif broker is TransactionState.UNKNOWN:
                forgotten += database is TransactionState.COMMITTED
            elif broker is not database:
                differences.append(Difference(tx_id, database, broker))
        read += len(found)
        if len(found) < slice_rows:
            return Audited(read, opened, forgotten, tuple(differences))
        after = bytes(found[-1][0])
