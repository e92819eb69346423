"""A client's channels to all broker groups, and one turn of whatever runs them; without a thread.

Callers post work and get futures; answers to calls arrive from anywhere; everything else happens in
``turn``. The clients' router calls it from its only thread, the simulator whenever virtual time requires it.
It must never block, and never run user code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, runtime_checkable

from escrowmq.actors.client.channel import GroupChannel, Request
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.wakeup import Wakeup


class Source(Protocol):
    """Something that feeds channels in every turn."""

    def pump(self, now: float) -> float:
        """Submit what is due to the channels; returns the latest time of the next call."""

    def stopped(self, detail: str) -> None:
        """The router ends: nothing further will be sent or answered."""


@runtime_checkable
class Waited(Protocol):
    """A source whose callers may be waiting although none of its requests is under way."""

    def waited_for(self) -> bool:
        """Whether a caller is waiting now."""


class ClientLoop:
    """Channels to every group of a cluster, without a thread. ``post`` and answers: from any thread."""

    def __init__(
        self,
        info: ClusterInfo,
        config: ChannelConfig,
        calls: ReplicaCalls,
        *,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """``rng``: jitter only, no outcome depends on it."""
        self.info, self.clock = info, clock
        self.placement = TopicPlacement(info.groups)
        self.calls = calls
        self.channels = [
            GroupChannel(info.replicas, config, partial(self._start_call, gid), rng)
            for gid in range(info.groups)
        ]
        self._posted: deque[Callable[[], None]] = deque()
        self._answers: deque[tuple[int, int, Any, BaseException | None]] = deque()
        self._sources: list[Source] = []
        self._waited: list[Waited] = []
        self.wakeup = Wakeup()

    # ------------------------------------------------------------ calls

    def submit(self, gid: int, request: bytes, timeout_s: float = 30.0) -> Future[list[Any]]:
        """Operations (frames of ``format.ops``) to a group's leader -> one result per operation."""
        return self.leader_call(gid, "submit", request, timeout_s=timeout_s)

    def leader_call(
        self,
        gid: int,
        method: str,
        *args: Any,
        timeout_s: float = 30.0,
        patience_s: float = 0.0,
        repeated: Callable[[], None] | None = None,
    ) -> Future[Any]:
        """``method(*args)`` at the leader of a group, through fail-overs; ``("ok", x)`` becomes x.

        Any other answer that is not about leadership or load is returned unchanged. ``patience_s``: how
        long the method may take by design (long polls). The future's error is OutcomeUnknown at the
        deadline if the call may have been executed, unless it only reads; else Unavailable, Overloaded
        or DiskFull. ``repeated`` is called before that, in the router's thread, if an earlier sending of it
        got no answer: that copy may still be on its way, and be executed later than anything that is
        called from now on.
        """
        future: Future[Any] = Future()

        def done(answer: Any, maybe_done: bool, _: int) -> None:
            if maybe_done and repeated is not None:
                repeated()
            if isinstance(answer, Failure):
                future.set_exception(answer.error(f"{method} at group {gid}"))
            elif type(answer) is tuple and len(answer) in (2, 3) and answer[0] == "ok":
                future.set_result(answer[1])
            else:
                future.set_result(answer)

        deadline = self.clock() + timeout_s
        request = Request(method, args, deadline, done, windowed=False, patience_s=patience_s)
        self.post(lambda: self._submit(gid, request))
        return future

    def _submit(self, gid: int, request: Request) -> None:
        self.channels[gid].submit(request, self.clock())

    def attach(self, source: Source) -> None:
        """Pump ``source`` in every turn from now on."""
        if isinstance(source, Waited):
            self._waited.append(source)
        self.post(lambda: self._sources.append(source))

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the next turn."""
        self._posted.append(work)
        self.wakeup.set()

    def _start_call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], token: int) -> None:
        def done(answer: Any, error: BaseException | None) -> None:
            self._answers.append((gid, token, answer, error))
            self.wakeup.set()

        self.calls.call(gid, rid, method, args, done)

    def turn(self) -> float:
        """Do all that can be done now; returns the latest time of the next call."""
        self.wakeup.clear()
        posted, answers = self._posted, self._answers
        while posted:
            posted.popleft()()
        now = self.clock()
        while answers:
            gid, token, answer, error = answers.popleft()
            self.channels[gid].on_answer(token, answer, error, now)
        for channel in self.channels:
            channel.tick(now)
        wake = float("inf")
        for source in self._sources:
            wake = min(wake, source.pump(now))
        for channel in self.channels:
            wake = min(wake, channel.next_wake(now))
        return wake

    def waited_for(self) -> bool:
        """Whether some request has no answer yet, or a source is waited for."""
        return any(channel.busy for channel in self.channels) or any(
            source.waited_for() for source in self._waited
        )

    def close(self) -> None:
        """End every request now (flush before)."""
        self.end("this client was closed")
        self.calls.close()

    def end(self, detail: str) -> None:
        """End every request now, and tell the sources."""
        while self._posted:
            self._posted.popleft()()  # the requests that it submits are ended with the rest
        for channel in self.channels:
            channel.fail_all(FailureKind.CLOSED, detail)
        for source in self._sources:
            source.stopped(detail)
