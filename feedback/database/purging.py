"""Removing old rows in slices: each reads and removes a limited number, and holds no lock on any other.

The table is read once in order of its key. There is no index on the time: it would cost every local
transaction, for a pass that is needed once a day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from escrowmq.feedback.database import statements as rows
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.statements import Statements
from escrowmq.replication.model import OpenTransaction, TransactionState

#: Open transactions that are asked for: as many as are listed at most. With more, nothing is removed.
OPEN_MAX = 100_000


class OpenTransactions(Protocol):
    """What a purge needs from ``cluster.admin``."""

    def list_transactions(self, *, app: str | None = None, limit: int = 1000) -> Iterable[OpenTransaction]:
        """Those that are open, ``limit`` at most."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did. ``before_ms``: rows written before that were removed, in ms since the epoch."""

    removed: int
    read: int
    before_ms: int


def purge(
    link: Link,
    statements: Statements,
    app: str,
    admin: OpenTransactions,
    now_ms: int,
    keep_s: float,
    slice_rows: int,
    pause_s: float,
    told: Callable[[Purged], None] = lambda so_far: None,
) -> Purged:
    """One pass over the table."""
    opened = list(admin.list_transactions(app=app, limit=OPEN_MAX))
    before = rows.before_ms(now_ms, keep_s, min((tx.prepared_ms for tx in opened), default=None))
    # One that was prepared again has the time of that, and may have a row of its first run.
    needed = frozenset(rows.key_of(app, tx.tx_id) for tx in opened)
    if len(opened) >= OPEN_MAX:
        before = 0  # what is not in the list may be older
    after, removed, read = rows.IDENTITY_KEY, 0, 0
    while True:
        found = [
            rows.Row(bytes(key), bytes(of).decode(), int(created_ms))
            for key, of, created_ms in link.rows(statements.slice, {"after": after, "most": slice_rows})
        ]
        link.commit()
        keys = rows.disposable(found, app, before, needed)
        if keys:
            link.run(*statements.remove(keys))
            link.commit()
        read, removed = read + len(found), removed + len(keys)
        so_far = Purged(removed, read, before)
        if len(found) < slice_rows:
            return so_far
        told(so_far)
        after = found[-1].key
        time.sleep(pause_s)


# ------------------------------------------------------------------------------------------------------------
# Comparing the fence's rows with the broker's record: the comparison that a reconciliation job would make.
#
# Both sides are read while the system is running. A transaction's row and the broker's record may differ as
# long as it is open, so only what the broker has decided counts as a difference.


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
