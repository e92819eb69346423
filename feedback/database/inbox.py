"""The inbox: a record that is delivered again is not handled again.

A row says that the work for a record is committed, because the handler's own database transaction writes it.
Inserting it is the question and the answer at once: the primary key makes a second handler of the same record
wait for the first one's outcome.

It must never write a row in another transaction than that of the work, and never answer from a row that it
has read and not tried to insert.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from escrowmq.feedback.database.durability import warn_of_lost_commits
from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.failures import explained, is_away
from escrowmq.feedback.database.inbox_purging import GroupPlaces, InboxPurged, purge_inbox
from escrowmq.feedback.database.inbox_rows import (
    GROUP_BYTES_MAX,
    Entered,
    InboxStatements,
    Place,
    origin_of,
)
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.opening import database_of
from escrowmq.feedback.database.own_rows import refuse_another_transaction
from escrowmq.feedback.database.rows import KEEP_S
from escrowmq.feedback.database.statements import dialect_of

log = logging.getLogger(__name__)

#: The table's name, unless another is given.
INBOX_TABLE = "escrowmq_inbox"


class Inbox:
    """Makes the handling of records idempotent: each is handled once per consumer group.

    ::

        inbox = Inbox(create_engine(url), group="billing")
        inbox.create_table()                               # or put inbox.schema() into a migration
        for record in consumer.poll():
            with engine.begin() as db, inbox.once(db, record) as first:
                if first:
                    db.execute(text("update accounts ..."))
        consumer.commit()                                  # after the database transactions

    ``database``: as for ``Fence``. ``group``: the consumer group, or another name for what handles
    the records; groups do not see each other's rows. Raises DatabaseMisused for arguments that cannot work.
    Thread-safe. Source of the rules: SEMANTICS 5.2.
    """

    def __init__(
        self,
        database: Any,
        *,
        group: str,
        table: str = INBOX_TABLE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: seconds since the epoch; used only to decide when a row may be purged."""
        if type(group) is not str or not 0 < len(group.encode()) <= GROUP_BYTES_MAX:
            raise DatabaseMisused(f"group must be the name of the consumer group, not {group!r:.80}")
        self.group, self._clock = group, clock
        self._database = database_of(database)
        self.statements = InboxStatements(dialect_of(self._database.dialect), table)
        self._name = group.encode()

    def schema(self) -> str:
        """The statement that creates the table, for a migration. Running it again is harmless."""
        return self.statements.create

    def create_table(self) -> None:
        """Create the table, if it does not exist. Needs the right to create tables."""
        try:
            with self._database.checking() as link:
                link.run(self.statements.create)
                link.commit()
                warn_of_lost_commits(link, "inbox", self.statements.table)
        except Exception as error:
            raise self._explained(error) from error

    @contextmanager
    def once(self, db: Any, record: Place) -> Iterator[bool]:
        """Whether the record is handled for the first time; if so, do the work inside the block.

        ``db``: a Connection or Session of SQLAlchemy, or a DB-API connection; the work belongs into the same
        database transaction, which is yours to commit or roll back. Several records may share one. Make this
        its first statement: a second handler of the same record then waits here until the first one's
        transaction ends.

        Commit also if it was handled before, and only then acknowledge the record: that commit waits until a
        synchronous standby has what the first handler wrote.

        Roll back if the block raises an exception. The inbox then forgets the record, so that it is
        handled again even if you commit.

        Raises DatabaseMisused: a connection in autocommit or without the table, or no record; also at the
        block's end, if the database has rolled back at a statement inside, and the error was caught.
        Raises what the database raises, such as a serialization failure while another handler commits the
        same record: nothing is done then, so roll back and handle it again.
        """
        link = self._database.link(db)
        entered = self.enter(link, record)
        if entered is None:
            yield False
            return
        mark = link.mark()
        try:
            yield True
        except BaseException:
            with contextlib.suppress(Exception):  # what cannot be changed any more cannot be committed
                self.forget(link, entered, mark)
            raise
        self.refuse_lost(db, entered, mark, link.mark())

    def handler(self, work: Callable[[Any, Any], object]) -> Callable[[Any], None]:
        """``work(record, db)`` as a handler of a record: a database transaction of its own, which is
        committed when ``work`` returns, and rolled back when it raises. ``work`` is not called for a record
        that was handled before.

        ``queue.run(work, inbox=inbox)`` is the same as ``queue.run(inbox.handler(work))``. ``db``: what the
        inbox was made of gives, a Connection, a Session, or a DB-API connection; do not commit it.
        """

        def handle(record: Any) -> None:
            with self._database.opening() as (db, link):
                entered = self.enter(link, record)
                if entered is None:
                    link.commit()
                    return
                mark = link.mark()
                try:
                    work(record, db)
                except BaseException:
                    with contextlib.suppress(Exception):  # at the block's end it is rolled back
                        self.forget_committed(entered)
                    raise
                if link.mark() != mark:  # before the commit: a session may have another connection by now
                    self.refuse_lost(db, entered, mark, link.mark())
                link.commit(lambda: self.refuse_undone(link, entered))

        return handle

    @staticmethod
    def is_away(error: BaseException) -> bool:
        """Whether an error says that the database cannot be reached, or takes no work now: see
        ``escrowmq.integrations.database_is_away``. ``run`` asks this, and waits."""
        return is_away(error)

    def enter(self, link: Link, record: Place) -> Entered | None:
        """Write the record's row; None if it was there."""
        origin = origin_of(record)
        link.refuse_autocommit("the inbox's row")
        entered = Entered(origin.key(self.group), int(self._clock() * 1000))
        values = {
            "key": entered.key,
            "consumer_group": self._name,
            "topic": origin.topic.encode(),
            "place": origin.partition,
            "topic_offset": origin.offset,
            "handled_ms": entered.handled_ms,
        }
        try:
            if link.changed(self.statements.enter, values):
                return entered
            self._wait_as_a_commit(link, values)
        except Exception as error:
            raise self._explained(error) from error
        return None

    def _wait_as_a_commit(self, link: Link, values: dict[str, Any]) -> None:
        """Write a row of no meaning, and remove it again: the caller's commit then waits for a standby. The
        row that was there may be on this server alone (see ``Checking``), and then the work is lost with it,
        while the record is acknowledged."""
        if self.statements.dialect.has_standbys:
            key = secrets.token_bytes(32)
            link.run(self.statements.enter, values | {"key": key})
            link.run(self.statements.undo, {"key": key})

    def forget(self, link: Link, entered: Entered, mark: object) -> None:
        """Remove the row again, if its transaction is still open, or a statement has committed it."""
        if link.mark() == mark and not self.forget_committed(entered):
            link.run(self.statements.undo, {"key": entered.key})

    def forget_committed(self, entered: Entered) -> bool:
        """In MariaDB some statements commit (TRUNCATE, CREATE). If one did so in a block that then failed,
        remove the row: the rest of the work is missing. Whether it has."""
        if not self.statements.dialect.commits_at_ddl:
            return False
        with self._database.checking() as link:
            found = self._finds(link, entered)
            if found:
                link.run(self.statements.undo, {"key": entered.key})
            link.commit()
        if found:
            log.error(
                "a handler of group %r has failed after a statement that commits (DDL), so a part of its "
                "work stays, and the record is handled again: let such statements run elsewhere",
                self.group,
            )
        return found

    def _finds(self, link: Link, entered: Entered) -> bool:
        found = link.rows(self.statements.own, {"key": entered.key})
        return bool(found) and found[0][0] == entered.handled_ms

    def refuse_lost(self, db: Any, entered: Entered, before: object, now: object) -> None:
        """At the end of a block: ``before`` and ``now`` are marks. The block may have ended its transaction,
        and begun another one; then the row must be committed. Raises as ``refuse_undone`` does."""
        if now is not None or before is None:
            self.refuse_undone(self._database.link(db), entered)
            return
        with self._database.checking() as link:  # a statement here would begin another one, or be refused
            self.refuse_undone(link, entered)

    def refuse_undone(self, link: Link, entered: Entered) -> None:
        """Raises NoDatabaseTransaction if the row cannot be committed, or is not there any more."""
        link.refuse_failed()
        refuse_another_transaction(link, "inbox", self.statements.own, entered.key, (entered.handled_ms,))

    def purge(
        self,
        admin: GroupPlaces | None,
        *,
        keep_s: float = KEEP_S,
        slice_rows: int = 1000,
        pause_s: float = 0.01,
        told: Callable[[InboxPurged], None] = lambda so_far: None,
    ) -> InboxPurged:
        """Remove the group's rows that are ``keep_s`` old and whose records are not delivered again.

        ``admin``: ``cluster.admin``, which knows from which offsets the group continues, and of which records
        copies come again: dead letters, which may be redriven, and retries. Their rows stay. With more than
        1,000 retries that the group is not past, in a share group with any for two seconds, nothing is
        removed this time. None: the time alone decides, for readers that do not commit their offsets to the
        broker; a record that is delivered again later than ``keep_s`` is then handled again. The whole table
        is read in slices of ``slice_rows``, each a short transaction of its own, with a pause between them;
        once a day is enough.
        ``told`` is called after each slice with the progress.
        """
        if keep_s < 3600:
            raise DatabaseMisused(f"keep_s must be 3600 or more, not {keep_s!r}: a row protects for as long")
        if not 1 <= slice_rows <= 1000:
            raise DatabaseMisused(f"slice_rows must be from 1 to 1000, not {slice_rows!r}")
        now_ms = int(self._clock() * 1000)
        before = now_ms - int(keep_s * 1000)
        try:
            with self._database.checking() as link:
                return purge_inbox(
                    link, self.statements, self.group, admin, now_ms, before, slice_rows, pause_s, told
                )
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        return explained(error, "inbox", self.statements.table, "the database that the handler changes")
