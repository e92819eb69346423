"""Ties to an application's own database: ``Fence``, the querier that nobody has to write, and ``Inbox``,
which makes the handling of records idempotent.

SQLAlchemy (``pip install escrowmq[sql]``) is needed only if you pass its objects. ``AsyncFence``,
``AsyncInbox`` and the tables for its metadata always need it, so they are imported when they are first used;
``DjangoDatabase`` needs Django.
"""

import importlib
from typing import TYPE_CHECKING, Any

from escrowmq.feedback.database.auditing import Audited, Difference
from escrowmq.feedback.database.errors import (
    AlreadyDone,
    DatabaseMisused,
    FenceLost,
    NoDatabaseTransaction,
    NotPrimary,
    TableMissing,
    WrongDatabase,
)
from escrowmq.feedback.database.fence import Fence
from escrowmq.feedback.database.inbox import Inbox
from escrowmq.feedback.database.inbox_purging import InboxPurged
from escrowmq.feedback.database.purging import Purged

if TYPE_CHECKING:
    from escrowmq.feedback.database.async_fence import AsyncFence
    from escrowmq.feedback.database.async_inbox import AsyncInbox
    from escrowmq.feedback.database.django_links import DjangoDatabase
    from escrowmq.feedback.database.metadata import fence_table, inbox_table

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
    "Purged",
    "TableMissing",
    "WrongDatabase",
    "fence_table",
    "inbox_table",
]

#: Name -> module of feedback/database, for what imports SQLAlchemy or Django.
_LAZY = {
    "AsyncFence": "async_fence",
    "AsyncInbox": "async_inbox",
    "DjangoDatabase": "django_links",
    "fence_table": "metadata",
    "inbox_table": "metadata",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"escrowmq.feedback.database.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'escrowmq.integrations' has no attribute {name!r}")
