"""How ``status`` asks the feedback processes for their reports: the interface between operators and Ray.

Nothing is started here: without a producer that answers checks there is no feedback process, and none is
missing.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from escrowmq.feedback.asking.shard_report import ShardReport

#: Each process's answer, in order of their numbers, None for one that did not answer; empty: there is none.
ShardReports = list[ShardReport | None]


class FeedbackProcesses(Protocol):
    """The feedback processes of a cluster."""

    def ask(self, wait_s: float) -> Future[ShardReports]:
        """Ask all of them. The caller decides how long to wait."""

    def close(self) -> None:
        """Stops asking."""
