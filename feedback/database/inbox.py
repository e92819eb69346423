"""The inbox: a record that is delivered again is not handled again.

A row says that the work for a record is committed, because the handler's own database transaction writes it.
Inserting it is the question and the answer at once: the primary key makes a second handler of the same record
wait for the first one's outcome.

It must never write a row in another transaction than that of the work, and never answer from a row that it
has read and not tried to insert.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from escrowmq.feedback.database.durability import refuse_another_transaction, warn_of_lost_commits
from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.failures import explained, is_away
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.opening import database_of
from escrowmq.feedback.database.statements import IDENTITY_KEY, KEEP_S, TABLE, Dialect, dialect_of, listed
from escrowmq.replication.errors import OffsetOutOfRange
from escrowmq.replication.format.forwarded import history
from escrowmq.replication.format.internal_topics import retry_topic
from escrowmq.replication.format.settings import SHARE
from escrowmq.replication.model import TopicInfo

# ------------------------------------------------------------------------------------------------------------
# The rows of an inbox, as values: which record a row stands for, and which rows may be removed. Pure.
#
# A row exists if, and only if, the work for its record is committed, because both are written in one database
# transaction. Its key is a digest of the consumer group and of the topic, partition and offset at which
# the record was first stored.

#: A group's name is stored as bytes; MariaDB's INSERT IGNORE would cut a longer one without a word.
GROUP_BYTES_MAX = 2048


class StoredRecord(Protocol):
    """Where a record is stored: as much of a ``ConsumerRecord`` as an inbox needs."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def partition(self) -> int:
        """Its partition."""

    @property
    def offset(self) -> int:
        """Its offset."""

    @property
    def timestamp(self) -> int:
        """The broker's, in ms since the epoch."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record was first stored. The time is part of it: if a topic is deleted and created again, its
    offsets begin anew, and other records have the same ones."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    def key(self, group: str) -> bytes:
        """The primary key: 32 bytes. Lengths precede the names, so that no two have the same text.

        Binary, so that equality does not depend on a database's collation, length or case."""
        name, topic = group.encode(), self.topic.encode()
        text = b"%d:%b%d:%b%d:%d:%d" % (
            len(name), name, len(topic), topic, self.partition, self.offset, self.timestamp,
        )  # fmt: skip
        return hashlib.sha256(text).digest()


def origin_of(record: Any) -> Origin:
    """Where a record was first stored: its ``origin`` if it has one, because it was stored again for another
    attempt, else its own offset. Raises DatabaseMisused for anything else than a record."""
    first = getattr(record, "origin", None)
    stored: StoredRecord = record if first is None else first
    try:
        origin = Origin(stored.topic, stored.partition, stored.offset, stored.timestamp)
    except AttributeError:
        origin = Origin("", -1, -1, -1)
    numbers = (origin.partition, origin.offset, origin.timestamp)
    if type(origin.topic) is not str or not origin.topic or any(type(n) is not int or n < 0 for n in numbers):
        raise DatabaseMisused(
            f"pass the record as poll() has returned it, not {record!r:.80}: the inbox remembers its topic, "
            "partition, offset and timestamp"
        )
    return origin


@dataclass(frozen=True, slots=True)
class Entered:
    """What a handler has written: the row's key, and its time, by which it recognises the row as its own."""

    key: bytes
    handled_ms: int


@dataclass(frozen=True, slots=True)
class InboxRow:
    """One row of the table. ``handled_ms``: since the epoch, by the clock of the service that wrote it."""

    key: bytes
    group: str
    topic: str
    partition: int
    offset: int
    handled_ms: int


def disposable(
    rows: Iterable[InboxRow],
    group: str,
    before: int,
    committed: Mapping[tuple[str, int], int] | None,
    again: Set[bytes] = frozenset(),
) -> list[bytes]:
    """Keys of the group's rows that were written before ``before`` (ms since the epoch), and whose records
    are not delivered again.

    ``committed``: for each partition, the offset from which the group is delivered records. None: not known,
    and the time alone decides. A partition that is missing has been deleted. ``again``: keys of records of
    which the broker has copies that may still be delivered.
    """
    old = (row for row in rows if row.group == group and row.handled_ms < before and row.key not in again)
    if committed is None:
        return [row.key for row in old]
    return [row.key for row in old if row.offset < committed.get((row.topic, row.partition), row.offset + 1)]


class InboxStatements:
    """The statements for one table. Values are named as the columns, in order; ``:after`` and ``:most``."""

    def __init__(self, dialect: Dialect, table: str) -> None:
        if not TABLE.fullmatch(table):
            raise DatabaseMisused(
                f"table {table!r}: use a name of a-z, 0-9 and _ (up to 63), or a schema, a dot and a name"
            )
        self.dialect, self.table = dialect, table
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {table} (record_key {dialect.binary_key} NOT NULL PRIMARY KEY, "
            f"consumer_group {dialect.binary} NOT NULL, topic {dialect.binary} NOT NULL, "
            "topic_partition INTEGER NOT NULL, topic_offset BIGINT NOT NULL, handled_ms BIGINT NOT NULL"
            f"){dialect.after_table}"
        )
        self.enter = (
            f"{dialect.insert} {table} VALUES (:key, :consumer_group, :topic, :topic_partition, "
            f":topic_offset, :handled_ms){dialect.ignoring}"
        )
        self.own = f"SELECT handled_ms FROM {table} WHERE record_key = :key"
        self.undo = f"DELETE FROM {table} WHERE record_key = :key"
        self.slice = (
            "SELECT record_key, consumer_group, topic, topic_partition, topic_offset, handled_ms "
            f"FROM {table} WHERE record_key > :after ORDER BY record_key LIMIT :most"
        )

    def remove(self, keys: list[bytes]) -> tuple[str, dict[str, Any]]:
        """Delete by key alone: a condition on a range would lock its gaps, and so block handlers."""
        names, values = listed(keys)
        return f"DELETE FROM {self.table} WHERE record_key IN ({names})", values


# ------------------------------------------------------------------------------------------------------------
# Removing an inbox's old rows in slices, as ``purging`` does with a fence's.

#: Dead letters, and records in the topic of retries that the group is not past, of which a purge asks. With
#: more of them it removes nothing: their rows must stay, and each costs a call.
LETTERS_MAX, RETRIES_MAX = 100_000, 1_000
#: How often it looks whether there are fewer, and the pause: consumers that work take them in no time.
LOOKS, LOOK_S = 10, 0.2
#: A pause of the group's table, with what brokers add at random.
PAUSE_MORE = 1.1


class GroupOffsets(Protocol):
    """What a purge needs from ``cluster.admin``."""

    def topics(self) -> list[TopicInfo]:
        """All topics."""

    def describe_group(self, group: str) -> Any:
        """The group's committed offset in each partition."""

    def dead_letters(self, group: str, limit: int = 100) -> Sequence[Any]:
        """Those that were neither redriven nor dropped."""

    def message(self, topic: str, partition: int, offset: int) -> Any:
        """One message that can be read."""


@dataclass(frozen=True, slots=True)
class InboxPurged:
    """What a purge did: rows removed, and rows read."""

    removed: int
    read: int


def purge_inbox(
    link: Link,
    statements: InboxStatements,
    group: str,
    admin: GroupOffsets | None,
    now_ms: int,
    before_ms: int,
    slice_rows: int,
    pause_s: float,
    told: Callable[[InboxPurged], None],
) -> InboxPurged:
    """One pass over the table."""
    committed = again = None
    if admin is not None:
        for look in range(LOOKS):
            time.sleep(LOOK_S if look else 0.0)
            letters, described, committed = _described(admin, group)
            again = _coming_again(admin, group, described, letters)
            if again is not None:
                break
        before_ms -= max(_longest_pause_ms(described) - (now_ms - before_ms), 0)
        if again is None:
            return InboxPurged(0, 0)
    after, removed, read = IDENTITY_KEY, 0, 0  # no digest is all zeros
    while True:
        found = [_row(values) for values in link.rows(statements.slice, {"after": after, "most": slice_rows})]
        link.commit()
        keys = disposable(found, group, before_ms, committed, again or frozenset())
        if keys:
            link.run(*statements.remove(keys))
            link.commit()
        read, removed = read + len(found), removed + len(keys)
        so_far = InboxPurged(removed, read)
        if len(found) < slice_rows:
            return so_far
        told(so_far)
        after = found[-1].key
        time.sleep(pause_s)


def _described(
    admin: GroupOffsets, group: str
) -> tuple[Sequence[Any] | None, Any, dict[tuple[str, int], int]]:
    """The group's dead letters (None: too many), the group, and its committed offsets. In this order: what
    is redriven meanwhile is among the letters, and what the group passes meanwhile counts as not passed."""
    share = getattr(admin.describe_group(group), "share", None)
    letters: Sequence[Any] | None = []
    if share is not None and share.dead:
        letters = admin.dead_letters(group, limit=LETTERS_MAX)
        letters = None if len(letters) >= LETTERS_MAX else letters
    described = admin.describe_group(group)
    return letters, described, committed_offsets(admin, described)


def _coming_again(
    admin: GroupOffsets, group: str, described: Any, letters: Sequence[Any] | None
) -> set[bytes] | None:
    """Keys of records of which copies are dead letters, or wait in the group's topic of retries for a
    consumer. A group that is past a record gets it again through these. None: there are too many."""
    if letters is None:
        return None
    again = {origin_of(letter).key(group) for letter in letters if letter.origin is not None}
    own, share = retry_topic(group), getattr(described, "share", None)
    spans = [(p.partition, p.committed or 0, p.end) for p in described.partitions if p.topic == own]
    if share is not None and share.settings.kind == SHARE and share.retrying > share.retrying_later:
        return None  # which ones is not told
    if sum(end - begin for _, begin, end in spans) > RETRIES_MAX:
        return None
    for partition, begin, end in spans:
        for offset in range(begin, end):
            try:
                found = history(admin.message(own, partition, offset).headers).origin
            except OffsetOutOfRange:  # retention has removed it
                continue
            if found is not None:
                again.add(origin_of(found).key(group))
    return again


def _longest_pause_ms(described: Any) -> int:
    """How long a copy may wait for its time: nobody can look into those. Pauses that ``nack`` was given are
    not known."""
    share = getattr(described, "share", None)
    return 0 if share is None else int(max(share.settings.delays_s, default=0.0) * PAUSE_MORE * 1000)


def committed_offsets(admin: GroupOffsets, described: Any) -> dict[tuple[str, int], int]:
    """For each partition that exists: the offset from which the group is delivered records."""
    # Asked for afterwards: a topic that is created meanwhile must not look like a deleted one.
    committed = {(info.name, number): 0 for info in admin.topics() for number in range(info.partitions)}
    for p in described.partitions:
        committed[p.topic, p.partition] = p.committed or 0
    share = getattr(described, "share", None)
    if share is not None and share.settings.kind == SHARE:  # it commits no offsets
        committed.update({(p.topic, p.partition): p.start for p in share.partitions})
    return committed


def _row(values: Sequence[Any]) -> InboxRow:
    key, group, topic, partition, offset, handled_ms = values
    return InboxRow(
        bytes(key), bytes(group).decode(), bytes(topic).decode(), int(partition), int(offset), int(handled_ms)
    )


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
    def once(self, db: Any, record: StoredRecord) -> Iterator[bool]:
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

    def enter(self, link: Link, record: StoredRecord) -> Entered | None:
        """Write the record's row; None if it was there."""
        origin = origin_of(record)
        link.refuse_autocommit("the inbox's row")
        entered = Entered(origin.key(self.group), int(self._clock() * 1000))
        values = {
            "key": entered.key,
            "consumer_group": self._name,
            "topic": origin.topic.encode(),
            "topic_partition": origin.partition,
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
        admin: GroupOffsets | None,
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
