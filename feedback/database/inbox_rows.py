"""The rows of an inbox, as values: which record a row stands for, and which rows may be removed. Pure.

A row exists if, and only if, the work for its record is committed, because both are written in one database
transaction. Its key is a digest of the consumer group and of the place where the record was first stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.statements import TABLE, Dialect, listed

#: A group's name is stored as bytes; MariaDB's INSERT IGNORE would cut a longer one without a word.
GROUP_BYTES_MAX = 2048


class Place(Protocol):
    """Where a record is: as much of a ``ConsumerRecord`` as an inbox needs."""

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
    attempt, else its own place. Raises DatabaseMisused for anything else than a record."""
    first = getattr(record, "origin", None)
    place: Place = record if first is None else first
    try:
        origin = Origin(place.topic, place.partition, place.offset, place.timestamp)
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
    places: Mapping[tuple[str, int], int] | None,
    again: Set[bytes] = frozenset(),
) -> list[bytes]:
    """Keys of the group's rows that were written before ``before`` (ms since the epoch), and whose records
    are not delivered again.

    ``places``: for each partition, the offset from which the group is delivered records. None: not known, and
    the time alone decides. A partition that is missing has been deleted. ``again``: keys of records of which
    the broker has copies that may still be delivered.
    """
    old = (row for row in rows if row.group == group and row.handled_ms < before and row.key not in again)
    if places is None:
        return [row.key for row in old]
    return [row.key for row in old if row.offset < places.get((row.topic, row.partition), row.offset + 1)]


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
            f"{dialect.insert} {table} VALUES (:key, :consumer_group, :topic, :place, :topic_offset, "
            f":handled_ms){dialect.ignoring}"
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
