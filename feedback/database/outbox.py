"""The outbox: messages as rows of the application's own database, which a relay sends to the broker later.

Inserting the rows is all that happens in the application's transaction, so it works while the broker is down,
and needs no check: a row exists if, and only if, the transaction is committed.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from escrowmq.feedback.database.durability import warn_of_lost_commits
from escrowmq.feedback.database.errors import DatabaseMisused, SendTooLarge
from escrowmq.feedback.database.failures import explained
from escrowmq.feedback.database.opening import database_of
from escrowmq.feedback.database.outbox_admin import OutboxAdmin, OutboxEntry, OutboxShard
from escrowmq.feedback.database.outbox_statements import (
    INSERT_MAX,
    OutboxStatements,
    content_of,
    order_key_of,
    row_bytes,
    shard_of,
)
from escrowmq.feedback.database.statements import dialect_of
from escrowmq.replication.errors import InvalidMessage, MessageTooLarge
from escrowmq.replication.model import Message

#: The table's name, unless another is given.
OUTBOX_TABLE = "escrowmq_outbox"
SHARDS_MAX = 256
#: Messages of one call. They go in one transaction of the broker's, however large.
GROUP_ROWS_MAX = 10_000
#: The limits of a relay's producer, unless it is given others.
MESSAGE_BYTES_MAX, TRANSACTION_BYTES_MAX = 1 << 20, 16 << 20
#: Bytes of one INSERT, or one row: servers limit a statement (MariaDB to 16 MiB), in which a driver may need
#: two bytes for one.
INSERT_BYTES_MAX = 2 << 20


class Outbox:
    """Puts messages into a table, in the application's database transaction.

    ``shards``: the number of orders that are kept apart, each sent by one relay. With one, the default, all
    messages keep their order, and those of one ``send`` become readable together. With more, messages of one
    topic and key keep their order. All services must use the same number. Raises DatabaseMisused for
    arguments that cannot work. Thread-safe. Source of the rules: SEMANTICS 5.3.
    """

    def __init__(
        self,
        database: Any,
        *,
        shards: int = 1,
        table: str = OUTBOX_TABLE,
        clock: Callable[[], float] = time.time,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        transaction_bytes_max: int = TRANSACTION_BYTES_MAX,
    ) -> None:
        """``database``: as for ``Fence``. ``clock``: seconds since the epoch; it is only shown.
        ``message_bytes_max``, ``transaction_bytes_max``: ``send`` refuses more; give those of the relay's
        producer, if its configuration has others than the default."""
        if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
            raise DatabaseMisused(f"shards must be from 1 to {SHARDS_MAX}, not {shards!r:.80}")
        self.shards, self._clock = shards, clock
        self._message_bytes_max, self._transaction_bytes_max = message_bytes_max, transaction_bytes_max
        self.database = database_of(database)
        self.statements = OutboxStatements(dialect_of(self.database.dialect), table)
        self.desk = OutboxAdmin(self.database, self.statements)
        self._woken: list[Callable[[], None]] = []
        self._notifies: bool | None = None if self.statements.dialect.name == "postgresql" else False

    def schema(self) -> list[str]:
        """The statements that create the tables, for a migration. Running them again is harmless."""
        return list(self.statements.create)

    def create_table(self) -> None:
        """Create the tables, if they do not exist. Needs the right to create tables."""
        with self._explaining(), self.database.checking() as link:
            for statement in self.statements.create:
                link.run(statement)
            link.commit()
            warn_of_lost_commits(link, "outbox", self.statements.table)

    def send(self, db: Any, *messages: Message) -> None:
        """Insert messages, as a part of ``db``'s transaction; they are sent once that is committed.

        ``db``: a Connection or Session of SQLAlchemy, Django's connection, or a DB-API connection. Messages
        of one call stay together. Between transactions the order is that of the calls, so change the rows
        that two transactions compete for before the call.

        Raises InvalidMessage; MessageTooLarge: a message can never be sent; SendTooLarge: all of them
        together can never be; DatabaseMisused: a connection in autocommit, or without the table.
        """
        group, created_ms = uuid.uuid4().bytes, int(self._clock() * 1000)
        rows: list[dict[str, Any]] = []
        sizes = Counter[int]()
        for message in messages:
            content, order_key = content_of(message), order_key_of(message)
            shard, size = shard_of(order_key, group, self.shards), row_bytes(message, content)
            if size > self._message_bytes_max:
                raise MessageTooLarge(size, self._message_bytes_max)
            sizes[shard] += size
            rows.append({
                "shard": shard, "group": group, "order_key": order_key, "content": content,
                "created_ms": created_ms,
            })  # fmt: skip
        if len(rows) > GROUP_ROWS_MAX:
            raise InvalidMessage(
                f"{len(rows):,} messages in one call, which are sent together, and at most "
                f"{GROUP_ROWS_MAX:,} can be; use several calls"
            )
        if sizes and (most := max(sizes.values())) > self._transaction_bytes_max:
            raise SendTooLarge(most, self._transaction_bytes_max)
        in_shard = Counter(row["shard"] for row in rows)
        link = self.database.link(db)
        link.refuse_autocommit("the outbox's row")
        with self._explaining():
            parts = list(_parts(rows))
            if parts and self._notifies is None:  # a role that only inserts rows goes on as it did
                self._notifies = bool(link.rows(self.statements.may_notify)[0][0])
            for number, part in enumerate(parts, start=1):
                counted = [row | {"group_rows": in_shard[row["shard"]]} for row in part]
                waking = in_shard if self._notifies and number == len(parts) else ()
                link.run(*self.statements.insert(counted, waking))
        if self._woken and rows:
            link.after_commit(self.wake)

    # ------------------------------------------------------------ the relay

    def wake(self) -> None:
        """Let a relay that was given this outbox look for rows now. With SQLAlchemy and Django this happens
        at each commit by itself; with a plain driver call it after the commit, or the relay finds the rows
        with its next look. PostgreSQL notifies relays in any process."""
        for call in self._woken:
            call()

    def tell(self, call: Callable[[], None]) -> None:
        """Have ``call`` called whenever there may be new rows; it must be quick. For relays."""
        self._woken.append(call)

    def tell_no_more(self, call: Callable[[], None]) -> None:
        """The end of ``tell``."""
        self._woken.remove(call)

    # ------------------------------------------------------------ people

    def rows(self, *, dead: bool | None = None, limit: int = 100, after: int = 0) -> list[OutboxEntry]:
        """Up to ``limit`` rows that are not sent yet, with higher ids than ``after``. ``dead``: only dead
        ones, or only others."""
        with self._explaining():
            return self.desk.entries(dead=dead, limit=limit, after=after)

    def row(self, id: int) -> OutboxEntry:
        """One row. Raises UnknownOutboxRow if it is not there any more."""
        with self._explaining():
            (found,) = self.desk.chosen([id])
            return found

    def status(self) -> list[OutboxShard]:
        """How many rows wait in each shard, since when, how many are dead, and which shards have stopped."""
        with self._explaining():
            return self.desk.shards()

    def retry(self, ids: Collection[int]) -> int:
        """Try dead or waiting rows again at once, each with the rest of its ``send``; how many rows that are.

        Raises UnknownOutboxRow; OutboxRowBusy for rows that are being sent. Then nothing is done.
        """
        with self._explaining():
            return self.desk.retry(ids)

    def drop(self, ids: Collection[int]) -> int:
        """Give rows up for good, each with the rest of its ``send``; how many rows that are. Raises as
        ``retry``."""
        with self._explaining():
            return self.desk.drop(ids)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found = self._explained(error)
            if found is error:
                raise
            raise found from error

    def _explained(self, error: Exception) -> Exception:
        return explained(error, "outbox", self.statements.table, "the database that the service changes")


def _parts(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """As many rows as one statement takes."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        size += len(row["content"])
        if part and (len(part) == INSERT_MAX or size > INSERT_BYTES_MAX):
            yield part
            part, size = [], len(row["content"])
        part.append(row)
    if part:
        yield part
