"""Whether the row that a fence or an inbox has written is still part of the transaction, just before its end.

MariaDB rolls back the whole transaction at a deadlock, SQLite at INSERT OR ROLLBACK or a full disk, and
everywhere the application can do so itself (a loop that calls ``rollback()`` and tries again). Its next
statement begins another transaction, and no driver tells. Committed, that one would keep the second half of
the business without the first, and without the row.
"""

from __future__ import annotations

from escrowmq.feedback.database.errors import NoDatabaseTransaction
from escrowmq.feedback.database.links import Link


def refuse_another_transaction(
    link: Link, owner: str, sql: str, key: bytes, written: tuple[int, ...]
) -> None:
    """Raises NoDatabaseTransaction if the row of ``key`` does not begin with what was ``written``: it is not
    there, or a check or another attempt has written one since. ``owner``: "fence" or "inbox"."""
    found = link.rows(sql, {"key": key})
    if not found or tuple(found[0])[: len(written)] != written:
        raise NoDatabaseTransaction(
            f"the {owner}'s row is not in this transaction any more: the block has called rollback(), or at "
            "a statement that failed (a deadlock of MariaDB, INSERT OR ROLLBACK or a full disk of SQLite) "
            "the database has undone everything, and what followed was another transaction, which must be "
            "rolled back too (a connection in autocommit has committed it already: look at its rows). Do not "
            "catch such an error inside the block; run the business again"
        )
