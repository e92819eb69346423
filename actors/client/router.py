"""The clients' one thread: runs the channels to all broker groups and whoever feeds them.

Callers post work and get futures; answers come in from Ray's threads; everything else happens in this
thread, so channels and batchers need no locks. It sleeps until something is posted, an answer comes, or
a deadline, probe or linger is due. It must never block on anything else, and never run user code.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from escrowmq.actors.client.channel import GroupChannel, Request
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.client.replica_calls import RayCalls, ReplicaCalls
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.wakeup import Wakeup
from escrowmq.replication.errors import Closed, EscrowMQError

log = logging.getLogger(__name__)

#: Longest sleep: bounds what a lost wake-up could cost.
SLEEP_S_MAX = 1.0


class Source(Protocol):
    """Something that feeds channels from the router's thread."""

    def pump(self, now: float) -> float:
        """Submit what is due to the channels; returns when to be called again at the latest."""

    def stopped(self, detail: str) -> None:
        """The router ends: nothing further will be sent or answered."""


class Router:
    """Channels to every group of a cluster. Thread-safe; closed by :meth:`close`."""

    def __init__(
        self,
        info: ClusterInfo,
        config: ChannelConfig | None = None,
        calls: ReplicaCalls | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        name: str = "escrowmq-client",
    ) -> None:
        self.info, self.clock = info, clock
        self._config = config or ChannelConfig()
        self._calls = calls or RayCalls(info)
        rng = random.Random()  # jitter only: no outcome depends on it
        self.channels = [
            GroupChannel(info.replicas, self._config, partial(self._start_call, gid), rng)
            for gid in range(info.groups)
        ]
        self._posted: deque[Callable[[], None]] = deque()
        self._answers: deque[tuple[int, int, Any, BaseException | None]] = deque()
        self._sources: list[Source] = []
        self._closing = self._ended = False
        self._end_lock = threading.Lock()
        self.wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ calls

    def submit(self, gid: int, request: bytes, timeout_s: float = 30.0) -> Future[list[Any]]:
        """Operations (frames of ``format.ops``) to a group's leader -> one result per operation."""
        return self.leader_call(gid, "submit", request, timeout_s=timeout_s)

    def leader_call(
        self, gid: int, method: str, *args: Any, timeout_s: float = 30.0, patience_s: float = 0.0
    ) -> Future[Any]:
        """``method(*args)`` at the leader of a group, through fail-overs; ``("ok", x)`` becomes x.

        Any other answer that is not about leadership or load is returned as it is. ``patience_s``: how
        long the method may take on purpose (long polls). The future's error is OutcomeUnknown at the
        deadline if the call may have been executed; else Unavailable, Overloaded or DiskFull.
        """
        future: Future[Any] = Future()

        def done(answer: Any, _: bool) -> None:
            if isinstance(answer, Failure):
                future.set_exception(answer.error(f"{method} at group {gid}"))
            elif type(answer) is tuple and len(answer) == 2 and answer[0] == "ok":
                future.set_result(answer[1])
            else:
                future.set_result(answer)

        deadline = self.clock() + timeout_s
        request = Request(method, args, deadline, done, windowed=False, patience_s=patience_s)
        self.post(lambda: self._submit(gid, request))
        return future

    def _submit(self, gid: int, request: Request) -> None:
        self.channels[gid].submit(request, self.clock())

    def replica_call(self, gid: int, rid: int, method: str, *args: Any) -> Future[Any]:
        """One call to one replica, without retries; the answer or error as it comes, maybe never."""
        future: Future[Any] = Future()

        def done(answer: Any, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)

        if self._closing:
            raise Closed("this client was closed; create a new one")
        self._calls.call(gid, rid, method, args, done)
        return future

    # ------------------------------------------------------------ the thread

    def attach(self, source: Source) -> None:
        """Have ``source`` pumped by this thread."""
        self.post(lambda: self._sources.append(source))

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the router's thread soon."""
        if self._closing:
            raise Closed("this client was closed; create a new one")
        self._posted.append(work)
        self.wakeup.set()
        if self._ended:  # lost the race against close: nobody else will look at it
            self._end("this client was closed")

    def close(self) -> None:
        """End every request now (flush before) and stop the thread. Safe to call twice."""
        self._closing = True
        self.wakeup.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10.0)
        self._calls.close()

    def _start_call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], token: int) -> None:
        def done(answer: Any, error: BaseException | None) -> None:
            self._answers.append((gid, token, answer, error))
            self.wakeup.set()

        self._calls.call(gid, rid, method, args, done)

    def _run(self) -> None:
        detail = "this client was closed"
        try:
            while not self._closing:
                wake = self._turn()
                delay = min(max(wake - self.clock(), 0.0), SLEEP_S_MAX)
                if delay > 0 and not self._answers and not self._posted:
                    self.wakeup.wait(delay)
        except Exception as error:
            log.exception("the client's thread failed; everything under way is ended")
            detail = f"the client's thread failed: {error!r}"
        self._closing = self._ended = True
        self._end(detail)

    def _turn(self) -> float:
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

    def _end(self, detail: str) -> None:
        with self._end_lock:
            while self._posted:
                self._posted.popleft()()  # their requests are ended with the rest
            for channel in self.channels:
                channel.fail_all(FailureKind.CLOSED, detail)
            for source in self._sources:
                source.stopped(detail)


def result_of(future: Future[Any], timeout_s: float) -> Any:
    """The answer to a router's future; it ends by its own deadline, this one only guards against bugs."""
    try:
        return future.result(timeout_s + 10.0)
    except EscrowMQError as error:
        # The same object may be raised in many threads: each gets its own traceback.
        raise type(error)(*error.args) from error
