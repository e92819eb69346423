"""The clients' only thread: runs the channels to all broker groups and the sources that feed them.

Callers post work and get futures; answers arrive from Ray's threads; everything else happens in this
thread, so channels and batchers need no locks. It sleeps until something is posted, an answer arrives, or a
deadline, probe or linger is due. It must never block on anything else, and never run user code.
client_loop.py has the work of one turn, and background.py runs the turns.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.background import Background, Threads
from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.forking import FORKED, tell_after_fork
from escrowmq.actors.client.linked_calls import LinkedCalls
from escrowmq.actors.client.member_watch import MemberWatch
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.errors import Closed, EscrowMQError

log = logging.getLogger(__name__)

_CLOSED = "this client was closed; create a new one"


class Router(ClientLoop):
    """Channels to every group of a cluster, run by a thread. Thread-safe; closed by :meth:`close`.

    ``background``: runs it; None: a thread.
    """

    def __init__(
        self,
        info: ClusterInfo,
        config: ChannelConfig | None = None,
        calls: ReplicaCalls | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        name: str = "escrowmq-client",
        background: Background | None = None,
    ) -> None:
        background = background or Threads(clock)
        super().__init__(
            info,
            config or ChannelConfig(),
            calls or over_ray(info),
            clock=background.clock,
            rng=random.Random(),
        )
        self._closing = self._ended = False
        self._why = _CLOSED
        tell_after_fork(self)
        self._end_lock = threading.Lock()
        linked = self._calls if isinstance(self._calls, LinkedCalls) else None
        self._worker = background.worker(
            self._step, name, self.waited_for, wakeup=None if linked is None else linked.wakeup
        )
        self.wakeup = self._worker.wakeup
        if linked is not None:
            self.attach(linked)
        self.attach(MemberWatch(self.channels, self._calls.call, self._post_if_open, self.clock()))
        self._worker.start()

    def replica_call(self, gid: int, rid: int, method: str, *args: Any) -> Future[Any]:
        """One call to one replica, without retries; its answer or error, possibly never."""
        future: Future[Any] = Future()

        def done(answer: Any, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)

        if self._closing:
            raise Closed(self._why)
        self._calls.call(gid, rid, method, args, done)
        return future

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the router's thread soon."""
        if self._closing:
            raise Closed(self._why)
        super().post(work)
        if self._ended:  # lost the race against close: nothing else will run this
            self.end("this client was closed")

    def _post_if_open(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(Closed):
            self.post(work)

    def members(self, gid: int) -> tuple[int, ...]:
        """The replicas of a group, as far as they are known here. Any thread."""
        return self.channels[gid].follower.members

    def close(self) -> None:
        """See :meth:`ClientLoop.close`; also stops the thread. Safe to call twice."""
        if self._why is not _CLOSED:  # after a fork: the thread is the parent's
            return
        self._closing = True
        self.wakeup.set()
        self._worker.join()
        self._calls.close()

    def forked(self) -> None:
        """See :class:`~escrowmq.actors.client.forking.Forkable`."""
        self._closing, self._why = True, f"this client cannot be used: {FORKED}"
        if isinstance(self._calls, LinkedCalls):
            self._calls.forked()

    def _step(self) -> float | None:
        detail = "this client was closed"
        if not self._closing:
            try:
                return self.turn()
            except Exception as error:
                log.exception("the client's thread failed; everything under way is ended")
                detail = f"the client's thread failed: {error!r}"
        self._closing = self._ended = True
        self.end(detail)
        return None

    def end(self, detail: str) -> None:
        """See :meth:`ClientLoop.end`; from any thread, possibly more than once."""
        with self._end_lock:
            super().end(detail)


def over_ray(info: ClusterInfo) -> ReplicaCalls:
    """Calls through Ray, which is imported only here, so that clients with other calls need no Ray; requests
    over connections of their own."""
    from escrowmq.actors.client.ray_calls import RayCalls

    return LinkedCalls(RayCalls(info))


def result_of(future: Future[Any], timeout_s: float) -> Any:
    """The result of a router's future; it has its own deadline, this one only guards against bugs."""
    try:
        return future.result(min(timeout_s + 10.0, threading.TIMEOUT_MAX))
    except EscrowMQError as error:
        # The same object may be raised in many threads: each gets its own traceback.
        raise type(error)(*error.args) from error
