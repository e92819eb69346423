"""Keeps commits over several groups waiting for a moment, so that somebody finds a stable cut beside them.

Without it, a cut could not be found where such commits never pause. Only homes' commits wait: what is decided
already must reach its branches. A hold ends with the cut that asked for it, and takes at most a fifth of the
time, so commits are never kept away. Requests that wait count in the leader's queue. Not replicated: if it is
lost with the leadership, the cut takes one more try.
"""

from __future__ import annotations

from collections import deque

from escrowmq.replication.format.codec import OpType
from escrowmq.replication.format.cut_ops import HOLD_MS_MAX
from escrowmq.replication.replica.submission import Submission

#: After a hold, none begins for so many times its length.
REST = 4


class CommitHold:
    """Pure; ``now_ms`` is the group's time. ``until_ms``: when the hold ends; None: there is none."""

    def __init__(self) -> None:
        self.until_ms: int | None = None
        self._began_ms = self._next_ms = 0
        self._held: deque[Submission] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def ask(self, hold_ms: int, now_ms: int) -> list[Submission]:
        """A CUT is written: begin a hold of ``hold_ms``, if one is due, or end the present one (0). Returns
        the requests to be taken up, oldest first."""
        if hold_ms == 0:
            return self.end(now_ms)
        if self.until_ms is None and now_ms >= self._next_ms:
            self._began_ms, self.until_ms = now_ms, now_ms + min(hold_ms, HOLD_MS_MAX)
        return []

    def end(self, now_ms: int) -> list[Submission]:
        """There is no hold any more; returns what was held."""
        if self.until_ms is not None:
            self.until_ms, self._next_ms = None, now_ms + REST * max(now_ms - self._began_ms, 0)
        held, self._held = list(self._held), deque()
        return held

    def over(self, now_ms: int) -> list[Submission]:
        """What was held, if the hold's time is over."""
        return self.end(now_ms) if self.until_ms is not None and now_ms >= self.until_ms else []

    def keeps(self, submission: Submission) -> bool:
        """Whether the request waits, and it does from now on. Call it only during a hold."""
        if any(
            unit.ops[0].type == OpType.COMMIT and len(meta := unit.ops[0].meta) > 5 and meta[5] < 0
            for unit in submission.units
        ):
            self._held.append(submission)
            return True
        return False
