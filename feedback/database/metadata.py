"""The fence's table for SQLAlchemy's MetaData, so that a service's own migrations create it (e.g.
Alembic)."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, SmallInteger, Table
from sqlalchemy.dialects import mysql

from escrowmq.feedback.database.fence import TABLE


def fence_table(metadata: MetaData, name: str = TABLE) -> Table:
    """Add the table to ``metadata``, as ``Fence.schema()`` defines it in each dialect; returns it.

    ``name``: as given to the fence, with its schema before a dot."""
    schema, _, table = name.rpartition(".")
    key = LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
    text = LargeBinary().with_variant(mysql.VARBINARY(2048), "mysql", "mariadb")
    return Table(
        table,
        metadata,
        Column("tx_key", key, primary_key=True),
        Column("app", text, nullable=False),
        Column("tx_id", text, nullable=False),
        Column("outcome", SmallInteger, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
        schema=schema or None,
        sqlite_with_rowid=False,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
