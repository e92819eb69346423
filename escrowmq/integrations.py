"""Ties to an application's own database: ``Fence``, the querier that nobody has to write.

SQLAlchemy (``pip install escrowmq[sql]``) is needed only if you pass its objects. ``AsyncFence`` and
``fence_table`` always need it, so they are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from escrowmq.feedback.database.auditing import Audited, Difference
from escrowmq.feedback.database.errors import (
    AlreadyDone,
    FenceLost,
    FenceMisused,
    FenceTableMissing,
    NoDatabaseTransaction,
    NotPrimary,
    WrongDatabase,
)
from escrowmq.feedback.database.fence import Fence
from escrowmq.feedback.database.purging import Purged

if TYPE_CHECKING:
    from escrowmq.feedback.database.async_fence import AsyncFence
    from escrowmq.feedback.database.metadata import fence_table

__all__ = [
    "AlreadyDone",
    "AsyncFence",
    "Audited",
    "Difference",
    "Fence",
    "FenceLost",
    "FenceMisused",
    "FenceTableMissing",
    "NoDatabaseTransaction",
    "NotPrimary",
    "Purged",
    "WrongDatabase",
    "fence_table",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncFence":
        from escrowmq.feedback.database.async_fence import AsyncFence

        return AsyncFence
    if name == "fence_table":
        from escrowmq.feedback.database.metadata import fence_table

        return fence_table
    raise AttributeError(f"module 'escrowmq.integrations' has no attribute {name!r}")
