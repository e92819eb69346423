"""Bounds and name checks that both ends need: clients, to refuse what no broker would take; brokers, to
refuse it.

Lies below all rooms. A bound of one operation alone stands beside that operation (``format/ops.py`` and its
neighbours).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

#: Clients' numbers are later added to others: sums must stay within what snapshots can hold.
NUMBER_MAX: Final = (1 << 53) - 1
#: Characters of a name: an app, a transaction's id, a producer, a consumer group, a person.
NAME_CHARS_MAX: Final = 512
#: And of the name of a claim, which others are derived from.
CLAIM_NAME_CHARS_MAX: Final = 500
IDS_PER_OPERATION_MAX: Final = 20_000
#: A transaction, or a message with a delay, may wait for ten years.
TIMEOUT_MS_MAX: Final = 10 * 366 * 86_400_000
#: Committed offsets of consumer groups that one transaction moves: about a megabyte of memory while it is
#: open.
MOVED_OFFSETS_MAX: Final = 10_000
GROUPS_MAX: Final = 1 << 16
#: Branch groups of one transaction.
PARTICIPANTS_MAX: Final = 64
#: Term and counter of a coordinator, 32 bits each at most.
GENERATION_MAX: Final = (1 << 63) - 1
#: Ranges or offsets of one operation of a share group.
RANGES_MAX: Final = 20_000
#: Offsets of one NACK: each may need a row to be read.
NACKED_MAX: Final = 1_000
#: Characters of a NACK's reason. In the copy it is cut to ``REASON_BYTES_MAX`` bytes.
REASON_CHARS_MAX: Final = 65_536
#: Unicode categories of characters that would break the lines of a log or a table.
_CONTROL = frozenset(("Cc", "Zl", "Zp"))


def has_control_characters(name: str) -> bool:
    """Whether a name has control characters. Clients refuse such names for new things; existing ones stay."""
    return not name.isprintable() and any(unicodedata.category(c) in _CONTROL for c in name)


def name_problem(what: str, name: str) -> str | None:
    """What is wrong with the length of a name, or None."""
    if not 0 < len(name) <= NAME_CHARS_MAX:
        return f"{what} must have 1 to {NAME_CHARS_MAX} characters"
    return None


def ids_problem(app: str, tx_ids: Sequence[str]) -> str | None:
    """What is wrong with the ids of an operation's transactions, or with their app; or None."""
    if not tx_ids or len(tx_ids) > IDS_PER_OPERATION_MAX:
        return f"1 to {IDS_PER_OPERATION_MAX} transaction ids per operation, not {len(tx_ids)}"
    longest = max(map(len, tx_ids))
    if longest > NAME_CHARS_MAX or not all(tx_ids):
        return f"a transaction id has 1 to {NAME_CHARS_MAX} characters"
    return name_problem("app", app)
