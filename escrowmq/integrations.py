"""Ties to an application's own database: ``Fence``, the querier that nobody has to write.

SQLAlchemy is needed only by who gives objects of it: ``pip install escrowmq[sql]``. ``AsyncFence`` is loaded
when it is first used, since it cannot do without.
"""

from typing import TYPE_CHECKING, Any

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

__all__ = [
    "AlreadyDone",
    "AsyncFence",
    "Fence",
    "FenceLost",
    "FenceMisused",
    "FenceTableMissing",
    "NoDatabaseTransaction",
    "NotPrimary",
    "Purged",
    "WrongDatabase",
]


def __getattr__(name: str) -> Any:
    if name != "AsyncFence":
        raise AttributeError(f"module 'escrowmq.integrations' has no attribute {name!r}")
    from escrowmq.feedback.database.async_fence import AsyncFence

    return AsyncFence
