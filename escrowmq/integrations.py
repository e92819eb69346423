"""Ties to an application's own database: ``Fence``, the querier that nobody has to write.

SQLAlchemy is needed only by who gives objects of it: ``pip install escrowmq[sql]``.
"""

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

__all__ = [
    "AlreadyDone",
    "Fence",
    "FenceLost",
    "FenceMisused",
    "FenceTableMissing",
    "NoDatabaseTransaction",
    "NotPrimary",
    "Purged",
    "WrongDatabase",
]
