"""The broker's side of its clients' own TCP connections: requests in, answers out, in the replica's loop.

A Ray call costs both sides about 0.4 ms of processor time and sixteen waits of threads. Here a request is
read, checked and queued for the log by the thread that will write it, and its answer goes straight into the
socket. Everything else about clients (discovery, placement, who may call) stays with Ray: only who may call
the actor gets the key.

Bounds: connections, strangers among them, seconds for the greeting, the length of a frame, bytes of requests
that wait to be checked, time for checking them in one turn of the loop, and bytes of answers that clients
do not read (unread_answers.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from escrowmq.replication.errors import NotAuthorized, WireError
from escrowmq.replication.net.client_frames import (
    GREETING_BYTES_MAX,
    KEY_BYTES,
    NONCE_BYTES,
    REQUEST_BYTES_MAX,
    BrokerGreeting,
    FrameBuffer,
    encode_answer,
    frame,
)
from escrowmq.replication.net.unread_answers import UNCOUNTED_BYTES, UnreadAnswers

log = logging.getLogger(__name__)

#: Beyond these, a client is told to use Ray's calls. A quarter as many may be about to prove themselves:
#: after a fail-over all come at once.
CLIENTS_MAX = 4096
STRANGERS_SHARE = 4
GREETING_TIMEOUT_S = 3.0
#: Requests that are checked in one turn of the loop, before it looks at heartbeats again.
TURN_S = 0.002
#: Requests of all clients that wait to be checked; the connections that exceed it are not read meanwhile.
WAITING_BYTES_MAX = 16 << 20
#: A client that has not acknowledged at the TCP level for this long is gone (half-open connections); one that
#: is idle is asked that often.
DEAD_CLIENT_MS, IDLE_S, ASK_EVERY_S = 20_000, 30, 10

#: Takes a request, and calls its second argument once with the answer; both in the loop's thread.
Begin = Callable[[bytes, Callable[[tuple[Any, ...]], None]], None]


class ClientListener:
    """All client connections of one replica. Everything but ``open_to`` runs in the loop's thread."""

    def __init__(self, begin: Begin, clock: Callable[[], float], clients_max: int = CLIENTS_MAX) -> None:
        """``begin`` never raises. ``clients_max``: what the process has descriptors for."""
        self._clock, self._clients_max = clock, clients_max
        self.key = os.urandom(KEY_BYTES)
        self.begin = begin
        #: Requests taken, and connections refused, for the exporter.
        self.requests = self.refused = 0
        self.unread = UnreadAnswers()
        self.address: tuple[str, int] | None = None
        self._clients: set[ClientConnection] = set()
        self._strangers: dict[ClientConnection, None] = {}
        self._waiting: deque[tuple[ClientConnection, int, bytes]] = deque()
        self._waiting_bytes = 0
        self._paused: list[ClientConnection] = []
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._working, self._rest_until = False, float("-inf")

    async def start(self, host: str) -> None:
        """Listen on any free port of this address."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: ClientConnection(self), host, 0, backlog=1024)
        except OSError as error:
            log.warning("clients cannot connect, and use Ray's calls: %s", error)
            return
        if self._stopped:
            self._server.close()
            return
        bound = self._server.sockets[0].getsockname()
        self.address = str(bound[0]), int(bound[1])

    def stop(self) -> None:
        """Close everything: clients ask again through Ray, and find out who leads."""
        self.address, self._stopped = None, True
        if self._server is not None:
            self._server.close()
        for connection in [*self._clients, *self._strangers]:
            connection.abort()
        self._waiting.clear()

    def open_to(self) -> tuple[str, int, bytes] | None:
        """Host, port and key for one more client; None: use Ray's calls. Any thread."""
        address = self.address
        return None if address is None or self._is_full() else (*address, self.key)

    def _is_full(self) -> bool:
        return len(self._clients) >= self._clients_max

    @property
    def clients(self) -> int:
        """How many are connected. Any thread."""
        return len(self._clients)

    # -------------------------------------------------------------- connections

    def arrived(self, connection: ClientConnection) -> None:
        """The oldest stranger makes room: a client needs only milliseconds for its greeting."""
        if len(self._strangers) >= max(self._clients_max // STRANGERS_SHARE, 1):
            self.refused += 1
            next(iter(self._strangers)).abort()
        self._strangers[connection] = None

    def established(self, connection: ClientConnection) -> None:
        self._strangers.pop(connection, None)
        if self.address is None or self._is_full():
            self.refused += 1
            connection.abort()
            return
        self._clients.add(connection)

    def finished(self, connection: ClientConnection) -> None:
        self._clients.discard(connection)
        self._strangers.pop(connection, None)
        self.unread.gone(connection)

    # -------------------------------------------------------------- requests

    def take(self, connection: ClientConnection, number: int, request: bytes) -> None:
        """A request has arrived."""
        self._waiting.append((connection, number, request))
        self._waiting_bytes += len(request)

    def taken(self, connection: ClientConnection) -> None:
        """All that a connection has read is taken: check it now, unless requests have had their share of the
        thread's time."""
        if self._waiting and not self._working:
            if self._clock() >= self._rest_until:
                self._work()
            else:
                self._work_later()
        if self._waiting_bytes > WAITING_BYTES_MAX:
            connection.pause()
            self._paused.append(connection)

    def _work_later(self) -> None:
        self._working = True
        asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        began = now = self._clock()
        until = began + TURN_S
        waiting = self._waiting
        while waiting:
            connection, number, request = waiting.popleft()
            self._waiting_bytes -= len(request)
            if connection.open:
                self.requests += 1
                self.begin(request, connection.answering(number))
            now = self._clock()
            if now >= until:
                break
        self._working, self._rest_until = False, now + (now - began)
        if waiting:
            self._work_later()
        elif self._paused:
            paused, self._paused = self._paused, []
            for connection in paused:
                connection.go_on()


def notice_silence(sock: socket.socket, dead_ms: int) -> None:
    """End a connection whose other side is gone without a word, also while nothing is sent."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, dead_ms)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_EVERY_S)


class ClientConnection(asyncio.Protocol):
    """One client: the greeting first, then requests."""

    def __init__(self, door: ClientListener) -> None:
        self.open = False
        self._behind = False
        self._door = door
        self._greeting: BrokerGreeting | None = BrokerGreeting(door.key, os.urandom(NONCE_BYTES))
        self._frames = FrameBuffer(GREETING_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_silence(sock, DEAD_CLIENT_MS)
        self._transport.set_write_buffer_limits(high=UNCOUNTED_BYTES)
        self.open = True
        self._timer = asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self._too_slow)
        self._door.arrived(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def pause_writing(self) -> None:
        self._behind = True

    def resume_writing(self) -> None:
        self._behind = False
        self._door.unread.gone(self)

    def unread(self) -> int:
        """See ``unread_answers.Reader``."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        try:
            while self.open and (found := self._frames.next()) is not None:
                if self._greeting is None:
                    self._door.take(self, *found)
                else:
                    self._greet(self._greeting, found[1])
            self._door.taken(self)
        except (WireError, NotAuthorized) as error:
            self._door.refused += 1
            log.debug("a client's connection is closed: %s", error)
            self.abort()

    def _greet(self, greeting: BrokerGreeting, payload: bytes) -> None:
        assert self._transport is not None
        if answer := greeting.receive(payload):
            self._transport.write(frame(0, answer))
        if greeting.established:
            self._greeting = None
            self._frames.payload_bytes_max = REQUEST_BYTES_MAX
            if self._timer is not None:
                self._timer.cancel()
            self._door.established(self)

    def answering(self, number: int) -> Callable[[tuple[Any, ...]], None]:
        """What sends the answer to request ``number``, in the loop's thread."""

        def answer(reply: tuple[Any, ...]) -> None:
            if self.open and self._transport is not None:
                self._transport.write(frame(number, encode_answer(reply)))
                if self._behind:
                    self._door.unread.grown(self)

        return answer

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None and self.open and self._transport.is_reading():
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self._transport is not None and self.open and not self._transport.is_reading():
            self._transport.resume_reading()

    def abort(self) -> None:
        """End now; what has arrived is not looked at."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _too_slow(self) -> None:
        self._door.refused += 1
        self.abort()

    def _end(self) -> None:
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
        self._door.finished(self)
