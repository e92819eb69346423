"""The broker's side of its clients' own TCP connections: requests in, answers out, in the replica's loop.

A Ray call costs both sides about 0.4 ms of processor time and sixteen waits of threads. Here a request is
read, checked and queued for the log by the thread that will write it, and its answer goes straight into the
socket. Everything else about clients (discovery, placement, who may call) stays with Ray: only who may call
the actor gets the key.

Bounds: connections, strangers among them, seconds for the greeting, the length of a frame, bytes of requests
that wait to be checked, time for checking them in one turn of the loop, and bytes of answers that clients
do not read (``UnreadAnswers``).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from escrowmq.replication.errors import NotAuthorized, WireError
from escrowmq.replication.format.codec import columns_within

# ------------------------------------------------------------------------------------------------------------
# What travels between a client and a broker on a TCP connection of their own: frames, after a greeting.
#
# A frame is a length (4 bytes, of what follows), the number of the call (8 bytes), and the payload: a
# request's bytes to the broker, the answer in msgpack back. Numbers are the client's; answers come in any
# order.
#
# The greeting proves both ways that the other has the key which the broker's process made and gave to the
# client through its actor handle. Nobody sends the key:
#
# client -> broker   hello:  magic, nonce_c
# broker -> client   answer: nonce_b, HMAC(key, "broker" + hello + nonce_b)
# client -> broker   proof:  HMAC(key, "client" + hello + nonce_b)
#
# The broker says nothing after that: a client may send requests at once, and a wrong proof ends the
# connection.

PREFIX = struct.Struct("<IQ")
LENGTH_BYTES, NUMBER_BYTES = 4, 8
KEY_BYTES = NONCE_BYTES = 32
_MAGIC = b"escrowmq-client-1"
_PROOF_BYTES = hashlib.sha256().digest_size
HELLO_BYTES = len(_MAGIC) + NONCE_BYTES
#: Longer requests go through Ray's calls. Producers make requests of about a MiB at most.
REQUEST_BYTES_MAX = 2 << 20
#: So do requests whose operations take more than this without their bodies: the thread that sends heartbeats
#: checks a request in one go, at worst 0.14 s for a MiB of the smallest operations. It never looks at bodies.
COLUMNS_BYTES_MAX = 128 << 10
#: Of a frame's payload before the other side has proved itself.
GREETING_BYTES_MAX = 128

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def fits_link(request: bytes) -> bool:
    """Whether a request may go over such a connection."""
    size = len(request)
    return size <= COLUMNS_BYTES_MAX or (
        size <= REQUEST_BYTES_MAX and columns_within(request, COLUMNS_BYTES_MAX)
    )


def frame(number: int, payload: bytes) -> bytes:
    """One frame."""
    return PREFIX.pack(NUMBER_BYTES + len(payload), number) + payload


def encode_answer(answer: tuple[Any, ...]) -> bytes:
    """A Reply as a payload."""
    return _encode(answer)


def decode_answer(payload: bytes | memoryview) -> tuple[Any, ...]:
    """A Reply: a tuple, and lists within it. Raises WireError."""
    try:
        answer = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not an answer of a broker: {error}") from error
    if type(answer) is not list or not answer or type(answer[0]) is not str:
        raise WireError("not an answer of a broker")
    return tuple(answer)


class FrameBuffer:
    """Bytes from a socket, cut into frames. Holds at most one unfinished frame and what was fed last."""

    def __init__(self, payload_bytes_max: int) -> None:
        self.payload_bytes_max = payload_bytes_max
        self._data = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Bytes that have arrived."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> tuple[int, bytes] | None:
        """Number and payload of the next frame; None: it has not arrived whole. Raises WireError as soon as
        it announces more than ``payload_bytes_max``: nothing is kept for it."""
        have = len(self._data) - self._at
        if have < PREFIX.size:
            return None
        size, number = PREFIX.unpack_from(self._data, self._at)
        if not NUMBER_BYTES <= size <= NUMBER_BYTES + self.payload_bytes_max:
            raise WireError(f"a frame of {size} bytes; at most {NUMBER_BYTES + self.payload_bytes_max}")
        if have < LENGTH_BYTES + size:
            return None
        begin, end = self._at + PREFIX.size, self._at + LENGTH_BYTES + size
        with memoryview(self._data) as view:
            payload = bytes(view[begin:end])
        self._at = end
        return number, payload

    def unfinished(self) -> int:
        """Bytes of the frame that has begun to arrive; 0: none has. Call it after ``next`` found no more."""
        have = len(self._data) - self._at
        return (
            int.from_bytes(self._data[self._at : self._at + LENGTH_BYTES], "little")
            if have >= LENGTH_BYTES
            else 0
        )


class ClientGreeting:
    """The client's side: ``hello()``, then ``receive`` the broker's answer, which returns the proof."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._key, self._hello = key, _MAGIC + nonce

    def hello(self) -> bytes:
        """The first payload."""
        return self._hello

    def receive(self, payload: bytes) -> bytes:
        """The proof to send. Raises NotAuthorized if whoever answers does not have the key, WireError."""
        if len(payload) != NONCE_BYTES + _PROOF_BYTES:
            raise WireError("not a broker's greeting")
        nonce, proof = payload[:NONCE_BYTES], payload[NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._key, b"broker", self._hello, nonce)):
            raise NotAuthorized("whoever listens there is not the broker that gave the address")
        return _proof(self._key, b"client", self._hello, nonce)


class BrokerGreeting:
    """The broker's side: ``receive`` two payloads; ``established`` after the second one."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self.established = False
        self._key, self._nonce = key, nonce
        self._hello = b""

    def receive(self, payload: bytes) -> bytes:
        """The payload to answer with; empty: none. Raises NotAuthorized or WireError."""
        if not self._hello:
            if len(payload) != HELLO_BYTES or not payload.startswith(_MAGIC):
                raise WireError("not a client's greeting")
            self._hello = payload
            return self._nonce + _proof(self._key, b"broker", payload, self._nonce)
        if not hmac.compare_digest(payload, _proof(self._key, b"client", self._hello, self._nonce)):
            raise NotAuthorized("a client does not have this broker's key")
        self.established = True
        return b""


def _proof(key: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(key, role + b"\0" + hello + nonce, hashlib.sha256).digest()


# ------------------------------------------------------------------------------------------------------------
# What a broker keeps of answers that its clients have not read, of one client and of all.
#
# A client that reads has nothing here: its answers go straight into the socket. Only connections whose
# answers the kernel no longer takes are counted, so a broker whose clients all read does nothing for this.
# Beyond the bound of one client its connection is closed; beyond the bound of all, those with most, until a
# quarter of the room is free: the next answer would otherwise look at all of them again.
#
# A client whose connection was closed repeats its requests through Ray, as after any lost connection, so
# nothing is lost. Everything runs in the loop's thread.

#: Of one client. Answers are a few bytes per operation, and a producer has at most 8 requests under way, so
#: one that reads late has some hundred KiB.
PILE_BYTES_MAX = 8 << 20
#: Of all clients: a fifth of what a broker takes under overload (306 MB), and enough for 4,096 clients that
#: all stop reading for a moment, with 16 KiB each. Without it they could take 32 GiB.
UNREAD_BYTES_MAX = 64 << 20
#: What a connection may keep before it is counted: 16 MiB for 4,096 clients. uvloop gathers the answers of
#: one turn of the loop before it writes them, so every answer would be counted otherwise.
UNCOUNTED_BYTES = 4 << 10


class Reader(Protocol):
    """A client's connection."""

    def unread(self) -> int:
        """Bytes of answers that wait for the client, at present."""

    def abort(self) -> None:
        """Close it; it calls ``gone``."""


class UnreadAnswers:
    """The connections whose clients are behind. ``pile_max``, ``bytes_max``: of one, and of all."""

    def __init__(self, pile_max: int = PILE_BYTES_MAX, bytes_max: int = UNREAD_BYTES_MAX) -> None:
        self._pile_max, self._bytes_max = pile_max, bytes_max
        #: Connections that were closed because of what was unread.
        self.cut = 0
        #: Bytes of all, perhaps with some that have been read meanwhile.
        self.bytes = 0
        self._behind: dict[Reader, int] = {}

    def grown(self, reader: Reader) -> None:
        """A client is behind and got another answer."""
        size = reader.unread()
        self._note(reader, size)
        if size > self._pile_max:
            log.warning(
                "a client has not read %.1f MiB of answers; its connection is closed",
                self._pile_max / (1 << 20),
            )
            self._cut(reader)
        elif self.bytes > self._bytes_max:
            self._make_room()

    def gone(self, reader: Reader) -> None:
        """It has read everything, or is closed."""
        self.bytes -= self._behind.pop(reader, 0)

    def _note(self, reader: Reader, size: int) -> None:
        self.bytes += size - self._behind.get(reader, 0)
        self._behind[reader] = size

    def _make_room(self) -> None:
        for reader in list(self._behind):
            self._note(reader, reader.unread())
        before, cut = self.bytes, 0
        for reader in sorted(self._behind, key=self._behind.__getitem__, reverse=True):
            if self.bytes <= self._bytes_max * 3 // 4:
                break
            self._cut(reader)
            cut += 1
        if cut:
            log.warning(
                "%.1f MiB of answers that clients have not read, of at most %.1f; the connections of the %d "
                "with most are closed",
                before / (1 << 20),
                self._bytes_max / (1 << 20),
                cut,
            )

    def _cut(self, reader: Reader) -> None:
        self.cut += 1
        reader.abort()
        self.gone(reader)


# ------------------------------------------------------------------------------------------------------------
# Room for requests that arrive in pieces.
#
# What has arrived of a request is kept until the rest is here. Short ones need no room; of the long ones only
# so many may be arriving at a time that their bytes fit. The connections of the others are not read
# meanwhile, so what they send waits in the kernel and with the clients.

#: From here on a request is long. Without room for long ones, 4,096 clients could make a broker keep 8 GiB.
LONG_BYTES = 128 << 10
#: Of all long requests that are arriving: at least thirty-two of the longest.
ARRIVING_BYTES_MAX = 64 << 20
#: A long request that has not arrived by then gives its room to others, with the connection.
ARRIVAL_TIMEOUT_S = 10.0


class Arrivals:
    """The connections on which long requests arrive, and those that wait for room, in order."""

    def __init__(self, bytes_max: int = ARRIVING_BYTES_MAX) -> None:
        self.bytes, self._bytes_max = 0, bytes_max
        self._arriving: dict[ClientConnection, int] = {}
        self._waiting: dict[ClientConnection, None] = {}

    def begins(self, connection: ClientConnection, size: int) -> bool:
        """Whether there is room for its request; if not, the connection waits, and reads nothing."""
        if connection in self._arriving:
            return True
        if self.bytes + size > self._bytes_max:
            self._waiting[connection] = None
            connection.pause()
            return False
        self._waiting.pop(connection, None)
        self._arriving[connection] = size
        self.bytes += size
        return True

    def ended(self, connection: ClientConnection) -> None:
        """Its request has arrived, or never will."""
        self._waiting.pop(connection, None)
        size = self._arriving.pop(connection, 0)
        self.bytes -= size
        if size:
            for other in list(self._waiting):
                if not other.arrives():
                    break


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


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What clients may take of a broker; the constants say why. ``clients``: what the process has descriptors
    for."""

    clients: int = CLIENTS_MAX
    greeting_s: float = GREETING_TIMEOUT_S
    waiting_bytes: int = WAITING_BYTES_MAX
    unread_bytes_each: int = PILE_BYTES_MAX
    unread_bytes: int = UNREAD_BYTES_MAX
    arriving_bytes: int = ARRIVING_BYTES_MAX
    arrival_s: float = ARRIVAL_TIMEOUT_S


class ClientListener:
    """All client connections of one replica. Everything but ``open_to`` runs in the loop's thread."""

    def __init__(self, begin: Begin, clock: Callable[[], float], limits: ClientLimits | None = None) -> None:
        """``begin`` never raises."""
        self._clock, self.limits = clock, limits or ClientLimits()
        self.key = os.urandom(KEY_BYTES)
        self.begin = begin
        #: Requests taken, and connections refused, for the exporter.
        self.requests = self.refused = 0
        self.unread = UnreadAnswers(self.limits.unread_bytes_each, self.limits.unread_bytes)
        self.arrivals = Arrivals(self.limits.arriving_bytes)
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
        return len(self._clients) >= self.limits.clients

    @property
    def clients(self) -> int:
        """How many are connected. Any thread."""
        return len(self._clients)

    # -------------------------------------------------------------- connections

    def arrived(self, connection: ClientConnection) -> None:
        """The oldest stranger makes room: a client needs only milliseconds for its greeting."""
        if len(self._strangers) >= max(self.limits.clients // STRANGERS_SHARE, 1):
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
        self.arrivals.ended(connection)

    # -------------------------------------------------------------- requests

    def take(self, connection: ClientConnection, number: int, request: bytes) -> None:
        """A request has arrived. Raises WireError if it should have gone through Ray."""
        if not fits_link(request):
            raise WireError(f"a request of {len(request)} bytes has too many operations for this connection")
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
        if self._waiting_bytes > self.limits.waiting_bytes:
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
        self._behind = self._is_long = False
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
        self._timer = asyncio.get_running_loop().call_later(self._door.limits.greeting_s, self._too_slow)
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
                if self._is_long:
                    self._has_arrived()
                if self._greeting is None:
                    self._door.take(self, *found)
                else:
                    self._greet(self._greeting, found[1])
            self._door.taken(self)
            if self.open and self._frames.unfinished() > LONG_BYTES:
                self.arrives()
        except (WireError, NotAuthorized) as error:
            self._door.refused += 1
            log.debug("a client's connection is closed: %s", error)
            self.abort()

    def arrives(self) -> bool:
        """Ask for room for the long request that arrives, and read on if there is."""
        if not self._door.arrivals.begins(self, self._frames.unfinished()):
            return False
        if not self._is_long:
            self._is_long = True
            self._timer = asyncio.get_running_loop().call_later(self._door.limits.arrival_s, self._too_slow)
            self.go_on()
        return True

    def _has_arrived(self) -> None:
        self._is_long = False
        if self._timer is not None:
            self._timer.cancel()
        self._door.arrivals.ended(self)

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
