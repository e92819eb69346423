"""The tables of a fence and of an inbox for SQLAlchemy's MetaData, so that a service's own migrations create
them (e.g. Alembic)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, SmallInteger, Table
from sqlalchemy.dialects import mysql

from escrowmq.feedback.database.fence import TABLE
from escrowmq.feedback.database.inbox import INBOX_TABLE

_KEY = LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
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


def _table(metadata: MetaData, name: str, *columns: Column[Any]) -> Table:
    schema, _, table = name.rpartition(".")
    return Table(
        table,
        metadata,
        *columns,
        schema=schema or None,
        sqlite_with_rowid=False,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
