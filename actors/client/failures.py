"""How a call can end other than by an answer, and which error the caller gets.

The essential distinction is between *nothing was done* and *nobody knows*: the first may be reported
as a failure, the second never.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from escrowmq.replication.errors import (
    Closed,
    DiskFull,
    EscrowMQError,
    InvalidMessage,
    NotSupported,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)


class FailureKind(enum.Enum):
    """Why there is no answer. All but UNKNOWN mean that nothing was done."""

    UNKNOWN = "unknown"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    DISK_FULL = "disk_full"
    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a request without an answer; ``detail``: the last thing observed."""

    kind: FailureKind
    detail: str = ""
    retry_after_s: float = 0.1

    @property
    def nothing_done(self) -> bool:
        """True if the request certainly had no effect."""
        return self.kind is not FailureKind.UNKNOWN

    def error(self, subject: str) -> EscrowMQError:
        """The typed error for a caller; ``subject``: the transaction id, or what was being done."""
        kind, detail = self.kind, self.detail
        if kind is FailureKind.UNKNOWN:
            return OutcomeUnknown(subject)
        if kind is FailureKind.OVERLOADED:
            return Overloaded(detail or "the broker's queue is full", self.retry_after_s)
        if kind is FailureKind.DISK_FULL:
            text = "the broker's disk is full; free space on its node, 'escrowmq status' tells where"
            return DiskFull(detail or text, self.retry_after_s)
        if kind is FailureKind.MALFORMED:
            return InvalidMessage(f"the broker refused the request: {detail}")
        if kind is FailureKind.UNSUPPORTED:
            return NotSupported(f"{subject}: {detail}")
        if kind is FailureKind.CLOSED:
            return Closed(detail or "closed; create a new one")
        return Unavailable(detail or "the broker group has no leader or no majority", self.retry_after_s)
