"""Requests over a client's own connection to the broker where there is one, everything else through Ray.

The broker's actor says where it listens and gives the key (``client_link``). As long as there is no
connection (it is being made, the broker offers none, a firewall is between), requests go through Ray's calls,
so a connection only ever makes them cheaper. In the router's thread, except ``call`` of other methods.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from escrowmq.actors.client.client_link import ClientLink
from escrowmq.actors.client.replica_calls import OnAnswer, ReplicaCalls
from escrowmq.actors.client.select_wakeup import SelectWakeup
from escrowmq.replication.calling.backoff import Backoff
from escrowmq.replication.errors import Closed
from escrowmq.replication.net.client_frames import REQUEST_BYTES_MAX

#: The method whose calls go over the link.
SUBMIT = "submit"
#: An answer, a connection and a greeting take less than this unless something is wrong.
CONNECT_TIMEOUT_S = 3.0
#: Pauses before a broker is asked again after it offered no link, or none came up.
ASK_AGAIN = Backoff(first_s=0.2, longest_s=30.0, jitter=1.0)
#: A connection that answers nothing for this long may be dead although Ray's calls work (a firewall that has
#: forgotten it): what is sent meanwhile, above all repetitions, goes through Ray.
SILENT_S = 1.0


@dataclass(slots=True)
class _Broker:
    """What is known of the way to one broker. ``asking_until``: an answer or a greeting is awaited."""

    link: ClientLink | None = None
    failures: int = 0
    not_before: float = float("-inf")
    asking_until: float = float("-inf")


class LinkedCalls:
    """See :class:`ReplicaCalls`. ``wakeup``: what the thread that calls it for requests waits on."""

    def __init__(self, over: ReplicaCalls, clock: Callable[[], float] = time.monotonic) -> None:
        self.wakeup = SelectWakeup()
        #: Requests that went over a link.
        self.linked = 0
        self._over, self._clock = over, clock
        self._brokers: dict[tuple[int, int], _Broker] = {}
        self._offers: deque[tuple[tuple[int, int], Any]] = deque()  # filled by any thread
        self._closed = False
        self._rng = random.Random()  # only spreads clients over time

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See :class:`ReplicaCalls`. ``submit``: in the router's thread only."""
        is_small = method == SUBMIT and len(args[0]) <= REQUEST_BYTES_MAX
        if is_small and (link := self._link(gid, rid)) is not None:
            self.linked += 1
            link.call(args[0], done)
            return
        self._over.call(gid, rid, method, args, done)

    def pump(self, now: float) -> float:
        """See ``Source``: begins to connect to the brokers that have offered a connection."""
        while self._offers:
            where, offer = self._offers.popleft()
            broker = self._brokers[where]
            if broker.link is not None or self._closed:
                continue
            if not (type(offer) is tuple and len(offer) == 3):  # None, or ("no_method",): an earlier version
                broker.asking_until = now
                continue
            host, port, key = offer
            try:
                broker.link = ClientLink((host, port), key, self.wakeup)
            except OSError:
                broker.asking_until = now
        for known in self._brokers.values():
            if known.link is not None:
                known.link.look(now)
        return float("inf")

    def stopped(self, detail: str) -> None:
        """See ``Source``."""
        self._closed = True
        for broker in self._brokers.values():
            if broker.link is not None:
                broker.link.close(Closed(detail))

    def close(self) -> None:
        """See :class:`ReplicaCalls`."""
        if self._closed:  # by the thread that waits on it, which has ended then
            self.wakeup.close()
        self._over.close()

    def forked(self) -> None:
        """In a forked process: the connections are the parent's."""
        self._closed = True
        for broker in self._brokers.values():
            if broker.link is not None:
                broker.link.forked()

    def _link(self, gid: int, rid: int) -> ClientLink | None:
        """The connection if it is up; otherwise sees to it that there will be one."""
        broker = self._brokers.setdefault((gid, rid), _Broker())
        link = broker.link
        now = self._clock()
        if link is not None and link.up and link.ended is None:
            broker.failures = 0
            return link if link.silent_s(now) < SILENT_S else None
        if now < broker.asking_until and (link is None or link.ended is None):
            return None
        if link is not None or broker.asking_until > float("-inf"):  # it has failed
            if link is not None:
                link.close(TimeoutError("the broker did not answer the greeting"))
            broker.link, broker.asking_until = None, float("-inf")
            broker.not_before = now + ASK_AGAIN.pause_s(broker.failures, self._rng)
            broker.failures += 1
        if now >= broker.not_before and not self._closed:
            broker.asking_until = now + CONNECT_TIMEOUT_S
            self._over.call(gid, rid, "client_link", (), partial(self._offered, (gid, rid)))
        return None

    def _offered(self, where: tuple[int, int], offer: Any, error: BaseException | None) -> None:
        self._offers.append((where, offer))
        self.wakeup.set()
