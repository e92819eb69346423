"""Requests over a client's own connection to the broker where there is one, everything else through Ray.

The broker's actor says where it listens and gives the key (``client_link``). As long as there is no
connection (it is being made, the broker offers none, a firewall is between), requests go through Ray's calls,
so a connection only ever makes them cheaper. In the router's thread, except ``call`` of other methods.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from escrowmq.actors.client.replica_calls import OnAnswer, ReplicaCalls
from escrowmq.actors.client.wakeup import Wakeup
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import Closed, WireError
from escrowmq.replication.net.client_listener import (
    GREETING_BYTES_MAX,
    NONCE_BYTES,
    ClientGreeting,
    FrameBuffer,
    decode_answer,
    fits_link,
    frame,
    notice_silence,
)

# ------------------------------------------------------------------------------------------------------------
# A Wakeup whose waiter also waits for sockets: one system call for both.

#: Called in the waiter's thread when its socket can be read or written; must not block.
OnReady = Callable[[], None]


class SelectWakeup(Wakeup):
    """See :class:`Wakeup`. ``watch`` and ``forget``: in the waiter's thread only."""

    __slots__ = ("_asleep", "_end", "_read", "_selector")

    def __init__(self) -> None:
        super().__init__()
        self._asleep = False
        self._selector = selectors.DefaultSelector()
        self._read, self._end = socket.socketpair()
        self._read.setblocking(False)
        self._end.setblocking(False)
        self._selector.register(self._read, selectors.EVENT_READ, self._drain)

    def set(self) -> None:
        """See :class:`Wakeup`."""
        self._flag = True
        if self._asleep:  # otherwise the waiter looks at the flag before it sleeps
            self._asleep = False  # one byte wakes it, however many call this before it has run
            with contextlib.suppress(OSError):  # full: it will wake up; closed: nobody waits
                self._end.send(b"\0")

    def clear(self) -> None:
        """See :class:`Wakeup`."""
        self._flag = False

    def wait(self, timeout_s: float) -> None:
        """See :class:`Wakeup`; also returns when a watched socket was ready, after its ``OnReady`` was
        called."""
        self._asleep = True
        try:
            ready = self._selector.select(0 if self._flag else max(timeout_s, 0))
        finally:
            self._asleep = False
        for key, _ in ready:
            key.data()

    def watch(self, sock: socket.socket, on_ready: OnReady, *, writing: bool = False) -> None:
        """Call ``on_ready`` whenever ``sock`` can be read, or with ``writing`` also when it can be
        written."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        try:
            self._selector.modify(sock, events, on_ready)
        except KeyError:
            self._selector.register(sock, events, on_ready)

    def forget(self, sock: socket.socket) -> None:
        """Watch it no more; before it is closed."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def close(self) -> None:
        """Nobody will wait again."""
        self._selector.close()
        self._read.close()
        self._end.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read.fileno(), 512):
                pass


# ------------------------------------------------------------------------------------------------------------
# A client's own TCP connection to one broker: requests out, answers in, in the router's thread.
#
# It never blocks. What goes wrong with it ends it, and every call under way on it gets that error: whether
# the broker has done it is unknown, so the channel sends it again, as after a lost Ray call.

#: Of one answer: a few bytes per operation of a request.
ANSWER_BYTES_MAX: Final = 64 << 20
RECEIVE_BYTES: Final = 256 << 10
#: A broker whose machine has not acknowledged a byte for this long is gone.
DEAD_BROKER_MS: Final = 10_000


class ClientLink:
    """See the module's text. ``up``: whether calls can be sent; ``ended``: why they no longer can."""

    def __init__(self, address: tuple[str, int], key: bytes, wakeup: SelectWakeup) -> None:
        """Begins to connect. Raises OSError if that fails at once."""
        self.up = False
        self.ended: BaseException | None = None
        self._wakeup = wakeup
        self._greeting = ClientGreeting(key, os.urandom(NONCE_BYTES))
        self._frames = FrameBuffer(GREETING_BYTES_MAX)
        self._unsent: deque[memoryview] = deque()
        self._calls: dict[int, OnAnswer] = {}
        self._number = 0
        self._silent_since: float | None = None
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_silence(self._socket, DEAD_BROKER_MS)
            code = self._socket.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except BaseException:
            self._socket.close()
            raise
        self._unsent.append(memoryview(frame(0, self._greeting.hello())))
        wakeup.watch(self._socket, self._ready, writing=True)

    def call(self, request: bytes, done: OnAnswer) -> None:
        """Send a request; ``done`` gets the answer, or the error that ended the link."""
        if self.ended is not None:
            done(None, self.ended)
            return
        self._number += 1
        self._calls[self._number] = done
        self._send(frame(self._number, request))

    def close(self, why: BaseException) -> None:
        """End it; every call under way gets ``why``."""
        if self.ended is not None:
            return
        self.up, self.ended = False, why
        self._wakeup.forget(self._socket)
        with contextlib.suppress(OSError):  # a forked process may hold a copy of the descriptor
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._unsent.clear()
        calls, self._calls = self._calls, {}
        for done in calls.values():
            done(None, why)

    def forked(self) -> None:
        """In a forked process: the connection is the parent's."""
        self.up, self.ended = False, ConnectionAbortedError("this process was forked")
        self._socket.close()

    def look(self, now: float) -> None:
        """Once in each turn: notes since when an answer is awaited."""
        if not self._calls:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now

    def silent_s(self, now: float) -> float:
        """For how long nothing has come although calls are under way."""
        return 0.0 if self._silent_since is None else now - self._silent_since

    # -------------------------------------------------------------- the socket

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        if not self._unsent:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self.close(error)
                return
        if view:
            self._unsent.append(view)
            self._wakeup.watch(self._socket, self._ready, writing=True)

    def _ready(self) -> None:
        try:
            if self._unsent:
                self._flush()
            self._receive()
        except Exception as error:  # whatever it is: the calls under way must end, and the thread go on
            self.close(error)

    def _flush(self) -> None:
        try:
            while self._unsent:
                rest = self._unsent[0]
                sent = self._socket.send(rest)
                if sent < len(rest):
                    self._unsent[0] = rest[sent:]
                    return
                self._unsent.popleft()
        except BlockingIOError:
            return
        self._wakeup.watch(self._socket, self._ready)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the broker has closed the connection")
        self._silent_since = None
        self._frames.feed(data)
        while self.ended is None and (found := self._frames.next()) is not None:
            number, payload = found
            if not self.up:
                proof = self._greeting.receive(payload)
                self._frames.payload_bytes_max, self.up = ANSWER_BYTES_MAX, True
                self._send(frame(0, proof))
                continue
            done = self._calls.pop(number, None)
            if done is None:
                raise WireError(f"an answer to call {number}, which was not made")
            done(decode_answer(payload), None)


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
        if method == SUBMIT and fits_link(args[0]) and (link := self._link(gid, rid)) is not None:
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
            if offer is None:
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
