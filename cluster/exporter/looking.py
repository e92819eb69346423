"""One look at the cluster: asks all processes at once, and waits at most a second for their answers.

A process that has not answered yet is not asked again while that request is pending, so that a process that
hangs or is stopped does not find a queue of requests when it continues. Slow requests (for the offsets of
consumer groups) are made less often, in a separate thread, and a look uses their last result. This module
does not interpret the answers; series.py does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, TypeVar

from escrowmq.actors.client.feedback_processes import FeedbackProcesses
from escrowmq.actors.client.router import Router
from escrowmq.cluster.exporter.findings import Found, ReplicaKey
from escrowmq.cluster.exporter.lags import FoundLags, Lags
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A healthy process answers in milliseconds; a second is for a busy machine.
WAIT_S = 1.0
#: A request without an answer is given up after this time: a process that died may never answer.
GIVEN_UP_S = 30.0
#: How often the lag of consumer groups is asked for.
LAG_EVERY_S = 15.0


class OneAtATime(Generic[T]):
    """Requests to one process: a new one is sent only after the last one was answered or given up."""

    def __init__(self, ask: Callable[[], Future[T]], clock: Callable[[], float]) -> None:
        self._ask, self._clock = ask, clock
        self._asked: Future[T] | None = None
        self._since = 0.0

    def ask(self) -> Future[T]:
        """The pending request; a new one if there is none."""
        now = self._clock()
        if self._asked is None or self._asked.done() or now - self._since >= GIVEN_UP_S:
            self._asked, self._since = self._ask(), now
        return self._asked


class Looks:
    """Looks at one cluster. For use from one thread; ``close`` ends the threads for slow requests."""

    def __init__(
        self,
        router: Router,
        feedback: FeedbackProcesses,
        supervisor: Callable[[], bool],
        *,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``supervisor()``: whether the supervisor answers; it may block for seconds, or raise."""
        self._router, self._feedback, self._wait_s = router, feedback, wait_s
        self._clock, self._wall_clock = clock, wall_clock
        lags = Lags(router, wall_clock)
        self._questions: dict[tuple[ReplicaKey, str], OneAtATime[Any]] = {}
        # One thread for each, so that a supervisor that hangs does not delay the lag.
        self._slow = [ThreadPoolExecutor(1, thread_name_prefix=f"look-{what}") for what in ("head", "lag")]
        self._supervisor = OneAtATime(lambda: self._slow[0].submit(supervisor), clock)
        self._lags = OneAtATime(lambda: self._slow[1].submit(lags.look), clock)
        self._lag = FoundLags()
        self._lag_at = float("-inf")
        info = router.info
        self._members = {
            gid: MembersReport(version=-1, voters=list(range(info.replicas))) for gid in range(info.groups)
        }

    def look(self) -> Found:
        """Ask all processes; returns after at most ``wait_s``."""
        began = self._clock()
        deadline = began + self._wait_s
        # Those that the router has heard of as well: it asks the supervisor if all that it knew are gone.
        keys = self._known()
        asked = {what: self._ask(keys, what) for what in ("status", "metrics")}
        feedback, supervisor = self._feedback.ask(self._wait_s / 2), self._supervisor.ask()
        lag = self._lags.ask() if began - self._lag_at >= LAG_EVERY_S else None
        reports = self._answers(asked["status"], deadline)
        metrics = self._answers(asked["metrics"], deadline)
        self._follow(reports.values())
        shards = self._answer(feedback, deadline)
        there = self._answer(supervisor, deadline)
        found_lag = None if lag is None else self._answer(lag, self._clock())  # not waited for
        if found_lag is not None:
            self._lag, self._lag_at = found_lag, self._clock()
        return Found(
            self._wall_clock(),
            self._clock() - began,
            dict(self._members),
            reports,
            metrics,
            [] if shards is None else shards,
            self._lag.lag,
            self._lag.lag_limited,
            self._lag.shares,
            bool(there),
            self._lag.lag_at,
        )

    def close(self) -> None:
        """Stop asking; pending requests are not waited for."""
        for slow in self._slow:
            slow.shutdown(wait=False, cancel_futures=True)

    def _ask(self, keys: Iterable[ReplicaKey], what: str) -> dict[ReplicaKey, Future[Any]]:
        asked = {}
        for key in keys:
            question = self._questions.get((key, what))
            if question is None:
                ask = lambda key=key, what=what: self._router.replica_call(*key, what)  # noqa: E731
                question = self._questions[key, what] = OneAtATime(ask, self._clock)
            asked[key] = question.ask()
        return asked

    def _answers(self, asked: dict[ReplicaKey, Future[Any]], deadline: float) -> dict[ReplicaKey, Any]:
        found = {key: self._answer(future, deadline) for key, future in asked.items()}
        return {key: answer for key, answer in found.items() if answer is not None}

    def _answer(self, asked: Future[T], deadline: float) -> T | None:
        """The answer; None if it did not come in time, or if the call failed.

        Calls to a process that is dead, dying or of an earlier version fail in many ways.
        """
        try:
            return asked.result(max(deadline - self._clock(), 0.0))
        except FutureTimeout:
            return None
        except Exception as error:
            log.debug("a question was not answered: %r", error)
            return None

    def _known(self) -> list[ReplicaKey]:
        return [
            (gid, rid)
            for gid, members in self._members.items()
            for rid in sorted({*members.all, *self._router.members(gid)})
        ]

    def _follow(self, reports: Iterable[ReplicaReport]) -> None:
        """Update each group's members from the report with the newest configuration."""
        for report in reports:
            members = report.members
            if members is not None and members.version > self._members[report.gid].version:
                self._members[report.gid] = members
        known = set(self._known())
        self._questions = {place: asked for place, asked in self._questions.items() if place[0] in known}
