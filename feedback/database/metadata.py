"""The tables of a fence, an inbox and an outbox for SQLAlchemy's MetaData, so that a service's own migrations
create them (e.g. Alembic)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
)
from sqlalchemy.dialects import mysql

from escrowmq.feedback.database.fence import TABLE
from escrowmq.feedback.database.inbox import INBOX_TABLE
from escrowmq.feedback.database.outbox import OUTBOX_TABLE

_KEY = LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
_ID = BigInteger().with_variant(Integer, "sqlite")
_SHORT = LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
_CONTENT = LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb")
_TEXT = LargeBinary().with_variant(mysql.VARBINARY(2048), "mysql", "mariadb")


def fence_table(metadata: MetaData, name: str = TABLE) -> Table:
    """Add the table to ``metadata``, as ``Fence.schema()`` defines it in each dialect; returns it.

    ``name``: as given to the fence, with its schema before a dot."""
    return _table(
        metadata,
        name,
        Column("tx_key", _KEY, primary_key=True),
        Column("app", _TEXT, nullable=False),
        Column("tx_id", _TEXT, nullable=False),
        Column("outcome", SmallInteger, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
    )


def inbox_table(metadata: MetaData, name: str = INBOX_TABLE) -> Table:
    """Add the table to ``metadata``, as ``Inbox.schema()`` defines it in each dialect; returns it.

    ``name``: as given to the inbox, with its schema before a dot."""
    return _table(
        metadata,
        name,
        Column("record_key", _KEY, primary_key=True),
        Column("consumer_group", _TEXT, nullable=False),
        Column("topic", _TEXT, nullable=False),
        Column("topic_partition", Integer, nullable=False),
        Column("topic_offset", BigInteger, nullable=False),
        Column("handled_ms", BigInteger, nullable=False),
    )


def outbox_tables(metadata: MetaData, name: str = OUTBOX_TABLE) -> tuple[Table, Table]:
    """Add both tables to ``metadata``, as ``Outbox.schema()`` defines them in each dialect; returns that of
    the messages and that of the shards.

    ``name``: as given to the outbox, with its schema before a dot."""
    short = name.rpartition(".")[2]
    messages = _table(
        metadata,
        name,
        Column("id", _ID, Identity(), primary_key=True),
        Column("shard", Integer, nullable=False),
        Column("tx_group", _SHORT, nullable=False),
        Column("group_rows", Integer, nullable=False),
        Column("order_key", _SHORT),
        Column("content", _CONTENT, nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("next_ms", BigInteger, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
        Column("batch", BigInteger),
        Column("placed", Integer),
        Column("error", _TEXT),
        rowid=True,
    )
    Index(f"{short}_next", messages.c.shard, messages.c.state, messages.c.id)
    shards = _table(
        metadata,
        f"{name}_shards",
        Column("shard", Integer, primary_key=True, autoincrement=False),
        Column("owner", _TEXT, nullable=False),
        Column("until_ms", BigInteger, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("beat", BigInteger, nullable=False),
        Column("last_batch", BigInteger, nullable=False),
        Column("stopped", _TEXT),
        rowid=True,
    )
    return messages, shards


def _table(metadata: MetaData, name: str, *columns: Column[Any], rowid: bool = False) -> Table:
    schema, _, table = name.rpartition(".")
    return Table(
        table,
        metadata,
        *columns,
        schema=schema or None,
        sqlite_with_rowid=rowid,
        sqlite_autoincrement=rowid,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
