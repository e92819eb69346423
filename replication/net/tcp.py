"""Links between replicas over TCP: one authenticated connection per pair, frames in, frames out.

The replica with the greater number dials, the other listens: the later member knows the address of the
earlier one, which may not have heard of it yet. So a pair never holds two connections for long; a newer one
replaces an older one, and input still pending on the older is dropped before the newer delivers any. Bounds:
one frame (``wire.FRAME_BYTES_MAX``), unauthenticated connections at a time, seconds for a handshake, bytes
waiting to be written. Nothing is trusted before the handshake, and a frame that is not a message closes its
connection.

Runs in one event loop and calls back in it. Resolving an address may block and is done in another thread.
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

from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import DiskFailed, NotAuthorized, UnknownVersion, WireError
from escrowmq.replication.format import wire
from escrowmq.replication.format.membership import in_order
from escrowmq.replication.log.peer_marks import Incarnation
from escrowmq.replication.net.handshake import (
    HANDSHAKE_BYTES_MAX,
    NONCE_BYTES,
    About,
    Dialer,
    Gate,
    Listener,
    PeerIdentity,
    Refused,
    ToldSuperseded,
    shown,
)
from escrowmq.replication.net.tls import TlsChannel, TlsIdentity

# ------------------------------------------------------------------------------------------------------------
# One socket between two replicas: the handshake first, then frames, parsed in the receive buffer.
#
# An unauthenticated peer gets a small buffer, a small frame limit and a few seconds; only a peer that has
# proved itself gets more. Anything that is not a frame or not a message ends the connection.

BUFFER_BYTES = 256 << 10
STRANGERS_BUFFER_BYTES = 4 << 10
SOCKET_BUFFER_BYTES = 2 << 20
#: A peer that leaves this much unread is disconnected; it reconnects and is probed.
PILE_BYTES_MAX = 128 << 20
#: A peer that has not acknowledged at the TCP level for this long is gone (half-open connections).
DEAD_PEER_MS = 5_000


class ConnectionOwner(Protocol):
    """What a connection reports to the transport that it belongs to."""

    handshake_timeout_s: float

    def stranger_arrived(self, connection: Connection) -> bool:
        """Whether there is room for one more unauthenticated connection."""

    def stranger_settled(self, connection: Connection) -> None: ...
    def established(self, connection: Connection, peer: str) -> None: ...
    def received(self, peer: str, message: wire.RaftMessage) -> None: ...
    def superseded(self, by: Incarnation) -> None:
        """A peer has proved that our own replica was replaced."""

    def broken(self, error: BaseException) -> None:
        """The disk failed to store what must be durable before a link is up."""

    def refused(self) -> None: ...
    def malformed(self) -> None: ...
    def timed_out(self) -> None: ...
    def complain(self, text: str) -> None: ...
    def finished(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """One socket: handshake first, then messages. Frames are parsed in place."""

    def __init__(
        self, owner: ConnectionOwner, handshake: Dialer | Listener, tls: TlsChannel | None = None
    ) -> None:
        """``tls``: both the handshake and the frames travel inside it."""
        self.peer: str | None = None
        #: What the peer told of itself; None: the handshake is not finished.
        self.about: About | None = None
        self._owner, self._handshake, self._tls = owner, handshake, tls
        self._limit = HANDSHAKE_BYTES_MAX
        #: Received bytes that are not decrypted yet; without TLS they go straight to the frame buffer.
        self._sealed = memoryview(bytearray(0 if tls is None else STRANGERS_BUFFER_BYTES))
        self._buffer = bytearray(STRANGERS_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dead = False

    # -------------------------------------------------------------- asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        _tune(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=PILE_BYTES_MAX)
        if not self._owner.stranger_arrived(self):
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._owner.handshake_timeout_s, self._too_slow)
        if self._tls is not None:
            self._shake(self._tls)
        elif isinstance(self._handshake, Dialer):
            self._write_handshake(self._handshake.hello())

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def pause_writing(self) -> None:
        log.warning("%s has not taken %d MiB; its connection is closed", self.peer, PILE_BYTES_MAX >> 20)
        self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._tls is not None:
            return self._sealed
        return self._view[self._end :] if self._end < len(self._buffer) else self._room()

    def _room(self) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room(1)
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._tls is None:
                self._end += nbytes
                self._parse()
            else:
                self._unseal(self._tls, nbytes)
        except ToldSuperseded as error:
            self._owner.refused()
            self._close_with_alert()
            self._owner.superseded(error.by)
        except DiskFailed as error:
            self.abort()
            self._owner.broken(error)
        except Refused as error:
            self._owner.refused()
            self._owner.complain(f"connection to {self.peer or self._handshake.peer} refused: {error}")
            if not self._dead:
                self._write_handshake(error.frame)
            self._close_after_writing()
        except (NotAuthorized, UnknownVersion) as error:
            self._owner.refused()
            self._owner.complain(f"connection to {self.peer or 'a stranger'} refused: {error}")
            self._close_with_alert()
        except WireError as error:
            if not self._dead:
                self._owner.malformed()
                self._owner.complain(f"connection to {self.peer or 'a stranger'} closed: {error}")
            self._close_with_alert()

    # -------------------------------------------------------------- TLS
    def _unseal(self, tls: TlsChannel, nbytes: int) -> None:
        tls.feed(self._sealed[:nbytes])
        if not tls.established:
            self._shake(tls)
            if not tls.established:
                return
        while not self._dead:
            received = tls.read_into(self._room())
            if received == 0:
                break
            self._end += received
            self._parse()

    def _shake(self, tls: TlsChannel) -> None:
        done = tls.shake()
        self._send_outgoing(tls)
        if done:
            self._handshake.bind(tls.binding())
            if isinstance(self._handshake, Dialer):
                self._write_handshake(self._handshake.hello())

    def _send_outgoing(self, tls: TlsChannel) -> None:
        assert self._transport is not None
        outgoing = tls.outgoing()
        if outgoing:
            self._transport.write(outgoing)

    def _close_with_alert(self) -> None:
        """End the connection, telling a TLS peer why if that takes a single write without waiting."""
        if self._tls is None or self._dead or self._transport is None:
            self.abort()
            return
        self._send_outgoing(self._tls)
        self._finish()
        self._transport.close()

    def _close_after_writing(self) -> None:
        """Ignore further input; what was written goes out first, for as long as the kernel tolerates a silent
        peer."""
        self._finish()
        if self._transport is not None:
            self._transport.close()

    @property
    def incarnation(self) -> Incarnation:
        """Which process the peer is. Only after the handshake."""
        assert self.about is not None
        return shown(self.about)

    def dismiss(self, by: Incarnation) -> None:
        """The peer was replaced: tell it, if that takes a single write without waiting, and ignore further
        input from it."""
        self.write(wire.encode({"type": "superseded", "number": by.number, "disk_id": by.disk_id}))
        self._close_after_writing()

    # -------------------------------------------------------------- frames in
    def _parse(self) -> None:
        prefix = wire.PREFIX
        while not self._dead:
            have = self._end - self._start
            if have < prefix.size:
                if len(self._buffer) - self._end < prefix.size - have:
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
        """Room for ``missing`` more bytes after the buffered ones, moving or growing the buffer if need
        be."""
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
            self._owner.received(self.peer, wire.decode(header, bodies))
            return
        if len(bodies):
            raise WireError("a handshake frame with a body")
        handshake = self._handshake
        answer = handshake.receive(bytes(header))
        if answer is not None:
            self._write_handshake(answer)
        if handshake.established:
            assert handshake.peer is not None
            self.peer, self.about, self._limit = handshake.peer, handshake.about, wire.FRAME_BYTES_MAX
            self._settle()
            self._replace(BUFFER_BYTES)
            if self._tls is not None:
                self._sealed = memoryview(bytearray(BUFFER_BYTES))
            self._owner.established(self, self.peer)

    # -------------------------------------------------------------- out
    def _write_handshake(self, frame: bytes) -> None:
        assert self._transport is not None
        whole = wire.PREFIX.pack(4 + len(frame), len(frame)) + frame
        self._transport.write(whole if self._tls is None else self._tls.seal((whole,)))

    def write(self, buffers: list[bytes]) -> bool:
        if self._dead or self._transport is None:
            return False
        if self._tls is not None:
            self._transport.write(self._tls.seal(buffers))
        elif len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        return not self._dead

    def unwritten_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def dialing(self) -> bool:
        """Whether this side made the connection."""
        return isinstance(self._handshake, Dialer)

    def dials(self, peer: str) -> bool:
        """Whether this is an attempt of ours to reach ``peer``."""
        return self.dialing and self._handshake.peer == peer

    def abort(self) -> None:
        """Write nothing more, and ignore everything that was received."""
        self._finish()
        if self._transport is not None:
            self._transport.abort()

    def _too_slow(self) -> None:
        self._owner.timed_out()
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


log = logging.getLogger(__name__)

#: No entries are sent to a peer whose socket still has this much to write.
ROOM_BYTES = 4 << 20
STRANGERS_MAX = 64
HANDSHAKE_TIMEOUT_S = 3.0
RESOLVE_TIMEOUT_S = 5.0
#: Pauses between attempts to reach a peer that is not connected.
DIAL = Backoff(first_s=0.1, longest_s=1.0)
#: Refusals are logged at most this often: any stranger who reaches the port could fill the disk with them.
COMPLAINT_PAUSE_S = 1.0

Resolve = Callable[[str], tuple[str, int] | None]


class LinkEvents(Protocol):
    """What the transport reports to its owner, in the loop's thread."""

    def link_up(self, peer: str, about: About) -> None:
        """``about``: what the peer told of itself."""

    def link_down(self, peer: str) -> None: ...
    def received(self, peer: str, message: wire.RaftMessage) -> None: ...
    def superseded(self, by: Incarnation) -> None:
        """A peer has proved that our own replica was replaced."""

    def broken(self, error: BaseException) -> None:
        """The disk failed to store what must be durable before a link is up."""


@dataclass(slots=True)
class LinkCounters:
    """Counts of refusals and connects, for status pages and tests."""

    refused: int = 0  # wrong secret, cluster, group or replica
    malformed: int = 0  # not a frame, not a message, too long
    timed_out: int = 0  # did not finish the handshake in time
    crowded_out: int = 0  # too many strangers at once
    connects: int = 0


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
        gate: Gate,
        tls: TlsIdentity | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        """``gate`` keeps the peers' incarnations. ``tls``: every link uses TLS, and peers without it are
        refused; None: plain TCP."""
        if not secret:
            raise NotAuthorized(
                "the cluster has no secret; configure one (any random string, the same everywhere)"
            )
        self.counters, self.events, self.handshake_timeout_s = LinkCounters(), events, handshake_timeout_s
        self.received = events.received  # messages go from their connection straight to the owner
        self.superseded, self.broken = events.superseded, events.broken
        self._me, self._peers, self._secret, self._tls, self._gate = me, peers, secret, tls, gate
        self._resolve, self._helpers = resolve, helpers
        self._complained_at, self._unsaid = float("-inf"), 0
        self._links: dict[str, Connection] = {}
        self._strangers: dict[Connection, None] = {}  # in the order of their arrival
        self._dials: set[Connection] = set()  # not established yet
        self._server: asyncio.Server | None = None
        self._dialers: dict[str, asyncio.Task[None]] = {}
        self._closing = False

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on exactly this address (port 0: any free one) and start to dial; returns the bound
        address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._listening, host, port, backlog=128)
        bound = self._server.sockets[0].getsockname()
        self._dial_all()
        return str(bound[0]), int(bound[1])

    def follow(self, peers: frozenset[str]) -> None:
        """The group's members changed: from now on link to these only. In the loop's thread."""
        gone, self._peers = self._peers - peers, peers
        for peer in in_order(gone):
            task = self._dialers.pop(peer, None)
            if task is not None:
                task.cancel()
            for connection in [self._links.get(peer), *[d for d in self._dials if d.dials(peer)]]:
                if connection is not None:
                    connection.abort()
        if self._server is not None and not self._closing:
            self._dial_all()

    def _dial_all(self) -> None:
        loop, me = asyncio.get_running_loop(), self._me.replica
        for peer in in_order(self._peers):
            if peer not in self._dialers and in_order((me, peer))[1] == me:
                self._dialers[peer] = loop.create_task(self._keep_dialing(peer))

    async def stop(self) -> None:
        self._closing = True
        dialers = list(self._dialers.values())
        for task in dialers:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for connection in [*self._links.values(), *self._strangers, *self._dials]:
            connection.abort()
        await asyncio.gather(*dialers, return_exceptions=True)

    # -------------------------------------------------------------- PeerLink
    def send(self, peer: str, message: wire.RaftMessage) -> bool:
        link = self._links.get(peer)
        return link is not None and link.write(wire.encode(message))

    def room(self, peer: str) -> bool:
        link = self._links.get(peer)
        return link is not None and link.unwritten_bytes() < ROOM_BYTES

    # -------------------------------------------------------------- connections
    def _listening(self) -> Connection:
        handshake = Listener(self._me, self._peers, self._secret, os.urandom(NONCE_BYTES), self._gate)
        return Connection(self, handshake, None if self._tls is None else self._tls.channel(dials=False))

    def _dialing(self, peer: str) -> Connection:
        handshake = Dialer(self._me, peer, self._secret, os.urandom(NONCE_BYTES), self._gate)
        return Connection(self, handshake, None if self._tls is None else self._tls.channel(dials=True))

    async def _keep_dialing(self, peer: str) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while not self._closing:
            if peer not in self._links and not any(s.dials(peer) for s in self._dials):
                try:
                    lookup = loop.run_in_executor(self._helpers, self._resolve, peer)
                    address = await asyncio.wait_for(lookup, RESOLVE_TIMEOUT_S)
                    if address is not None:
                        dial = loop.create_connection(partial(self._dialing, peer), *address)
                        await asyncio.wait_for(dial, self.handshake_timeout_s)
                    failures = 0
                except (OSError, TimeoutError):
                    failures += 1
                except Exception:
                    log.exception("looking up %s failed; it will be tried again", peer)
                    failures += 1
            await asyncio.sleep(DIAL.pause_s(failures))

    def stranger_arrived(self, connection: Connection) -> bool:
        """Our own dials always have a slot. Among the others, the oldest makes room: a peer needs only
        milliseconds, so strangers that hold connections open do not keep it out.
        """
        if self._closing:
            connection.abort()
            return False
        if connection.dialing:
            self._dials.add(connection)
            return True
        if len(self._strangers) >= STRANGERS_MAX:
            self.counters.crowded_out += 1
            next(iter(self._strangers)).abort()
        self._strangers[connection] = None
        return True

    def stranger_settled(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._dials.discard(connection)

    def established(self, connection: Connection, peer: str) -> None:
        """A handshake has succeeded. A dialler admitted the peer one round trip earlier; since then the peer
        may have been replaced, or removed from the group."""
        if peer not in self._peers:
            connection.abort()
            return
        mark = self._gate.refuses(peer, connection.incarnation)
        if mark is not None:
            connection.dismiss(mark)
            return
        old = self._links.get(peer)
        if old is not None:
            self._close(old, peer)
        self._links[peer] = connection
        self.counters.connects += 1
        assert connection.about is not None
        self.events.link_up(peer, connection.about)

    def drop_superseded(self, peer: str) -> None:
        """Close the link to ``peer`` if its process was replaced; the peer is dialled again."""
        link = self._links.get(peer)
        if link is not None and self._gate.refuses(peer, link.incarnation) is not None:
            self._close(link, peer)

    def _close(self, link: Connection, peer: str) -> None:
        """Ignore further input on it, and tell the peer if it was replaced."""
        mark = self._gate.refuses(peer, link.incarnation)
        if mark is None:
            link.abort()
        else:
            link.dismiss(mark)

    def finished(self, connection: Connection) -> None:
        peer = connection.peer
        if peer is not None and self._links.get(peer) is connection:
            del self._links[peer]
            self.events.link_down(peer)

    # -------------------------------------------------------------- what connections report
    def refused(self) -> None:
        self.counters.refused += 1

    def malformed(self) -> None:
        self.counters.malformed += 1

    def timed_out(self) -> None:
        self.counters.timed_out += 1

    def complain(self, text: str) -> None:
        """Log a refusal, or count it if another was logged just now."""
        now = asyncio.get_running_loop().time()
        if now - self._complained_at < COMPLAINT_PAUSE_S:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more before)" if self._unsaid else ""
        self._complained_at, self._unsaid = now, 0
        log.warning("%s%s", text, more)
