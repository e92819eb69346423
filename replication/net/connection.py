"""One socket between two replicas: the handshake first, then frames, parsed in the receive buffer.

An unauthenticated peer gets a small buffer, a small frame limit and a few seconds; only a peer that has
proved itself gets more. Anything that is not a frame or not a message ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Protocol, cast

from escrowmq.replication.errors import DiskFailed, NotAuthorized, UnknownVersion, WireError
from escrowmq.replication.format import wire
from escrowmq.replication.log.peer_marks import Incarnation
from escrowmq.replication.net.handshake import (
    HANDSHAKE_BYTES_MAX,
    About,
    Dialer,
    Listener,
    Refused,
    ToldSuperseded,
    shown,
)
from escrowmq.replication.net.tls import TlsChannel

log = logging.getLogger(__name__)

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
        #: What the peer told of itself in the handshake; None: it runs an earlier version.
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
        return self._room()

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
            if error.frame and not self._dead:
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
    def incarnation(self) -> Incarnation | None:
        """Which process the peer is; None: it runs an earlier version, which does not tell."""
        return shown(self.about)

    def dismiss(self, by: Incarnation) -> None:
        """The peer was replaced: tell it, if that takes a single write without waiting, and ignore further
        input from it."""
        if self.about is not None:  # otherwise it would not understand
            self.write(wire.encode({"type": "superseded", "number": by.number, "disk_id": by.disk_id}))
        self._close_after_writing()

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

    @property
    def greeted(self) -> tuple[str, bool] | None:
        """Of a dial: (peer, whether it seems to know the greeting that we used); None if the peer dialled."""
        handshake = self._handshake
        if not isinstance(handshake, Dialer):
            return None
        # The old greeting is a fallback: whether it succeeds or not, the newer one is tried first next time.
        return handshake.peer, handshake.challenged and not handshake.old

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
