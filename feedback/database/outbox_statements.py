"""The SQL of an outbox: its messages, and the lease of each shard. Text with named values; pure.

Numbers that the relay itself has read are written into the text: a batch has hundreds of them, and a
statement has few placeholders for values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.statements import TABLE, Dialect
from escrowmq.replication.delivery_times import AT_ONCE, delivery_time, given_by
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message

# ------------------------------------------------------------------------------------------------------------
# The rows of an outbox, as values: a message's content, its position in the order, and its group. Pure.
#
# Databases keep rows while the software is upgraded: no number of ``Row.state`` is ever reused, and a content
# that was written once can be read for ever.

PENDING, DEAD = 1, 2
#: Of an error's text, no more than this is kept with the row.
ERROR_BYTES_MAX = 1024
#: A larger content is not read: no message can be so large, and a relay would need the memory.
CONTENT_BYTES_MAX = 64 << 20
_ORDER_KEY_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode
#: Topic, partition or None, key or None, value, headers or None, delivery time (as of
#: replication/delivery_times.py).
_Fields = tuple[str, int | None, bytes | None, bytes, dict[str, bytes] | None, int]
_decode = msgspec.msgpack.Decoder(_Fields).decode


class UnreadableContent(Exception):
    """This version cannot read a row's content: a later one has written it, or it is damaged."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One row. ``group``: 16 random bytes, the same for the messages of one ``send``; ``group_rows``: how
    many of them are in this shard. ``order_key``: messages that have the same one keep their order; None: it
    has none. ``next_ms``: not sent before, in ms since the epoch. ``batch``: its number while it is being
    sent, and ``placed`` its partition in that batch."""

    id: int
    group: bytes
    group_rows: int
    order_key: bytes | None
    content: bytes
    attempts: int
    next_ms: int
    batch: int | None = None
    placed: int | None = None
    size: int = 0  # bytes of a content that has not been read; 0: it has


def content_of(message: Message) -> bytes:
    """What is stored of a message. Raises InvalidMessage for a value that is not bytes."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"expected an escrowmq.Message, not {type(message).__name__}")
    if type(message.value) is not bytes:
        raise InvalidMessage(
            f"the value of a message in an outbox must be bytes, not {type(message.value).__name__}; "
            "encode it first"
        )
    delayed = message.delay_s is not None or message.deliver_at is not None
    time_ms = delivery_time(message.delay_s, message.deliver_at) if delayed else AT_ONCE
    headers = dict(message.headers) or None
    try:
        return _encode((message.topic, message.partition, message.key, message.value, headers, time_ms))
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"the topic or a header's name is no text that can be sent: {error}") from error


def message_of(content: bytes, placed: int | None = None) -> Message:
    """The message of a content. ``placed``: the partition that was chosen for it. Raises
    UnreadableContent."""
    try:
        topic, partition, key, value, headers, time_ms = _decode(content)
        chosen = partition if placed is None else placed
        return Message(topic, value, key, headers, chosen, **given_by(time_ms))
    except (msgspec.MsgspecError, InvalidMessage, ValueError) as error:
        raise UnreadableContent(
            f"the row's content cannot be read: it is damaged, or of a later version of EscrowMQ ({error}); "
            "upgrade the relay and retry the row, or drop it"
        ) from error


def row_bytes(message: Message, content: bytes) -> int:
    """Of a message of this content, at least so many bytes count for the broker's limits: key, value and
    headers, but not topic, partition and time. The id of the batch's transaction comes to that."""
    return max(len(content) - len(_encode((message.topic, message.partition, 1 << 63))), 0)


def order_key_of(message: Message) -> bytes | None:
    """What keeps its order: the messages of one topic with the same key, or sent to the same partition."""
    if message.partition is not None:
        own = b"partition %d" % message.partition
    elif message.key is not None:
        own = b"key " + message.key
    else:
        return None
    topic = message.topic.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(topic), topic, own)).digest()[:_ORDER_KEY_BYTES]


def shard_of(order_key: bytes | None, group: bytes, shards: int) -> int:
    """The shard of a message: what keeps its order is in one shard; what has none stays with its group."""
    return int.from_bytes((order_key or group)[:8], "big") % shards


def digest_of_rows(rows: Sequence[OutboxRow]) -> bytes:
    """16 bytes that stand for the rows of a batch, in order: a repetition of the batch has the same ones,
    whatever its transaction's id.

    A row is known by its number and by the random bytes of its group: in a database that was restored, a new
    row may have the number and the content of one that was sent. It must not be taken for that one. Contents
    are not in it: what they add is nothing, and a row that was damaged since is still one that was sent.
    """
    digest = hashlib.sha256()
    for row in rows:
        packed = _encode((row.batch, row.id, row.group, row.placed))
        digest.update(b"%d:" % len(packed))
        digest.update(packed)
    return digest.digest()[:16]


# ------------------------------------------------------------------------------------------------------------
# What a relay sends next, and what becomes of rows that the broker refuses. Pure.
#
# Whole groups go, in the order of their first row. A group that waits holds back every later one that has a
# message of the same order key; those hold back others in turn.

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


#: Rows of one INSERT; each has nine values.
INSERT_MAX = 100
_IDS = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    "mysql": "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
}
_CONTENT = {"sqlite": "BLOB", "postgresql": "BYTEA", "mysql": "LONGBLOB"}
_SHORT = {"sqlite": "BLOB", "postgresql": "BYTEA", "mysql": "BINARY(16)"}
_SHOWN = "id, shard, tx_group, state, attempts, next_ms, created_ms, batch, error, content, placed"
_COLUMNS = "id, tx_group, group_rows, order_key, content, attempts, next_ms, batch, placed"
_LIGHT = _COLUMNS.replace("content", "LENGTH(content)")


class OutboxStatements:
    """The statements for a table of messages, and for the table of its shards, ``<table>_shards``."""

    def __init__(self, dialect: Dialect, table: str) -> None:
        if not TABLE.fullmatch(table) or len(table.rpartition(".")[2]) > 50:
            raise DatabaseMisused(
                f"table {table!r}: use a name of a-z, 0-9 and _ (up to 50), or a schema, a dot and a name"
            )
        self.dialect, self.table, self.shards = dialect, table, f"{table}_shards"
        #: Of PostgreSQL's notifications; the same in all processes.
        self.channel = f"escrowmq_outbox_{hashlib.sha256(table.encode()).hexdigest()[:16]}"
        name, engine = dialect.name, dialect.after_table.replace(" WITHOUT ROWID", "")
        schema, dot, short = table.rpartition(".")
        # SQLite names the schema with the index, and PostgreSQL with the table.
        index, of = (f"{schema}{dot}{short}_next", short) if name == "sqlite" else (f"{short}_next", table)
        inline = f", KEY {short}_next (shard, state, id)" if name == "mysql" else ""
        self.create = [
            f"CREATE TABLE IF NOT EXISTS {table} (id {_IDS[name]}, shard INTEGER NOT NULL, "
            f"tx_group {_SHORT[name]} NOT NULL, group_rows INTEGER NOT NULL, order_key {_SHORT[name]}, "
            f"content {_CONTENT[name]} NOT NULL, state SMALLINT NOT NULL, attempts INTEGER NOT NULL, "
            "next_ms BIGINT NOT NULL, created_ms BIGINT NOT NULL, batch BIGINT, placed INTEGER, "
            f"error {dialect.binary}{inline}){engine}",
            f"CREATE TABLE IF NOT EXISTS {self.shards} (shard INTEGER NOT NULL PRIMARY KEY, "
            f"owner {dialect.binary} NOT NULL, until_ms BIGINT NOT NULL, epoch BIGINT NOT NULL, "
            "beat BIGINT NOT NULL, last_batch BIGINT NOT NULL, "
            f"stopped {dialect.binary}){engine}",
        ]
        if name != "mysql":
            self.create.insert(1, f"CREATE INDEX IF NOT EXISTS {index} ON {of} (shard, state, id)")
        self.add_shard = (
            f"{dialect.insert} {self.shards} VALUES (:shard, :nobody, 0, 0, 0, 0, NULL){dialect.ignoring}"
        )
        self.take = (
            f"UPDATE {self.shards} SET owner = :owner, until_ms = :until, epoch = epoch + 1, "
            "beat = ABS(beat) + 1 "
            "WHERE shard = :shard AND stopped IS NULL "
            "AND (until_ms < :now OR until_ms > :beyond OR owner = :owner)"
        )
        self.taken = f"SELECT epoch, last_batch FROM {self.shards} WHERE shard = :shard AND owner = :owner"
        # ``beat`` changes each time: MariaDB does not count rows that an UPDATE leaves as they were. It is
        # negative while the relay sleeps, and wants to be notified.
        # Owner and last batch: a database that was put back under a relay may have its epoch, and be behind.
        self.hold = (
            f"UPDATE {self.shards} SET until_ms = :until, beat = ABS(beat) + 1 WHERE shard = :shard "
            "AND epoch = :epoch AND owner = :owner AND last_batch = :last AND stopped IS NULL"
        )
        self.give_up = (
            f"UPDATE {self.shards} SET until_ms = 0, beat = beat + 1 WHERE shard = :shard AND epoch = :epoch"
        )
        # The lease of a relay that has nothing to send: it goes on sleeping.
        self.extend = self.hold.replace("ABS(beat) + 1", "beat + CASE WHEN beat < 0 THEN -1 ELSE 1 END")
        self.doze = (
            f"UPDATE {self.shards} SET beat = -ABS(beat) - 1 WHERE shard = :shard AND epoch = :epoch "
            "AND owner = :owner"
        )
        self.notify = f"SELECT pg_notify('{self.channel}', '')"
        self.may_notify = f"SELECT has_table_privilege('{self.shards}', 'SELECT')"
        self.advance = f"UPDATE {self.shards} SET last_batch = :batch WHERE shard = :shard"
        self.stop = f"UPDATE {self.shards} SET stopped = :error WHERE shard = :shard"
        self.in_batch = (
            f"SELECT {_COLUMNS} FROM {table} WHERE shard = :shard AND state = {PENDING} "
            "AND batch IS NOT NULL ORDER BY id"
        )
        # Without the contents: a window may have a thousand rows of a MiB.
        self.pending = (
            f"SELECT {_LIGHT} FROM {table} WHERE shard = :shard AND state = {PENDING} AND batch IS NULL "
            "AND id > :after ORDER BY id LIMIT :most"
        )

        self._for_people()

    def _for_people(self) -> None:
        """Those with which people look at rows and shards; see ``outbox_admin``."""
        table = self.table
        self.highest_shard = f"SELECT MAX(shard) FROM {table}"
        self.counted = (
            f"SELECT shard, SUM(CASE WHEN state = {PENDING} THEN 1 ELSE 0 END), COUNT(batch), "
            f"SUM(CASE WHEN state = {DEAD} THEN 1 ELSE 0 END), "
            f"MIN(CASE WHEN state = {PENDING} THEN created_ms END) FROM {table} GROUP BY shard"
        )
        self.leases = f"SELECT shard, last_batch, owner, until_ms, stopped FROM {self.shards}"
        self.of_group = f"SELECT id, batch FROM {table} WHERE shard = :shard AND tx_group = :group"
        # The epoch rises, so that a relay that still thinks it has the shard finds out.
        self.release = (
            f"UPDATE {self.shards} SET stopped = NULL, last_batch = :last, epoch = epoch + 1, until_ms = 0 "
            "WHERE shard = :shard AND stopped IS NOT NULL"
        )
        self.undo_batch = (
            f"UPDATE {table} SET batch = NULL, placed = NULL, next_ms = 0, error = :error "
            f"WHERE shard = :shard AND state = {PENDING} AND batch IS NOT NULL"
        )
        self.hold_back = (
            f"UPDATE {table} SET batch = NULL, placed = NULL, next_ms = 0, error = :error, state = {DEAD} "
            f"WHERE shard = :shard AND state = {PENDING}"
        )

    def listed(self, states: Sequence[int]) -> str:
        """Rows in these states, in order, after ``:after``."""
        return (
            f"SELECT {_SHOWN} FROM {self.table} WHERE state IN ({_list(states)}) AND id > :after "
            "ORDER BY id LIMIT :most"
        )

    def chosen(self, ids: Sequence[int]) -> str:
        """Rows with these ids."""
        return f"SELECT {_SHOWN} FROM {self.table} WHERE id IN ({_list(ids)}) ORDER BY id"

    def retry(self, ids: Sequence[int]) -> str:
        """Try rows again at once. As ones that were tried, so that they go alone. ``next_ms`` changes each
        time, for MariaDB's count."""
        return (
            f"UPDATE {self.table} SET state = {PENDING}, attempts = 1, "
            "next_ms = CASE next_ms WHEN 0 THEN 1 ELSE 0 END "
            f"WHERE id IN ({_list(ids)}) AND batch IS NULL"
        )

    def drop(self, ids: Sequence[int]) -> str:
        """Remove rows that are in no batch."""
        return f"DELETE FROM {self.table} WHERE id IN ({_list(ids)}) AND batch IS NULL"

    def insert(
        self, rows: Sequence[dict[str, Any]], waking: Iterable[int] = ()
    ) -> tuple[str, dict[str, Any]]:
        """Up to ``INSERT_MAX`` new rows. ``waking``: notify the relays of these shards that sleep; on
        PostgreSQL only.

        Not always: a transaction with a notification holds a lock of the whole server while it commits, so
        that no two of them share a sync of the log. A relay at work does not sleep. And not where the
        transaction is serializable: what it reads could end it with a serialization failure.
        """
        values: dict[str, Any] = {}
        parts = []
        for at, row in enumerate(rows):
            values |= {f"{name}{at}": value for name, value in row.items()}
            parts.append(
                f"(:shard{at}, :group{at}, :group_rows{at}, :order_key{at}, :content{at}, {PENDING}, 0, 0, "
                f":created_ms{at})"
            )
        names = "shard, tx_group, group_rows, order_key, content, state, attempts, next_ms, created_ms"
        told = ""
        if shards := list(waking):
            told = (
                f" RETURNING ({self.notify} FROM {self.shards} WHERE shard IN ({_list(shards)}) AND beat < 0 "
                "AND current_setting('transaction_isolation') <> 'serializable' LIMIT 1)"
            )
        return f"INSERT INTO {self.table} ({names}) VALUES {', '.join(parts)}{told}", values

    def waiting(self, shards: Sequence[int], now_ms: int) -> str:
        """Which of these shards have a row whose time has come: a look at many in one statement."""
        ready = f"state = {PENDING} AND batch IS NULL AND next_ms <= {int(now_ms)}"
        return " UNION ALL ".join(
            f"SELECT {int(shard)} FROM (SELECT 1 AS one) AS any_row "
            f"WHERE EXISTS (SELECT 1 FROM {self.table} WHERE shard = {int(shard)} AND {ready})"
            for shard in shards
        )

    def contents(self, ids: Sequence[int]) -> str:
        """Id and content of rows."""
        return f"SELECT id, content FROM {self.table} WHERE id IN ({_list(ids)})"

    def mark(self, batch: int, placed: dict[int, int]) -> str:
        """Give rows the number of a batch, and each its partition."""
        cases = " ".join(f"WHEN {id} THEN {partition}" for id, partition in placed.items())
        return (
            f"UPDATE {self.table} SET batch = {batch}, next_ms = 0, placed = CASE id {cases} END "
            f"WHERE id IN ({_list(placed)}) AND batch IS NULL AND state = {PENDING}"
        )

    def sent(self, batch: int, ids: Sequence[int]) -> str:
        """Remove the rows of a batch."""
        return f"DELETE FROM {self.table} WHERE id IN ({_list(ids)}) AND batch = {batch}"

    def dissolve(self, batch: int, changes: Sequence[Change]) -> str:
        """Take the rows of a batch out of it. ``:error``: why."""
        return self._changed(changes, f"batch = {batch}")

    def bury(self, ids: Sequence[int]) -> str:
        """Rows that cannot be sent at all. ``:error``: why."""
        return (
            f"UPDATE {self.table} SET state = {DEAD}, attempts = attempts + 1, error = :error "
            f"WHERE id IN ({_list(ids)}) AND batch IS NULL AND state = {PENDING}"
        )

    def _changed(self, changes: Sequence[Change], condition: str) -> str:
        def cases(name: str) -> str:
            return " ".join(f"WHEN {one.id} THEN {getattr(one, name)}" for one in changes)

        return (
            f"UPDATE {self.table} SET batch = NULL, placed = NULL, error = :error, "
            f"attempts = CASE id {cases('attempts')} END, next_ms = CASE id {cases('next_ms')} END, "
            f"state = CASE id {cases('state')} END "
            f"WHERE id IN ({_list([one.id for one in changes])}) AND {condition}"
        )


def _list(ids: Any) -> str:
    return ", ".join(str(int(id)) for id in ids)
