"""What a relay sends next, and what becomes of rows that the broker refuses. Pure.

Whole groups go, in the order of their first row. A group that waits holds back every later one that has a
message of the same order key; those hold back others in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from escrowmq.feedback.database.outbox_rows import DEAD, PENDING, OutboxRow

#: Rows of one batch: larger ones hardly send more per second, and a refused one is taken apart.
ROWS_MAX = 500
#: Bytes of one batch, below the broker's limit of 16 MiB for a transaction with its headers.
BYTES_MAX = 8 << 20
#: After so many attempts a row is dead. With the pauses below, that is after an hour and a half.
ATTEMPTS_MAX = 16
PAUSE_MIN_MS, PAUSE_MAX_MS = 1_000, 600_000


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a refused row."""

    id: int
    attempts: int
    next_ms: int
    state: int


def pick(rows: Sequence[OutboxRow], now_ms: int, *, all_seen: bool) -> list[OutboxRow]:
    """The rows of the next batch, in order.

    ``rows``: pending ones in no batch, in order of their id. ``all_seen``: there are no others; otherwise a
    group of which rows are missing continues behind them. A group that has been refused goes alone, so that
    it takes no other with it.
    """
    chosen: list[OutboxRow] = []
    size, waiting = 0, set[bytes]()
    for group in _groups(rows):
        keys = {row.order_key for row in group if row.order_key is not None}
        tried = any(row.attempts for row in group)
        ready = all_seen or len(group) >= group[0].group_rows
        ready = ready and not (keys & waiting) and all(row.next_ms <= now_ms for row in group)
        if not ready or (tried and chosen):
            waiting |= keys
            continue
        size += sum(row.size or len(row.content) for row in group)
        if chosen and (len(chosen) + len(group) > ROWS_MAX or size > BYTES_MAX):
            break
        chosen += group
        if tried:
            break
    return sorted(chosen, key=lambda row: row.id)


def refused(rows: Sequence[OutboxRow], now_ms: int, *, hopeless: bool = False) -> list[Change]:
    """After the broker has refused a batch for good. Several groups are tried again at once, each alone:
    which of them was refused is not known. One group waits, longer each time, and is dead in the end;
    ``hopeless``: at once."""
    if len({row.group for row in rows}) > 1:
        return [Change(row.id, max(row.attempts, 1), now_ms, PENDING) for row in rows]
    changes = []
    for row in rows:
        attempts = row.attempts + 1
        state = DEAD if hopeless or attempts >= ATTEMPTS_MAX else PENDING
        changes.append(Change(row.id, attempts, now_ms + pause_ms(attempts), state))
    return changes


def pause_ms(attempts: int) -> int:
    """The pause after so many attempts: it doubles, up to ten minutes."""
    return min(PAUSE_MIN_MS << min(max(attempts - 1, 0), 20), PAUSE_MAX_MS)


def _groups(rows: Iterable[OutboxRow]) -> list[list[OutboxRow]]:
    """By group, in the order of their first rows."""
    found: dict[bytes, list[OutboxRow]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return list(found.values())
