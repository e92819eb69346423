"""Links between replicas over TCP: one authenticated connection per pair, frames in, frames out.

The replica with the greater id dials, the other listens, so that a pair never holds two
connections for long; a newer one replaces an older one, and what the older still had to say is
dropped before the newer says anything. Bounds: one frame (``wire.FRAME_BYTES_MAX``), strangers at
a time, seconds for a handshake, bytes waiting to be written. Nobody is believed before the
handshake, and a frame that is not a message closes its connection.

Runs in one event loop and calls back in it; resolving an address may block and is done elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from escrowmq.replication import wire
from escrowmq.replication.errors import NotAuthorized, UnknownVersion, WireError
from escrowmq.replication.handshake import HANDSHAKE_BYTES_MAX, NONCE_BYTES, Dialer, Listener, PeerIdentity

log = logging.getLogger(__name__)

BUFFER_BYTES = 256 << 10
SOCKET_BUFFER_BYTES = 2 << 20
#: Entries are not sent to a peer whose socket has this much left to write.
ROOM_BYTES = 4 << 20
#: A peer that lets this much pile up is cut off; it reconnects and is probed.
PILE_BYTES_MAX = 128 << 20
STRANGERS_MAX = 64
HANDSHAKE_TIMEOUT_S = 3.0
RESOLVE_TIMEOUT_S = 5.0
DIAL_PAUSE_S = 0.1
DIAL_PAUSE_MAX_S = 1.0
#: A peer that does not acknowledge at the TCP level for so long is gone (half-open connections).
DEAD_PEER_MS = 5_000

Resolve = Callable[[str], tuple[str, int] | None]


class LinkEvents(Protocol):
    """What the transport tells its owner, in the loop's thread."""

    def link_up(self, peer: str) -> None: ...
    def link_down(self, peer: str) -> None: ...
    def received(self, peer: str, message: wire.Message) -> None: ...


@dataclass(slots=True)
class LinkCounters:
    """What was refused, for status pages and tests."""

    refused: int = 0  # wrong secret, cluster, group or replica
    malformed: int = 0  # not a frame, not a message, too long
    timed_out: int = 0  # did not finish the handshake in time
    crowded_out: int = 0  # too many strangers at once
    connects: int = 0


class Connection(asyncio.BufferedProtocol):
    """One socket: handshake first, then messages. Frames are parsed in place."""

    def __init__(self, owner: TcpTransport, handshake: Dialer | Listener) -> None:
        self.peer: str | None = None
        self._owner, self._handshake = owner, handshake
        self._limit = HANDSHAKE_BYTES_MAX
        self._buffer = bytearray(4096)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dead = False

    # -------------------------------------------------------------- asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        _tune(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=PILE_BYTES_MAX)
        if not self._owner.stranger_arrived(self):
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._owner.handshake_timeout_s, self._too_slow)
        if isinstance(self._handshake, Dialer):
            self._write_handshake(self._handshake.hello())

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def pause_writing(self) -> None:
        log.warning("%s has not taken %d MiB; its connection is closed", self.peer, PILE_BYTES_MAX >> 20)
        self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room(1)
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        try:
            self._parse()
        except (NotAuthorized, UnknownVersion) as error:
            self._owner.counters.refused += 1
            log.warning("connection refused: %s", error)
            self.abort()
        except WireError as error:
            self._owner.counters.malformed += 1
            log.warning("connection to %s closed: %s", self.peer or "a stranger", error)
            self.abort()

    # -------------------------------------------------------------- frames in
    def _parse(self) -> None:
        prefix = wire.PREFIX
        while not self._dead:
            have = self._end - self._start
            if have < prefix.size:
                self._make_room(prefix.size - have)
                break
            total, header_size = prefix.unpack_from(self._buffer, self._start)
            wire.check_prefix(total, header_size, self._limit)
            if have < total + 4:
                self._make_room(total + 4 - have)
                break
            begin, end = self._start + prefix.size, self._start + total + 4
            self._start = end
            self._frame(self._view[begin : begin + header_size], self._view[begin + header_size : end])
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > 16 * BUFFER_BYTES:
                self._replace(BUFFER_BYTES)

    def _make_room(self, missing: int) -> None:
        """Room for ``missing`` more bytes behind what is there, moving or growing the buffer if need be."""
        if len(self._buffer) - self._end >= missing:
            return
        size, kept = len(self._buffer), self._end - self._start
        if size - kept < max(missing, size // 2):
            size = max(2 * size, kept + missing)
        self._replace(size)

    def _replace(self, size: int) -> None:
        buffer, kept = bytearray(size), self._end - self._start
        buffer[:kept] = self._view[self._start : self._end]
        self._buffer, self._view, self._start, self._end = buffer, memoryview(buffer), 0, kept

    def _frame(self, header: memoryview, bodies: memoryview) -> None:
        if self.peer is not None:
            self._owner.events.received(self.peer, wire.decode(header, bodies))
            return
        if len(bodies):
            raise WireError("a handshake frame with a body")
        handshake = self._handshake
        answer = handshake.receive(bytes(header))
        if answer is not None:
            self._write_handshake(answer)
        if handshake.established:
            assert handshake.peer is not None
            self.peer, self._limit = handshake.peer, wire.FRAME_BYTES_MAX
            self._settle()
            self._replace(BUFFER_BYTES)
            self._owner.established(self, self.peer)

    # -------------------------------------------------------------- out
    def _write_handshake(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(wire.PREFIX.pack(4 + len(frame), len(frame)) + frame)

    def write(self, buffers: list[bytes]) -> bool:
        if self._dead or self._transport is None:
            return False
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        return not self._dead

    def unwritten_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def dials(self, peer: str) -> bool:
        """Whether this is an attempt of ours to reach ``peer``."""
        return isinstance(self._handshake, Dialer) and self._handshake.peer == peer

    def abort(self) -> None:
        """Nothing more goes out, and nothing more that came in is looked at."""
        self._finish()
        if self._transport is not None:
            self._transport.abort()

    def _too_slow(self) -> None:
        self._owner.counters.timed_out += 1
        self.abort()

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owner.stranger_settled(self)

    def _finish(self) -> None:
        if not self._dead:
            self._dead = True
            self._settle()
            self._owner.finished(self)


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", DEAD_PEER_MS),
    ):
        if hasattr(socket, option):  # Linux has all four
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BUFFER_BYTES)


class TcpTransport:
    """All links of one replica. A ``PeerLink`` for its RaftNode."""

    def __init__(
        self,
        me: PeerIdentity,
        peers: frozenset[str],
        secret: bytes,
        resolve: Resolve,
        events: LinkEvents,
        helpers: Executor,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        if not secret:
            raise NotAuthorized(
                "the cluster has no secret; configure one (any random string, the same everywhere)"
            )
        self.counters, self.events, self.handshake_timeout_s = LinkCounters(), events, handshake_timeout_s
        self._me, self._peers, self._secret, self._resolve, self._helpers = (
            me,
            peers,
            secret,
            resolve,
            helpers,
        )
        self._links: dict[str, Connection] = {}
        self._strangers: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._dialers: list[asyncio.Task[None]] = []
        self._closing = False

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on exactly this address (port 0: any free one) and begin to dial; the bound address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._listening, host, port, backlog=128)
        bound = self._server.sockets[0].getsockname()
        self._dialers = [
            loop.create_task(self._keep_dialing(p)) for p in sorted(self._peers) if self._me.replica > p
        ]
        return str(bound[0]), int(bound[1])

    async def stop(self) -> None:
        self._closing = True
        for task in self._dialers:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for connection in [*self._links.values(), *self._strangers]:
            connection.abort()
        await asyncio.gather(*self._dialers, return_exceptions=True)

    # -------------------------------------------------------------- PeerLink
    def send(self, peer: str, message: wire.Message) -> bool:
        link = self._links.get(peer)
        return link is not None and link.write(wire.encode(message))

    def room(self, peer: str) -> bool:
        link = self._links.get(peer)
        return link is not None and link.unwritten_bytes() < ROOM_BYTES

    # -------------------------------------------------------------- connections
    def _listening(self) -> Connection:
        return Connection(self, Listener(self._me, self._peers, self._secret, os.urandom(NONCE_BYTES)))

    def _dialing(self, peer: str) -> Connection:
        return Connection(self, Dialer(self._me, peer, self._secret, os.urandom(NONCE_BYTES)))

    async def _keep_dialing(self, peer: str) -> None:
        loop, pause = asyncio.get_running_loop(), DIAL_PAUSE_S
        while not self._closing:
            if peer not in self._links and not any(s.dials(peer) for s in self._strangers):
                try:
                    lookup = loop.run_in_executor(self._helpers, self._resolve, peer)
                    address = await asyncio.wait_for(lookup, RESOLVE_TIMEOUT_S)
                    if address is not None:
                        dial = loop.create_connection(partial(self._dialing, peer), *address)
                        await asyncio.wait_for(dial, self.handshake_timeout_s)
                    pause = DIAL_PAUSE_S
                except (OSError, TimeoutError):
                    pause = min(2 * pause, DIAL_PAUSE_MAX_S)
                except Exception:
                    log.exception("looking up %s failed; it is tried again", peer)
                    pause = DIAL_PAUSE_MAX_S
            await asyncio.sleep(pause)

    def stranger_arrived(self, connection: Connection) -> bool:
        if self._closing or len(self._strangers) >= STRANGERS_MAX:
            self.counters.crowded_out += 1
            connection.abort()
            return False
        self._strangers.add(connection)
        return True

    def stranger_settled(self, connection: Connection) -> None:
        self._strangers.discard(connection)

    def established(self, connection: Connection, peer: str) -> None:
        old = self._links.get(peer)
        if old is not None:
            old.abort()
        self._links[peer] = connection
        self.counters.connects += 1
        self.events.link_up(peer)

    def finished(self, connection: Connection) -> None:
        peer = connection.peer
        if peer is not None and self._links.get(peer) is connection:
            del self._links[peer]
            self.events.link_down(peer)
