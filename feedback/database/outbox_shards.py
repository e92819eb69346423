"""A relay's database transactions: each begins by holding the lease of its shard.

The lease is a row with an epoch. A relay that was paused while another took its shard holds nothing: its
UPDATE changes no row, and it stops before it has done anything. Rows are changed by the ids that were read
and sent; another count than expected means that somebody else has changed them, and nothing is committed.
The lease also holds the number of the last batch: if the database is put back to an earlier state under a
relay, e.g. because another server takes over that lacks the last commits, the relay begins again and finds it
out.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from escrowmq.feedback.database.links import Database, Link
from escrowmq.feedback.database.outbox_statements import (
    CONTENT_BYTES_MAX,
    ERROR_BYTES_MAX,
    ROWS_MAX,
    OutboxRow,
    OutboxStatements,
    pick,
    refused,
)

#: A relay that says nothing for so long has lost its shard to any other that asks.
LEASE_MS = 15_000
#: The longest lease that a relay may be given. One that ends later than any can was taken by a clock that
#: was ahead: it would keep others away for years, also when its relay is dead. To take it over is as safe as
#: after its end, since the epoch rises.
LEASE_MS_MAX = 600_000
#: Rows that are read at a time, and at most for one batch: rows that wait must not hide those behind them.
WINDOW, READ_MAX = 2 * ROWS_MAX, 40 * ROWS_MAX
#: Parts of one statement: a look at more shards takes several.
SHARDS_AT_ONCE = 64


class ShardLost(Exception):
    """Another relay has the shard, or a person has stopped it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A shard that this relay has. ``last``: the number of the last batch that is done."""

    shard: int
    epoch: int
    last: int


class OutboxShards:
    """The database side of a relay. ``clock``: ms since the epoch; leases compare it between relays.
    ``window``: rows that one statement reads."""

    def __init__(
        self,
        database: Database,
        statements: OutboxStatements,
        owner: str,
        clock: Callable[[], int],
        lease_ms: int = LEASE_MS,
        window: int = WINDOW,
    ) -> None:
        self._database, self._statements, self._window = database, statements, window
        self._owner, self._clock, self._lease_ms = owner.encode(), clock, lease_ms
        self._until: dict[int, int] = {}  # shard -> the end of the lease

    def take(self, shard: int) -> Lease | None:
        """The shard, with a new epoch; None if another relay has it."""
        statements, now = self._statements, self._clock()
        with self._database.opening() as (_, link):
            link.refuse_autocommit("each change of a relay's")
            link.run(statements.add_shard, {"shard": shard, "nobody": b""})
            told = {"shard": shard, "owner": self._owner, "now": now, "until": now + self._lease_ms}
            told["beyond"] = now + 2 * LEASE_MS_MAX  # twice: clocks that differ by minutes are left alone
            lease = None
            if link.changed(statements.take, told) == 1:
                ((epoch, last),) = link.rows(statements.taken, {"shard": shard, "owner": self._owner})
                lease = Lease(shard, int(epoch), int(last))
                self._until[shard] = now + self._lease_ms
            link.commit()
            return lease

    def renew(self, lease: Lease) -> None:
        """Extend the lease, if a third of it is over. Raises ShardLost."""
        if self._clock() >= self._until.get(lease.shard, 0) - self._lease_ms * 2 // 3:
            with self._holding(lease, self._statements.extend):
                pass

    def give_up(self, lease: Lease) -> None:
        """The relay ends: another one need not wait for the lease's end."""
        with self._database.opening() as (_, link):
            link.changed(self._statements.give_up, {"shard": lease.shard, "epoch": lease.epoch})
            link.commit()

    def doze(self, lease: Lease) -> None:
        """The shard has nothing to send: who inserts rows shall notify its relay, until it is at work again.
        Nothing if the lease is another's."""
        with self._database.opening() as (_, link):
            told = {"shard": lease.shard, "epoch": lease.epoch, "owner": self._owner}
            link.changed(self._statements.doze, told)
            link.commit()

    def waiting(self, shards: Sequence[int]) -> set[int]:
        """Which of these shards have rows that may be sent: one look for all of them, which only reads."""
        with self._database.checking() as link:
            now = self._clock()
            return {
                int(row[0])
                for at in range(0, len(shards), SHARDS_AT_ONCE)
                for row in link.rows(self._statements.waiting(shards[at : at + SHARDS_AT_ONCE], now))
            }

    def free(self) -> tuple[set[int], dict[int, str]]:
        """The shards that this relay can take, and why others have stopped."""
        with self._database.checking() as link:
            found = link.rows(self._statements.leases)
        now = self._clock()
        stopped = {int(row[0]): bytes(row[4]).decode(errors="replace") for row in found if row[4] is not None}
        over = {
            int(row[0])
            for row in found
            if not now <= int(row[3]) <= now + 2 * LEASE_MS_MAX or bytes(row[2]) == self._owner
        }
        return over - set(stopped), stopped

    def highest(self) -> int:
        """The highest shard of which there are rows; -1: there are no rows."""
        with self._database.checking() as link:
            ((found,),) = link.rows(self._statements.highest_shard)
            return -1 if found is None else int(found)

    def in_batch(self, lease: Lease) -> list[OutboxRow]:
        """The rows of the batch that was being sent when the last relay stopped, if any."""
        with self._holding(lease) as link:
            return [_row(row) for row in link.rows(self._statements.in_batch, {"shard": lease.shard})]

    def pick(self, shard: int) -> list[OutboxRow]:
        """The rows of the next batch, not marked yet. Only reads, and so needs no lease: ``mark`` finds out
        whether they are still so."""
        rows: list[OutboxRow] = []
        with self._database.checking() as link:
            while len(rows) < READ_MAX:
                after = rows[-1].id if rows else 0
                values = {"shard": shard, "after": after, "most": self._window}
                found = [_light(row) for row in link.rows(self._statements.pending, values)]
                all_read = len(found) < self._window
                # Of rows that two statements have read, some may have been committed in between.
                all_seen = all_read and not rows
                rows += found
                if (chosen := pick(rows, self._clock(), all_seen=all_seen)) or all_read:
                    return self._with_contents(link, chosen)
        return []

    def _with_contents(self, link: Link, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """The same rows. Raises ShardLost if somebody has taken one away meanwhile."""
        readable = [row.id for row in rows if row.size <= CONTENT_BYTES_MAX]
        found = link.rows(self._statements.contents(readable)) if readable else []
        self._expect(len(readable), len(found))
        read = {int(id): bytes(content) for id, content in found}
        return [replace(row, content=read[row.id], size=0) if row.id in read else row for row in rows]

    def mark(self, lease: Lease, rows: Sequence[OutboxRow], placed: dict[int, int]) -> list[OutboxRow]:
        """Write the next batch's number on rows, and the partition of each; from here on the batch does not
        change. Returns the rows as they are then."""
        batch = lease.last + 1
        with self._holding(lease) as link:
            self._expect(len(placed), link.changed(self._statements.mark(batch, placed), {}))
        return [replace(row, batch=batch, placed=placed[row.id], next_ms=0) for row in rows]

    def finish(self, lease: Lease, batch: int, rows: Sequence[OutboxRow]) -> Lease:
        """The batch is committed in the broker: remove its rows."""
        with self._holding(lease) as link:
            self._expect(len(rows), link.changed(self._statements.sent(batch, [row.id for row in rows]), {}))
            link.run(self._statements.advance, {"shard": lease.shard, "batch": batch})
        return Lease(lease.shard, lease.epoch, batch)

    def dissolve(
        self, lease: Lease, batch: int, rows: Sequence[OutboxRow], error: str, *, hopeless: bool = False
    ) -> Lease:
        """The broker has refused the batch for good, and has stored none of it: its number is not used
        again. ``hopeless``: see ``BatchRefused``."""
        changes = refused(rows, self._clock(), hopeless=hopeless)
        with self._holding(lease) as link:
            statement = self._statements.dissolve(batch, changes)
            self._expect(len(rows), link.changed(statement, {"error": _text(error)}))
            link.run(self._statements.advance, {"shard": lease.shard, "batch": batch})
        return Lease(lease.shard, lease.epoch, batch)

    def bury(self, lease: Lease, rows: Sequence[OutboxRow], error: str) -> None:
        """These cannot be sent at all, such as to a topic that does not exist."""
        with self._holding(lease) as link:
            statement = self._statements.bury([row.id for row in rows])
            self._expect(len(rows), link.changed(statement, {"error": _text(error)}))

    def stop(self, lease: Lease, error: str) -> None:
        """The broker and the database disagree about what was sent: nobody takes this shard until a person
        has decided."""
        with self._holding(lease) as link:
            link.run(self._statements.stop, {"shard": lease.shard, "error": _text(error)})

    @contextmanager
    def _holding(self, lease: Lease, statement: str = "") -> Iterator[Link]:
        """A transaction that holds the lease's row until it is committed."""
        with self._database.opening() as (_, link):  # not ``checking``: in SQLite that is in autocommit
            until = self._clock() + self._lease_ms
            told = {
                "shard": lease.shard, "epoch": lease.epoch, "owner": self._owner, "last": lease.last,
                "until": until,
            }  # fmt: skip
            link.refuse_autocommit("each change of a relay's")
            try:
                self._expect(1, link.changed(statement or self._statements.hold, told))
                yield link
            except BaseException:
                link.rollback()
                raise
            link.commit()
            self._until[lease.shard] = until

    @staticmethod
    def _expect(count: int, changed: int) -> None:
        if changed != count:
            raise ShardLost(f"{changed} rows instead of {count}")


def _text(error: str) -> bytes:
    return error.encode()[:ERROR_BYTES_MAX]


def _row(values: Sequence[Any]) -> OutboxRow:
    id, group, group_rows, order_key, content, attempts, next_ms, batch, placed = values
    return OutboxRow(
        int(id),
        bytes(group),
        int(group_rows),
        None if order_key is None else bytes(order_key),
        bytes(content),
        int(attempts),
        int(next_ms),
        None if batch is None else int(batch),
        None if placed is None else int(placed),
    )


def _light(values: Sequence[Any]) -> OutboxRow:
    """A row of which the content has not been read."""
    return replace(_row([*values[:4], b"", *values[5:]]), size=int(values[4]))


# ------------------------------------------------------------------------------------------------------------
# PostgreSQL's notifications for a relay: a connection that listens, through psycopg or psycopg2.
#
# Only a hint: who is not told looks all the same, after a longer pause. A connection may listen in vain, as
# through a pooler that gives each transaction another server connection. So it is tried first, with a
# notification that another connection sends.

log = logging.getLogger(__name__)

#: How long the notification of the trial may take, and how long until the next trial after a failed one.
TRIAL_S, AGAIN_S = 3.0, 60.0
#: A wait on the connection is not longer, so that a connection that is cut is noticed.
WAIT_S = 30.0


class Notices:
    """Runs in a thread of its own. ``told``: called at each notification, and when listening begins;
    ``clock``: seconds."""

    def __init__(
        self,
        database: Database,
        statements: OutboxStatements,
        told: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._database, self._statements, self._told, self._clock = database, statements, told, clock
        self._ended = False
        self._read, self._write = os.pipe()
        #: Whether notifications arrive.
        self.works = False

    def run(self) -> None:
        """Until ``end``."""
        try:
            while not self._ended:
                try:
                    self._listen()
                except Exception as error:  # whatever the database raises: it is tried again
                    log.info("outbox: no notifications of PostgreSQL: %s", error)
                self.works = False
                self._told()
                self._wait(self._read, AGAIN_S)
        finally:
            os.close(self._read)

    def end(self) -> None:
        """Stop listening; ``run`` returns soon."""
        if not self._ended:
            self._ended = True
            os.close(self._write)  # the other end can be read now, for ever

    def _listen(self) -> None:
        """Returns if it cannot, or is to end."""
        with self._database.checking() as link:
            connection = driver_connection(link)
            if connection is None:
                log.info("outbox: this driver has no notifications; the relay looks for rows by itself")
                return
            link.run(f"LISTEN {self._statements.channel}")
            link.commit()
            with self._database.checking() as other:
                other.rows(self._statements.notify)
                other.commit()
            until = self._clock() + TRIAL_S
            while not self._ended:
                self._wait(connection.fileno(), WAIT_S if self.works else TRIAL_S)
                if drained(connection):
                    self.works = True
                    self._told()
                elif self.works:  # in silence: is it cut?
                    link.rows("SELECT 1")
                    link.commit()
                    self._told()  # what came with the answer is not told again
                elif self._clock() > until:
                    log.info("outbox: notifications of PostgreSQL do not arrive, perhaps because of a pooler")
                    return

    def _wait(self, descriptor: int, timeout_s: float) -> None:
        select.select([descriptor, self._read], [], [], min(timeout_s, AGAIN_S))


def driver_connection(link: Link) -> Any:
    """The driver's own connection, if it is one that can listen. It no longer counts for a pool."""
    connection: Any = getattr(link, "connection", None)
    if hasattr(connection, "detach"):  # SQLAlchemy's
        pooled, connection = connection, connection.connection.driver_connection
        pooled.detach()
    elif hasattr(connection, "settings_dict"):  # Django's
        connection = connection.connection
    can = hasattr(connection, "fileno") and (hasattr(connection, "pgconn") or hasattr(connection, "poll"))
    return connection if can else None


def drained(connection: Any) -> int:
    """How many notifications have arrived. Raises if the connection is cut."""
    if hasattr(connection, "pgconn"):  # psycopg 3; its own generator would hold the connection's lock
        connection.pgconn.consume_input()
        count = 0
        while connection.pgconn.notifies() is not None:
            count += 1
        return count
    connection.poll()  # psycopg2
    count = len(connection.notifies)
    connection.notifies.clear()
    return count
