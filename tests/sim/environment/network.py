"""The network between simulated replicas: bytes may be late, lost, duplicated, or held by a partition.

There are two kinds. ``fifo`` behaves like TCP: connections break and come back, and in between every message
arrives in order or not at all. ``wild`` drops, duplicates and reorders, even across reconnects. That is more
than the real transport does, and ensures that safety does not depend on the order of messages.

A host is identified by its address. That is the name of its replica, until the replica is replaced while its
machine lives on; then two hosts have the same name, and links between the three of them are made as in
net/tcp.py: the host with the greater name dials; a name with a link that is up is not dialled; a newer link
from a name replaces an older one, which delivers nothing more; and both sides first do a handshake
(``meet``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tests.sim.environment.world import World

Link = tuple[str, str]
LATE_S = 0.1  # longer than messages take without a storm, in a calm
LOOK_S = 0.05  # between two tries of a host to connect to one that refuses it


class Links(Protocol):
    """A process's end of its links."""

    def link_up(self, peer: str) -> None: ...
    def link_down(self, peer: str) -> None: ...
    def arrive(self, peer: str, frame: bytes) -> None: ...
    def forget(self, address: str) -> None:
        """Ignore what has arrived from this host and was not read."""


class Host(Protocol):
    """A replica's process, as the network sees it."""

    name: str
    up: bool
    incarnation: int
    paused_until: float

    @property
    def links(self) -> Links: ...


@dataclass(frozen=True, slots=True)
class Weather:
    """How unreliable the network is, chosen by the seed."""

    kind: str  # "fifo" or "wild"
    loss: float
    duplicates: float
    latency_s: float


class SimNetwork:
    """See the module's docstring. A connection is a number; zero means none."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world, self.weather = world, weather
        self.hosts: dict[str, Host] = {}
        self.calm = False
        self.bytes_sent = 0
        self._connections: dict[Link, int] = {}
        self._serial = 0
        self._last_arrival: dict[Link, float] = {}
        self._blocked: dict[Link, int] = {}
        self._held: dict[Link, list[tuple[int, bytes]]] = {}
        self._streams: dict[Link, random.Random] = {}
        self._sent = 0
        self._void: dict[str, int] = {}  # sender -> messages before this number are dropped
        #: The handshake of two hosts, dialler first: whether they accept each other.
        self.meet: Callable[[Host, Host], bool] = lambda dialer, listener: True
        self._twins: dict[str, list[str]] = {}  # name of several hosts -> their addresses
        self._isolated: set[str] = set()  # addresses
        self._looking: set[Link] = set()
        self._storm_until, self._storm_delay_s = 0.0, 0.0

    def _stream(self, a: str, b: str) -> random.Random:
        """The random stream of the link from ``a`` to ``b``; each link has one, so they are independent."""
        stream = self._streams.get((a, b))
        if stream is None:
            stream = self._streams[a, b] = self.world.stream(f"link-{a}-{b}")
        return stream

    # -------------------------------------------------------------- two hosts of one name
    def add(self, address: str, host: Host) -> None:
        """Add a host that has the same name as another one."""
        self._twins.setdefault(host.name, [host.name]).append(address)
        self.hosts[address] = host

    def linked(self, address: str, name: str) -> str | None:
        """The host called ``name`` to which ``address`` has a link; None if there is none."""
        for other in self._twins.get(name, (name,)):
            if self._connections.get(_pair(address, other)):
                return other
        return None

    def isolate(self, address: str) -> None:
        """Cut off this host (and no other with the same name) until ``release``."""
        self._isolated.add(address)

    def release(self, address: str) -> None:
        self._isolated.discard(address)
        for link in [link for link in self._held if address in link]:
            self._let_go(link)

    def _name(self, address: str) -> str:
        return self.hosts[address].name if self._twins else address

    def _shut(self, a: str, b: str) -> bool:
        if self._isolated and (a in self._isolated or b in self._isolated):
            return True
        return (self._name(a), self._name(b)) in self._blocked

    def _others(self, address: str) -> list[str]:
        name = self._name(address)
        return [other for other in self.hosts if self._name(other) != name]

    def _contested(self, a: str, b: str) -> bool:
        return bool(self._twins) and not self._twins.keys().isdisjoint((self._name(a), self._name(b)))

    def _may_meet(self, a: str, b: str) -> bool:
        """Whether the one that dials is looking for the other now, and both can communicate."""
        dialer, listener = (a, b) if self._name(a) > self._name(b) else (b, a)
        if self.linked(dialer, self._name(listener)):
            return False
        return all(self.world.now >= self.hosts[x].paused_until for x in (a, b))

    # -------------------------------------------------------------- connections
    def host_up(self, address: str) -> None:
        for other in self._others(address):
            self._connect_soon(address, other)

    def host_down(self, address: str) -> None:
        for other in self._others(address):
            self.cut(address, other)

    def cut(self, a: str, b: str) -> bool:
        """Break the connection between two hosts, which is then dialled again. False if there is none."""
        pair = _pair(a, b)
        if not self._connections.get(pair):
            return False
        self._connections[pair] = 0
        for x, y in ((a, b), (b, a)):
            self._held.pop((x, y), None)
            if self.hosts[x].up:
                delay = self._stream(x, y).random() * 0.05
                self.world.later(delay, self._notice, x, y, self.hosts[x].incarnation)
        self._connect_soon(a, b)
        return True

    def _notice(self, address: str, peer: str, incarnation: int) -> None:
        host, name = self.hosts[address], self._name(peer)
        if host.incarnation == incarnation and not self.linked(address, name):
            host.links.link_down(name)

    def _connect_soon(self, a: str, b: str) -> None:
        self.world.later(0.005 + self._stream(a, b).random() * 0.05, self._connect, a, b)

    def _connect(self, a: str, b: str) -> None:
        pair = _pair(a, b)
        if not (self.hosts[a].up and self.hosts[b].up) or self._connections.get(pair):
            return
        if self._contested(a, b):
            if self._shut(a, b) or self._shut(b, a) or not self._greet(a, b):
                self._look_again(a, b)
                return
        elif self._shut(a, b) or self._shut(b, a) or not self._greet(a, b):
            self._connect_soon(a, b)
            return
        self._serial += 1
        self._connections[pair] = self._serial
        for x, y in ((a, b), (b, a)):
            self._last_arrival[x, y] = 0.0
            self.hosts[x].links.link_down(self._name(y))  # a break that was not noticed yet
            self.hosts[x].links.link_up(self._name(y))

    def _look_again(self, a: str, b: str) -> None:
        """Schedule one try at a time: hosts with links to others of the same name may try for long."""
        pair = _pair(a, b)
        if pair not in self._looking:
            self._looking.add(pair)
            self.world.later(LOOK_S * (0.5 + self._stream(a, b).random()), self._look, a, b)

    def _look(self, a: str, b: str) -> None:
        self._looking.discard(_pair(a, b))
        self._connect(a, b)

    def _greet(self, a: str, b: str) -> bool:
        """Whether a link is made; it is then the only one that either side has with the other's name."""
        contested = self._contested(a, b)
        if contested and not self._may_meet(a, b):
            return False
        dialer, listener = (a, b) if self._name(a) > self._name(b) else (b, a)
        if not self.meet(self.hosts[dialer], self.hosts[listener]):
            return False
        if contested and (older := self.linked(listener, self._name(dialer))):
            self.cut(listener, older)
            self.hosts[listener].links.forget(older)
        return True

    def reaches(self, a: str, b: str) -> bool:
        """Whether a call from ``a`` to ``b``, and its answer, would get through now."""
        return not (self._shut(a, b) or self._shut(b, a))

    def silence(self, name: str) -> None:
        """Drop everything that ``name`` has sent so far.

        This is for a machine whose successor knows less: each peer closes the old connection before it learns
        about the new one, so even the wild network must not deliver these messages.
        """
        self._void[name] = self._sent + 1

    def storm(self, duration_s: float, delay_s: float) -> None:
        """For a time, messages take up to ``delay_s`` longer; in the wild many are lost or duplicated."""
        self._storm_until, self._storm_delay_s = self.world.now + duration_s, delay_s

    # -------------------------------------------------------------- partitions
    def block(self, links: Iterable[Link]) -> bool:
        """Block these links until ``unblock``; returns whether any of them was connected and open."""
        met = False
        for a, b in links:
            link = self._name(a), self._name(b)
            met |= bool(self._connections.get(_pair(a, b))) and link not in self._blocked
            self._blocked[link] = self._blocked.get(link, 0) + 1
        return met

    def unblock(self, links: Iterable[Link]) -> None:
        for link in links:
            count = self._blocked.pop(link, 0)
            if count > 1:
                self._blocked[link] = count - 1
                continue
            for held in self._bearers(link):
                self._let_go(held)

    def _bearers(self, link: Link) -> list[Link]:
        if not self._twins:
            return [link]
        sides = [self._twins.get(self._name(name), [name]) for name in link]
        return [(a, b) for a in sides[0] for b in sides[1]]

    def _let_go(self, link: Link) -> None:
        """Deliver what was held up on an open connection, or break the connection."""
        held = self._held.pop(link, [])
        if self._stream(*link).random() < 0.5:
            self.cut(*link)
            return
        for connection, frame in held:
            if self._connections.get(_pair(*link)) == connection:
                self._fly(*link, connection, frame)

    def heal(self) -> None:
        """End all faults: partitions end, and nothing is lost from now on."""
        self.calm = True
        for address in sorted(self._isolated):
            self.release(address)
        for link in list(self._blocked):
            self._blocked[link] = 1
            self.unblock([link])

    # -------------------------------------------------------------- messages
    @property
    def is_late(self) -> bool:
        """Whether a connection still has messages of a storm on their way: what is sent comes behind them."""
        return max(self._last_arrival.values(), default=0.0) > self.world.now + LATE_S

    def send(self, sender: str, receiver: str, frame: bytes) -> None:
        self.bytes_sent += len(frame)
        connection = self._connections.get(_pair(sender, receiver), 0)
        if not connection:
            return
        if self._shut(sender, receiver):
            if self.weather.kind == "fifo":
                self._held.setdefault((sender, receiver), []).append((connection, frame))
            return
        self._fly(sender, receiver, connection, frame)

    def _fly(self, sender: str, receiver: str, connection: int, frame: bytes) -> None:
        rng, weather, world = self._stream(sender, receiver), self.weather, self.world
        delay = weather.latency_s * (0.5 + rng.random()) + (
            rng.random() * 0.5 if rng.random() < 0.01 else 0.0
        )
        stormy = world.now < self._storm_until
        if stormy:
            delay += rng.random() * self._storm_delay_s
        if self.calm:
            delay = 0.0005
        self._sent += 1
        frame_of = (self._sent, frame)
        if weather.kind == "fifo":
            at = max(self._last_arrival.get((sender, receiver), 0.0), world.now + delay)
            self._last_arrival[sender, receiver] = at
            world.later(at - world.now, self._arrive, sender, receiver, connection, frame_of)
            return
        if not self.calm and rng.random() < max(weather.loss, 0.2 * stormy):
            return
        world.later(delay, self._arrive, sender, receiver, connection, frame_of)
        if not self.calm and rng.random() < max(weather.duplicates, 0.3 * stormy):
            world.later(delay + rng.random() * 0.3, self._arrive, sender, receiver, connection, frame_of)

    def _arrive(self, sender: str, receiver: str, connection: int, frame_of: tuple[int, bytes]) -> None:
        host = self.hosts[receiver]
        number, frame = frame_of
        if not host.up or number < self._void.get(sender, 0):
            return
        if self.weather.kind == "fifo" and self._connections.get(_pair(sender, receiver)) != connection:
            return
        # In the wild network too, a link that another host of the same name has replaced is closed.
        if self._contested(sender, receiver) and self.linked(receiver, self._name(sender)) != sender:
            return
        host.links.arrive(sender, frame)


def _pair(a: str, b: str) -> Link:
    return (a, b) if a < b else (b, a)
