"""Ties to an application's own database: ``Fence``, the querier that nobody has to write; ``Inbox``, which
makes the handling of records idempotent; ``Outbox``, which writes messages while the broker is down.

SQLAlchemy (``pip install escrowmq[sql]``) is needed only if you pass its objects. ``AsyncFence``,
``AsyncInbox`` and the tables for its metadata always need it, so they are imported when they are first used;
``DjangoDatabase`` needs Django.
"""

import importlib
from typing import TYPE_CHECKING, Any

from escrowmq.feedback.database.errors import (
    AlreadyDone,
    DatabaseMisused,
    FenceLost,
    NoDatabaseTransaction,
    NotPrimary,
    OutboxBehind,
    OutboxRowBusy,
    SendTooLarge,
    TableMissing,
    UnknownOutboxRow,
    WrongDatabase,
)
from escrowmq.feedback.database.failures import is_away as database_is_away
from escrowmq.feedback.database.fence import Fence
from escrowmq.feedback.database.inbox import Inbox, InboxPurged
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.outbox_admin import OutboxEntry, OutboxShard
from escrowmq.feedback.database.purging import Audited, Difference, Purged

if TYPE_CHECKING:
    from escrowmq.actors.outbox.relay import OutboxRelay
    from escrowmq.feedback.database.async_fence import AsyncFence
    from escrowmq.feedback.database.async_inbox import AsyncInbox
    from escrowmq.feedback.database.django_links import DjangoDatabase
    from escrowmq.feedback.database.metadata import fence_table, inbox_table, outbox_tables

__all__ = [
    "AlreadyDone",
    "AsyncFence",
    "AsyncInbox",
    "Audited",
    "DatabaseMisused",
    "Difference",
    "DjangoDatabase",
    "Fence",
    "FenceLost",
    "Inbox",
    "InboxPurged",
    "NoDatabaseTransaction",
    "NotPrimary",
    "Outbox",
    "OutboxBehind",
    "OutboxEntry",
    "OutboxRelay",
    "OutboxRowBusy",
    "OutboxShard",
    "Purged",
    "SendTooLarge",
    "TableMissing",
    "UnknownOutboxRow",
    "WrongDatabase",
    "database_is_away",
    "fence_table",
    "inbox_table",
    "outbox_tables",
]

#: Name -> module, for what imports SQLAlchemy, Django or a producer.
_LAZY = {
    "AsyncFence": "feedback.database.async_fence",
    "AsyncInbox": "feedback.database.async_inbox",
    "DjangoDatabase": "feedback.database.django_links",
    "OutboxRelay": "actors.outbox.relay",
    "fence_table": "feedback.database.metadata",
    "inbox_table": "feedback.database.metadata",
    "outbox_tables": "feedback.database.metadata",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"escrowmq.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'escrowmq.integrations' has no attribute {name!r}")
