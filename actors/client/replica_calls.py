"""The interface between clients and broker actors: start a call, get its answer by callback.

Everything above it (channel, router) is tested without Ray; the calls through Ray are in ray_calls.py.
Calls are never retried here or by Ray: retries are the channel's, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from escrowmq.feedback.asking.shard_report import ShardReport

#: Called once per call, from any thread, never blocking: (answer, None) or (None, error). A call to a
#: process that has died may be answered late or never; callers have their own clock.
OnAnswer = Callable[[Any, BaseException | None], None]

#: Stands for the supervisor in place of a replica's number. The supervisor knows where all replicas are.
SUPERVISOR_RID = -1


class ReplicaCalls(Protocol):
    """Calls to the replicas of a cluster."""

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """Start ``method(*args)`` at replica ``rid`` of group ``gid``, or at the supervisor; does not block
        or raise."""

    def close(self) -> None:
        """No more calls; answers under way may be dropped."""


# ------------------------------------------------------------------------------------------------------------
# How ``status`` asks the feedback processes for their reports: the interface between operators and Ray.
#
# Nothing is started here: without a producer that answers checks there is no feedback process, and none is
# missing.

#: Each process's answer, in order of their numbers, None for one that did not answer; empty: there is none.
ShardReports = list[ShardReport | None]


class FeedbackProcesses(Protocol):
    """The feedback processes of a cluster."""

    def ask(self, wait_s: float) -> Future[ShardReports]:
        """Ask all of them. The caller decides how long to wait."""

    def close(self) -> None:
        """Stops asking."""
