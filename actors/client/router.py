"""The clients' only thread: runs the channels to all broker groups and the sources that feed them.

Callers post work and get futures; answers arrive from Ray's threads; everything else happens in this
thread, so channels and batchers need no locks. It sleeps until something is posted, an answer arrives, or a
deadline, probe or linger is due. It must never block on anything else, and never run user code.
client_loop.py has the work of one turn, and background.py runs the turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from escrowmq.actors.client.background import Background, Threads
from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.closing import FORKED, tell_after_fork
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.linked_calls import LinkedCalls
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer, ReplicaCalls
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.calling.leader import LeaderFollower
from escrowmq.replication.errors import Closed, EscrowMQError

# ------------------------------------------------------------------------------------------------------------
# Keeps clients' lists of a group's replicas up to date, by the version of the group's members.
#
# A client starts with the founders, or with the members at the time it connected. Members change later, one
# after the other, and a client that is idle meanwhile may know none that is left. So each group's list is
# checked from time to time, and soon if a leader appears that is not on it: a replica is asked, and if
# requests wait in vain for a leader, also the supervisor, which knows where all replicas are. An older list
# changes nothing (``LeaderFollower.follow``).
#
# It is pumped in the router's turns, and asks one question at a time for each group; one without an
# answer is given up.

#: Members change rarely, and in steps that take seconds each; a list that is old by this much does no harm
#: while a leader is known, which says itself when it no longer leads.
LOOK_EVERY_S: Final = 30.0
#: After this time without a leader (an election takes less) there may be other replicas than those asked.
ASTRAY_S: Final = 2.0

Call = Callable[[int, int, str, tuple[Any, ...], OnAnswer], None]


class Led(Protocol):
    """What the watch needs from a group's channel."""

    @property
    def follower(self) -> LeaderFollower: ...
    @property
    def searching(self) -> bool: ...


@dataclass(slots=True)
class _Group:
    channel: Led
    look_at: float
    astray_since: float | None = None
    question: int = 0  # number of the newest one; only its answer counts


class MemberWatch:
    """A ``Source`` of the router. ``call``: ``ReplicaCalls.call``. ``post``: to the router."""

    def __init__(
        self, channels: Sequence[Led], call: Call, post: Callable[[Callable[[], None]], None], now: float
    ) -> None:
        self._call, self._post = call, post
        self._groups = [_Group(channel, now + LOOK_EVERY_S) for channel in channels]

    def pump(self, now: float) -> float:
        """Ask what is due; returns the time of the next question."""
        wake = float("inf")
        for gid, group in enumerate(self._groups):
            if not group.channel.searching and group.channel.follower.stranger is None:
                group.astray_since = None
            elif group.astray_since is None:
                group.astray_since = now
                group.look_at = min(group.look_at, now + ASTRAY_S)
            if now >= group.look_at:
                group.look_at = now + (LOOK_EVERY_S if group.astray_since is None else ASTRAY_S)
                self._ask(gid, group)
            wake = min(wake, group.look_at)
        return wake

    def _ask(self, gid: int, group: _Group) -> None:
        group.question += 1
        answered = partial(self._answered, group, group.question)
        follower = group.channel.follower
        if follower.leader is None and group.question % 2:
            self._call(gid, SUPERVISOR_RID, "members_of", (gid,), answered)
            return
        members = follower.members
        rid = members[group.question % len(members)] if follower.leader is None else follower.leader
        self._call(gid, rid, "members", (), answered)

    def _answered(self, group: _Group, question: int, answer: Any, error: BaseException | None) -> None:
        """In any thread. A configuration that is not applied may be cut off again, and another one may then
        get its version number, which would then be ignored here: so it is not adopted."""
        if error is None and isinstance(answer, MembersReport) and answer.applied:
            self._post(lambda: self._follow(group, question, answer))

    def _follow(self, group: _Group, question: int, answer: MembersReport) -> None:
        if question == group.question:
            group.channel.follower.follow(answer.version, answer.all)

    def stopped(self, detail: str) -> None:
        """See ``Source``."""


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
        linked = self.calls if isinstance(self.calls, LinkedCalls) else None
        self._worker = background.worker(
            self._step, name, self.waited_for, wakeup=None if linked is None else linked.wakeup
        )
        self.wakeup = self._worker.wakeup
        if linked is not None:
            self.attach(linked)
        self.attach(MemberWatch(self.channels, self.calls.call, self._post_if_open, self.clock()))
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
        self.calls.call(gid, rid, method, args, done)
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
        self.calls.close()

    def forked(self) -> None:
        """See :class:`~escrowmq.actors.client.closing.Forkable`."""
        self._closing, self._why = True, f"this client cannot be used: {FORKED}"
        if isinstance(self.calls, LinkedCalls):
            self.calls.forked()

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


# ------------------------------------------------------------------------------------------------------------
# Answers from the router's thread to the futures of an event loop, many per wake-up.
#
# ``call_soon_threadsafe`` writes to a socket each time (10 us on both sides); a thousand coroutines whose
# transactions were answered by one call are woken by one such write.


class Ended(Protocol):
    """What became of numbered messages: see ``producer.parcel.Ending``."""

    def metadata(self, number: int) -> Any: ...
    def error(self) -> BaseException | None: ...


class LoopBridge:
    """For one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def waiter(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """A future, and the function that sets it from another thread."""
        future: asyncio.Future[Any] = self.loop.create_future()
        return future, lambda value: self._soon(partial(_set, future, value))

    def ended(self, numbers: Sequence[int], futures: Sequence[asyncio.Future[Any]], ending: Ended) -> None:
        """Set the futures of many messages soon. From any thread."""
        self._soon(partial(_set_all, numbers, futures, ending))

    def _soon(self, work: Callable[[], None]) -> None:
        self._ready.append(work)
        if not self._scheduled:
            self._scheduled = True
            try:
                self.loop.call_soon_threadsafe(self._flush)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._ready.clear()

    def _flush(self) -> None:
        self._scheduled = False  # first, so that items added from now on schedule again
        ready = self._ready
        while ready:
            ready.popleft()()


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # its task was cancelled
        future.set_result(value)


def _set_all(numbers: Sequence[int], futures: Sequence[asyncio.Future[Any]], ending: Ended) -> None:
    for number, future in zip(numbers, futures, strict=True):
        if future.done():  # its task was cancelled
            continue
        error = ending.error()
        if error is None:
            future.set_result(ending.metadata(number))
        else:
            future.set_exception(error)
