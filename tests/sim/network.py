"""The network between simulated replicas: bytes that are late, lost, doubled, or held by a partition.

Two kinds. ``fifo`` is what TCP gives: connections that break and come back, in between every
message in order or not at all. ``wild`` drops, doubles and reorders, even across reconnects: more
than our transport ever does, so that no safety rests on the order of messages.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tests.sim.world import World

Link = tuple[str, str]


class Host(Protocol):
    """A replica's process as the network sees it."""

    up: bool
    incarnation: int

    def link_up(self, peer: str) -> None: ...
    def link_down(self, peer: str) -> None: ...
    def arrive(self, peer: str, frame: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad it is, chosen per seed."""

    kind: str  # "fifo" or "wild"
    loss: float
    duplicates: float
    latency_s: float


class SimNetwork:
    """See the module's text. A connection is a number; zero means none."""

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
        self._void: dict[str, int] = {}  # sender -> its messages before this one arrive no more
        self._storm_until, self._storm_delay_s = 0.0, 0.0

    def _stream(self, a: str, b: str) -> random.Random:
        """Chance on the link from ``a`` to ``b``: a stream for each, so that links do not disturb another."""
        stream = self._streams.get((a, b))
        if stream is None:
            stream = self._streams[a, b] = self.world.stream(f"link-{a}-{b}")
        return stream

    # -------------------------------------------------------------- connections
    def host_up(self, name: str) -> None:
        for other in self.hosts:
            if other != name:
                self._connect_soon(name, other)

    def host_down(self, name: str) -> None:
        for other in self.hosts:
            if other != name:
                self.cut(name, other)

    def cut(self, a: str, b: str) -> bool:
        """Break the connection between two hosts; it is dialled again. False if there is none."""
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

    def _notice(self, name: str, peer: str, incarnation: int) -> None:
        host = self.hosts[name]
        if host.incarnation == incarnation and not self._connections.get(_pair(name, peer)):
            host.link_down(peer)

    def _connect_soon(self, a: str, b: str) -> None:
        self.world.later(0.005 + self._stream(a, b).random() * 0.05, self._connect, a, b)

    def _connect(self, a: str, b: str) -> None:
        pair = _pair(a, b)
        if not (self.hosts[a].up and self.hosts[b].up) or self._connections.get(pair):
            return
        if (a, b) in self._blocked or (b, a) in self._blocked:
            self._connect_soon(a, b)
            return
        self._serial += 1
        self._connections[pair] = self._serial
        for x, y in ((a, b), (b, a)):
            self._last_arrival[x, y] = 0.0
            self.hosts[x].link_down(y)  # a break that nobody noticed yet
            self.hosts[x].link_up(y)

    def reaches(self, a: str, b: str) -> bool:
        """Whether a call from ``a`` to ``b``, and its answer, would get through now."""
        return (a, b) not in self._blocked and (b, a) not in self._blocked

    def silence(self, name: str) -> None:
        """What ``name`` has sent so far arrives no more.

        For a machine whose successor knows less than it did: each peer closes the old connection
        before it hears of the new one, so even the wild network must not deliver this.
        """
        self._void[name] = self._sent + 1

    def storm(self, duration_s: float, delay_s: float) -> None:
        """For some time messages take up to ``delay_s`` longer, and in the wild many are lost or doubled."""
        self._storm_until, self._storm_delay_s = self.world.now + duration_s, delay_s

    # -------------------------------------------------------------- partitions
    def block(self, links: Iterable[Link]) -> bool:
        """Nothing passes these links until ``unblock``; whether any of them was connected and open."""
        met = False
        for link in links:
            met |= bool(self._connections.get(_pair(*link))) and link not in self._blocked
            self._blocked[link] = self._blocked.get(link, 0) + 1
        return met

    def unblock(self, links: Iterable[Link]) -> None:
        for link in links:
            count = self._blocked.pop(link, 0)
            if count > 1:
                self._blocked[link] = count - 1
                continue
            held = self._held.pop(link, [])
            if self._stream(*link).random() < 0.5:
                self.cut(*link)
                continue
            for connection, frame in held:
                if self._connections.get(_pair(*link)) == connection:
                    self._fly(*link, connection, frame)

    def heal(self) -> None:
        """No more faults: every partition ends, nothing is lost any more."""
        self.calm = True
        for link in list(self._blocked):
            self._blocked[link] = 1
            self.unblock([link])

    # -------------------------------------------------------------- messages
    def send(self, sender: str, receiver: str, frame: bytes) -> None:
        self.bytes_sent += len(frame)
        connection = self._connections.get(_pair(sender, receiver), 0)
        if not connection:
            return
        if (sender, receiver) in self._blocked:
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
        host.arrive(sender, frame)


def _pair(a: str, b: str) -> Link:
    return (a, b) if a < b else (b, a)
