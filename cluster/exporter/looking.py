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
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from escrowmq.actors.admin.group_offsets import describe_each
from escrowmq.actors.admin.types import GroupDescription
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.client.replica_calls import FeedbackProcesses
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.cluster.exporter.findings import Found, ReplicaKey
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport
from escrowmq.replication.errors import EscrowMQError

# ------------------------------------------------------------------------------------------------------------
# The lag of consumer groups, each as it was last found.
#
# A consumer group needs its coordinator and the leaders of its partitions. While a broker group is away, the
# consumer groups that need it keep their last values, and the others go on; when the lag of all consumer
# groups of a coordinator was last found is told as well.

#: Number of consumer groups whose lag is asked for: each costs its coordinator a call.
CONSUMER_GROUPS_MAX = 200
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class FoundLags:
    """What ``Found`` has of consumer groups, under the same names."""

    lag: dict[tuple[str, str], int] = field(default_factory=dict)
    lag_limited: bool = False
    shares: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    lag_at: dict[int, float] = field(default_factory=dict)


class Lags:
    """Looks at one cluster. Used by one thread at a time."""

    def __init__(self, router: Router, wall_clock: Callable[[], float], timeout_s: float = TIMEOUT_S) -> None:
        self._router, self._wall_clock, self._timeout_s = router, wall_clock, timeout_s
        self._offsets = OffsetReader(router)
        self._found: dict[str, GroupDescription] = {}
        self._at: dict[int, float] = {}

    def look(self) -> FoundLags:
        """Asks for at most CONSUMER_GROUPS_MAX groups."""
        names, whole = self._names()
        chosen = sorted(names)[:CONSUMER_GROUPS_MAX]
        kept, self._found = self._found, {}
        for name, found in zip(
            chosen, describe_each(self._router, self._offsets, chosen, self._timeout_s), strict=True
        ):
            if isinstance(found, GroupDescription):
                self._found[name] = found
                continue
            log.debug("the lag of consumer group %s is not known: %s", name, found)
            whole.discard(coordinator_group(name, self._router.info.groups))
            if name in kept:
                self._found[name] = kept[name]
        self._at.update(dict.fromkeys(whole, self._wall_clock()))
        return _sums(self._found.values(), len(names) > CONSUMER_GROUPS_MAX, dict(self._at))

    def _names(self) -> tuple[set[str], set[int]]:
        """Consumer groups, and the broker groups that listed theirs. Of the others, those known before."""
        groups = self._router.info.groups
        asked = [
            self._router.leader_call(gid, "group_list", timeout_s=self._timeout_s) for gid in range(groups)
        ]
        names, whole = set[str](), set[int]()
        for gid, future in enumerate(asked):
            try:
                names.update(result_of(future, self._timeout_s))
                whole.add(gid)
            except EscrowMQError as error:  # a group without a leader must not hide the others
                log.debug("consumer groups of broker group %d are not known: %s", gid, error)
        names.update(name for name in self._found if coordinator_group(name, groups) not in whole)
        return names, whole


def _sums(described: Iterable[GroupDescription], limited: bool, at: dict[int, float]) -> FoundLags:
    found = FoundLags(lag_limited=limited, lag_at=at)
    for group in described:
        for partition in group.partitions:
            if partition.lag is not None:
                key = group.group, partition.topic
                found.lag[key] = found.lag.get(key, 0) + partition.lag
        if (share := group.share) is not None:
            found.shares[group.group] = share.leased, share.retrying, share.dead
            for part in share.partitions:
                key = group.group, part.topic
                found.lag[key] = found.lag.get(key, 0) + part.lag
    return found


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

        Calls to a process that is dead or dying fail in many ways.
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
        self._questions = {
            asked_of: asked for asked_of, asked in self._questions.items() if asked_of[0] in known
        }
