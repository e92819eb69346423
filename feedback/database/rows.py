"""The rows of a fence, as values: keys, outcomes, and which rows may be removed. Pure.

A row says which came first, for good: the local transaction (COMMITTED, written inside it) or a check
(ROLLED_BACK). The one that inserted the row has won, and the other learns so from the primary key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from escrowmq.replication.model import TransactionState

#: Values of the column ``outcome``. Databases keep them for years: no number is ever reused.
COMMITTED, ROLLED_BACK, IDENTITY = 1, 2, 3
#: The row that says which database this is; ``tx_id`` holds a random name. No digest is all zeros.
IDENTITY_KEY = bytes(32)

#: A row is kept for as long as an instance could be paused and then continue (SEMANTICS 5.1).
KEEP_S = 7 * 86_400.0
#: Maximum difference between the clocks of a service and of a broker; far more than machines with NTP differ
#: by.
CLOCKS_DIFFER_MS = 3_600_000


def key_of(app: str, tx_id: str) -> bytes:
    """The primary key: 32 bytes. The length precedes the app, so that no two pairs have the same text.

    Binary, so that equality does not depend on a database's collation, length or case.
    """
    name = app.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(name), name, tx_id.encode())).digest()


def short_name(identity: bytes) -> bytes:
    """The 16 bytes by which a broker knows the table of this name."""
    try:
        name = bytes.fromhex(identity.decode())
    except ValueError:
        name = b""
    return name if len(name) == 16 else hashlib.sha256(identity).digest()[:16]


def state_of(outcome: int | None) -> TransactionState:
    """What a row means to a check; None (there is no row, or it cannot be read) is not an answer."""
    if outcome == COMMITTED:
        return TransactionState.COMMITTED
    return TransactionState.ROLLBACK if outcome == ROLLED_BACK else TransactionState.UNKNOWN


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. ``created_ms``: since the epoch, by the clock of the service that wrote it."""

    key: bytes
    app: str
    created_ms: int


def before_ms(now_ms: int, keep_s: float, oldest_open_ms: int | None) -> int:
    """Rows written earlier than this may be removed: ``keep_s`` old, and older than the app's oldest open
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
    """Two halves of at least two keys: one of them may not contain the locked one."""
    middle = len(keys) // 2
    return [keys[:middle], keys[middle:]]
