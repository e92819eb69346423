"""A check's statements: write "rolled back" where there is no row yet, then read which row exists.

An outcome that a check reports has been committed before, by another transaction or by the check itself. What
it has only read may be on this server alone: a primary that was killed while a commit waited for its standby
comes back with that row. So it writes something too, whose commit waits as any other does, and answers then.

It looks first whether this is the database that it is asked about, on the connection on which it answers. It
waits for rows that a local transaction has written and not yet committed, up to a limit; after that the
answer is UNKNOWN, which is repeated later.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence

from escrowmq.feedback.database import rows
from escrowmq.feedback.database.errors import WrongDatabase
from escrowmq.feedback.database.failures import Failure, failure_of
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.statements import KEYS_MAX, Statements
from escrowmq.replication.model import TransactionState

#: In a call for many checks, each piece waits this share of the limit for a locked row, then is halved: one
#: local transaction must not delay the others. All pieces together wait no longer than about the
#: limit.
PIECES = 8


class Checking:
    """The checks of one table and app."""

    def __init__(self, statements: Statements, app: str, limit_s: float, clock: Callable[[], float]) -> None:
        self._statements, self._app, self._limit_s, self._clock = statements, app, limit_s, clock

    def states(self, link: Link, tx_ids: Sequence[str], own: bytes | None = None) -> list[TransactionState]:
        """A state for each, in order. ``own``: the name that the table must have; with another one, or
        without any, nothing is written there, and it raises WrongDatabase."""
        by_key = {rows.key_of(self._app, tx_id): tx_id for tx_id in tx_ids}
        keys = sorted(by_key)
        found: dict[bytes, int] = {}
        with_limit = _LimitOf(link, self._statements)
        try:
            for at in range(0, len(keys), KEYS_MAX):
                self._settle(link, keys[at : at + KEYS_MAX], by_key, found, own)
        except WrongDatabase:
            link.rollback()
            raise
        finally:
            with_limit.restore()
        return [rows.state_of(found.get(rows.key_of(self._app, tx_id))) for tx_id in tx_ids]

    def outcome(self, link: Link, key: bytes) -> int | None:
        """What the row says; None: there is no committed one."""
        outcome = dict(self._read(link, [key])).get(key)
        if outcome is not None:
            self._wait_as_a_commit(link)
        link.commit()
        return outcome

    def name_database(self, link: Link) -> bytes:
        """The random name in the table; written now if there is none."""
        found = identity(link, self._statements)
        if found is None:
            self._write_name(link)
            link.commit()
            found = identity(link, self._statements)
        link.commit()
        assert found is not None
        return found

    def name_within(self, link: Link) -> bytes:
        """The same in the transaction that is open, and stays so: if it rolls back, so does the name."""
        self._write_name(link)  # before any reading: a snapshot could not be written from
        found = identity(link, self._statements)
        assert found is not None
        return found

    def _write_name(self, link: Link) -> None:
        name = {
            "key": rows.IDENTITY_KEY,
            "app": b"",
            "tx_id": uuid.uuid4().hex.encode(),
            "created_ms": int(self._clock() * 1000),
        }
        link.run(self._statements.name, name)

    def _settle(
        self,
        link: Link,
        keys: Sequence[bytes],
        by_key: dict[bytes, str],
        found: dict[bytes, int],
        own: bytes | None,
    ) -> None:
        """Fill ``found`` for these keys, except those that stay locked."""
        if len(keys) > 1:  # usually most rows exist already: nothing needs to wait for those
            self._begin(link, self._limit_s, own)
            read = self._read(link, keys)
            if read:
                self._wait_as_a_commit(link)
            link.commit()
            found.update(read)
        pieces: list[Sequence[bytes]] = [[key for key in keys if key not in found]]
        began, waits = self._clock(), 0
        while pieces:
            piece = pieces.pop(0)
            if not piece:
                continue
            alone = len(piece) == len(keys) == 1
            try:
                found.update(self._block(link, piece, by_key, self._limit_s / (1 if alone else PIECES), own))
            except WrongDatabase:
                raise
            except Exception as error:
                link.rollback()
                if failure_of(error) is not Failure.LOCKED:
                    raise
                waits += 1
                late = self._clock() - began >= self._limit_s
                if late or waits >= PIECES or not self._statements.dialect.locks_rows:
                    return
                if len(piece) > 1:
                    pieces += rows.halves(piece)

    def _block(
        self,
        link: Link,
        keys: Sequence[bytes],
        by_key: dict[bytes, str],
        limit_s: float,
        own: bytes | None,
    ) -> dict[bytes, int]:
        self._begin(link, limit_s, own)
        blocking = [(key, by_key[key].encode()) for key in keys]
        inserted = link.changed(
            *self._statements.block(blocking, self._app.encode(), int(self._clock() * 1000))
        )
        read = self._read(link, keys)
        if read and inserted <= 0:
            self._wait_as_a_commit(link)
        link.commit()
        return read

    def _begin(self, link: Link, limit_s: float, own: bytes | None) -> None:
        for statement in self._statements.begin_check(limit_s):
            link.run(statement)
        if own is None:
            return
        read = link.rows(self._statements.identity_now, {"key": rows.IDENTITY_KEY})
        found = bytes(read[0][0]) if read else None
        if found != own:
            raise WrongDatabase(
                f"the table {self._statements.table} where this connection leads ({link.place()}) is of "
                f"another database: its name is {_shown(found)}, and these checks are of {_shown(own)}. A "
                "database, schema or search path differs between who prepares and who answers, or the table "
                "was made anew"
            )
        if not self._statements.dialect.locks_rows:  # a transaction of SQLite that has read may not write
            link.commit()

    def _wait_as_a_commit(self, link: Link) -> None:
        """Write a row of no meaning, and remove it again. A transaction that only reads waits for no standby.
        How old the row is that was read does not matter: a primary may come back after days."""
        if not self._statements.dialect.has_standbys:
            return
        key = secrets.token_bytes(32)  # each its own: none waits for another one
        passing = {"key": key, "app": b"", "tx_id": b"", "created_ms": int(self._clock() * 1000)}
        link.run(self._statements.enter, passing)
        link.run(*self._statements.remove([key]))

    def _read(self, link: Link, keys: Sequence[bytes]) -> dict[bytes, int]:
        return {bytes(key): int(outcome) for key, outcome in link.rows(*self._statements.read(keys))}


def identity(link: Link, statements: Statements) -> bytes | None:
    """The random name of the database that a link leads to; None: it has none yet."""
    found = link.rows(statements.identity, {"key": rows.IDENTITY_KEY})
    return bytes(found[0][0]) if found else None


def _shown(name: bytes | None) -> str:
    return "none" if name is None else name.decode(errors="replace")


class _LimitOf:
    """Saves and restores the connection's own wait limit: the next user of a pooled connection must not
    inherit a check's."""

    def __init__(self, link: Link, statements: Statements) -> None:
        self._link, self._dialect, self._limit = link, statements.dialect, 0
        if self._dialect.limit_of is not None:
            self._limit = int(link.rows(self._dialect.limit_of)[0][0])

    def restore(self) -> None:
        if self._dialect.restore_limit is not None:
            self._link.run(self._dialect.restore_limit.format(limit=self._limit))
            self._link.commit()
