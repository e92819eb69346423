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
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from escrowmq.replication.calling.backoff import Backoff
from escrowmq.replication.errors import NotAuthorized
from escrowmq.replication.format import wire
from escrowmq.replication.format.membership import in_order
from escrowmq.replication.log.peer_marks import Incarnation
from escrowmq.replication.net.connection import Connection
from escrowmq.replication.net.handshake import NONCE_BYTES, About, Dialer, Gate, Listener, PeerIdentity
from escrowmq.replication.net.tls import TlsIdentity

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

    def link_up(self, peer: str, about: About | None) -> None:
        """``about``: what the peer told of itself; None: it runs an earlier version, which tells nothing."""

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
        old_peers: bool = True,
    ) -> None:
        """``gate`` keeps the peers' incarnations. ``tls``: every link uses TLS, and peers without it are
        refused; None: plain TCP. ``old_peers``: some peers may know only the old greeting. If False, a peer
        that closes a dial without a word is one that does not know us yet."""
        if not secret:
            raise NotAuthorized(
                "the cluster has no secret; configure one (any random string, the same everywhere)"
            )
        self.counters, self.events, self.handshake_timeout_s = LinkCounters(), events, handshake_timeout_s
        self.received = events.received  # messages go from their connection straight to the owner
        self.superseded, self.broken = events.superseded, events.broken
        self._me, self._peers, self._secret, self._tls, self._gate = me, peers, secret, tls, gate
        #: Peers that closed a dial before they said anything: they may know only the old greeting.
        self._speaks_old: set[str] = set()
        self._old_peers = old_peers
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
            self._speaks_old.discard(peer)
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
        old = peer in self._speaks_old and self._may_speak_old(peer)
        handshake = Dialer(self._me, peer, self._secret, os.urandom(NONCE_BYTES), self._gate, old=old)
        return Connection(self, handshake, None if self._tls is None else self._tls.channel(dials=True))

    def _may_speak_old(self, peer: str) -> bool:
        """The old greeting carries no incarnation. A replacement must tell its own, and a peer that has told
        its incarnation understands ours."""
        return self._old_peers and self._gate.own.number == 0 and self._gate.of(peer) is None

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
        """Our own dials always have a place. Among the others, the oldest makes room: a peer needs only
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
        self.events.link_up(peer, connection.about)

    def drop_superseded(self, peer: str) -> None:
        """Close the link to ``peer`` if its process was replaced; the peer is dialled again."""
        link = self._links.get(peer)
        if link is not None and self._gate.refuses(peer, link.incarnation) is not None:
            self._close(link, peer)

    def _close(self, link: Connection, peer: str) -> None:
        """Ignore further input on it, and tell the peer if it was replaced."""
        mark = self._gate.refuses(peer, link.incarnation)
        if mark is None or link.incarnation is None:  # an earlier version would not understand
            link.abort()
        else:
            link.dismiss(mark)

    def finished(self, connection: Connection) -> None:
        peer = connection.peer
        self._note_greeting(connection)
        if peer is not None and self._links.get(peer) is connection:
            del self._links[peer]
            self.events.link_down(peer)

    def _note_greeting(self, connection: Connection) -> None:
        """A dial that was closed before any answer uses the other greeting next time."""
        greeted = connection.greeted
        if greeted is not None and not greeted[1]:
            self._speaks_old ^= {greeted[0]}

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
