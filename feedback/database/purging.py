"""Removing old rows in slices: each reads and removes at most so many, and holds no lock on any other.

The table is walked once by its key. There is no index on the time: it would cost every local transaction,
for a walk that one needs once a day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from escrowmq.feedback.database import rows
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.statements import Statements
from escrowmq.replication.model import OpenTransaction


class OpenTransactions(Protocol):
    """What a purge needs of ``cluster.admin``."""

    def list_transactions(self, *, app: str | None = None) -> Iterable[OpenTransaction]:
        """Those that are open."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did. ``before_ms``: rows written before it went, in ms since the epoch."""

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
    """One walk over the table."""
    oldest = min((tx.prepared_ms for tx in admin.list_transactions(app=app)), default=None)
    before = rows.before_ms(now_ms, keep_s, oldest)
    after, removed, read = rows.IDENTITY_KEY, 0, 0
    while True:
        found = [
            rows.Row(bytes(key), bytes(of).decode(), int(created_ms))
            for key, of, created_ms in link.rows(statements.slice, {"after": after, "most": slice_rows})
        ]
        link.commit()
        keys = rows.disposable(found, app, before)
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
