"""Whether the database keeps what it has committed when the power fails, as far as it tells.

A fence, an inbox and an outbox promise that rows and messages agree. A database that forgets its last commits
has lost the rows of messages that are sent. So whoever creates a table is told; nothing is refused, since a
test or a cache may want exactly that.
"""

from __future__ import annotations

import logging

from escrowmq.feedback.database.errors import NoDatabaseTransaction
from escrowmq.feedback.database.links import Link

log = logging.getLogger(__name__)

_OFF, _FULL = 0, 2  # of SQLite's ``synchronous``; 1 is NORMAL


def warn_of_lost_commits(link: Link, owner: str, table: str) -> None:
    """Log what makes this connection's commits get lost with the power. ``owner``: "fence" and so on."""
    if why := loses_commits(link, table):
        log.warning(
            "%s: %s, so its last commits are lost if the power fails, and with them the rows of messages "
            "that are sent (see 'Requirements of the fence' in the guide)",
            owner,
            why,
        )


def loses_commits(link: Link, table: str) -> str:
    """Why; empty: it does not, or does not tell."""
    if link.dialect == "sqlite":
        return _of_sqlite(link, table.rpartition(".")[0] or "main")
    if link.dialect == "postgresql":
        ((commit, fsync),) = link.rows(
            "SELECT current_setting('synchronous_commit'), current_setting('fsync')"
        )
        if fsync == "off":
            return "PostgreSQL runs with fsync=off"
        return "PostgreSQL's synchronous_commit is off here" if commit == "off" else ""
    ((flush,),) = link.rows("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")
    return "" if int(flush) == 1 else f"innodb_flush_log_at_trx_commit is {flush}, not 1"


def _of_sqlite(link: Link, schema: str) -> str:
    """``synchronous`` belongs to the connection: this one is made as the application's are."""
    ((mode,),) = link.rows(f"PRAGMA {schema}.journal_mode")
    ((level,),) = link.rows(f"PRAGMA {schema}.synchronous")
    if int(level) == _OFF:
        return "SQLite's synchronous is OFF (use FULL)"
    if str(mode).lower() == "wal" and int(level) < _FULL:
        return "SQLite's journal_mode is WAL with synchronous=NORMAL (use FULL)"
    return ""


# ------------------------------------------------------------------------------------------------------------
# Whether the row that a fence or an inbox has written is still part of the transaction, just before its end.
#
# MariaDB rolls back the whole transaction at a deadlock, SQLite at INSERT OR ROLLBACK or a full disk, and
# everywhere the application can do so itself (a loop that calls ``rollback()`` and tries again). Its next
# statement begins another transaction, and no driver tells. Committed, that one would keep the second half of
# the business without the first, and without the row.


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
            "call rollback() or catch such an error inside the block; run the business again"
        )
