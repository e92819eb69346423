"""The rows of a fence, as values: keys, outcomes, and which rows may go. Pure.

A row says which came first, for good: the local transaction (COMMITTED, written inside of it) or a check
(ROLLED_BACK). Whichever inserted the row has won, and the other one learns so from the primary key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from escrowmq.replication.model import TransactionState

#: Values of the column ``outcome``. A database keeps them for years: no number gets a second meaning.
COMMITTED, ROLLED_BACK, IDENTITY = 1, 2, 3
#: The row that says which database this is; ``tx_id`` holds a random name. No digest is all zeros.
IDENTITY_KEY = bytes(32)

#: A row is kept for as long as an instance could stand still and then go on (SEMANTICS 5.1).
KEEP_S = 7 * 86_400.0
#: Between the clocks of a service and of a broker; far above what machines with NTP differ by.
CLOCKS_DIFFER_MS = 3_600_000


def key_of(app: str, tx_id: str) -> bytes:
    """The primary key: 32 bytes. The length goes before the app, so that no two pairs share a text.

    Binary, so that no collation, length or case of a database decides what is equal.
    """
    name = app.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(name), name, tx_id.encode())).digest()


def state_of(outcome: int | None) -> TransactionState:
    """What a row means to a check; None (there is no row, or it cannot be read) is no answer."""
    if outcome == COMMITTED:
        return TransactionState.COMMITTED
    return TransactionState.ROLLBACK if outcome == ROLLED_BACK else TransactionState.UNKNOWN


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. ``created_ms``: by the clock of the service that wrote it, since the epoch."""

    key: bytes
    app: str
    created_ms: int


def before_ms(now_ms: int, keep_s: float, oldest_open_ms: int | None) -> int:
    """Rows written earlier than this may go: ``keep_s`` old, and older than the app's oldest open
    transaction.

    A row is written after its transaction was prepared. So what was written before the oldest open one was
    prepared belongs to a transaction that is settled, and is not asked for again, or to one that was prepared
    again since (``disposable``).
    """
    aged = now_ms - int(keep_s * 1000)
    return aged if oldest_open_ms is None else min(aged, oldest_open_ms - CLOCKS_DIFFER_MS)


def disposable(rows: Iterable[Row], app: str, before: int, needed: Collection[bytes]) -> list[bytes]:
    """Keys of the rows of one app that were written before ``before`` (ms since the epoch), but for those
    that are ``needed``: of what is open, however old it is."""
    old = [row.key for row in rows if row.app == app and row.created_ms < before]
    return [key for key in old if key not in needed]


def halves(keys: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Two parts of at least two keys: one of them may be without the one that is locked."""
    middle = len(keys) // 2
    return [keys[:middle], keys[middle:]]
