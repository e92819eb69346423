"""Long requests that arrive in pieces: what a broker keeps of them is bounded, in room and in time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from escrowmq.replication.format.operation import FRAME
from escrowmq.replication.net.client_listener import (
    ClientGreeting,
    ClientLimits,
    ClientListener,
    FrameBuffer,
    decode_answer,
    frame,
)
from tests.support.waiting import wait_until

KIB = 1 << 10
LONG = 300 * KIB
#: Room for three such requests, with their numbers, and not for four.
ROOM = 4 * LONG - KIB


class Broker:
    """A listener in a thread of its own, which answers each request with its size."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrival_s: float) -> None:
        self.loop, self.clients = loop, [RawClient() for _ in range(5)]
        self.door = ClientListener(
            self.begin, time.monotonic, ClientLimits(clients=100, arriving_bytes=ROOM, arrival_s=arrival_s)
        )
        self.thread = threading.Thread(target=loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self.door.start("127.0.0.1"), loop).result(10.0)
        for client in self.clients:
            client.greet(self.door)

    @staticmethod
    def begin(request: bytes, done: Callable[[tuple[Any, ...]], None]) -> None:
        done(("ok", [len(request)]))

    def kept(self) -> int:
        """Bytes of unfinished requests, as the connections have them."""
        return sum(len(connection._frames._data) for connection in list(self.door._clients))

    def close(self) -> None:
        for client in self.clients:
            client.socket.close()
        self.loop.call_soon_threadsafe(self.door.stop)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10.0)
        self.loop.close()


class RawClient:
    """A client that sends its request in pieces."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.frames = FrameBuffer(1 << 20)
        request = FRAME.pack(1, 1, 0, 0, LONG - FRAME.size) + bytes(LONG - FRAME.size)
        self.whole = frame(7, request)

    def greet(self, door: ClientListener) -> None:
        assert door.address is not None
        self.socket.settimeout(10.0)
        self.socket.connect(door.address)
        greeting = ClientGreeting(door.key, bytes(32))
        self.socket.sendall(frame(0, greeting.hello()))
        self.socket.sendall(frame(0, greeting.receive(self.payload())))

    def payload(self) -> bytes:
        while (found := self.frames.next()) is None:
            data = self.socket.recv(1 << 16)
            assert data, "the broker has closed the connection"
            self.frames.feed(data)
        return found[1]

    def begins(self) -> None:
        self.socket.sendall(self.whole[: 2 * KIB])

    def goes_on(self) -> None:
        self.socket.sendall(self.whole[2 * KIB :])

    def is_answered(self) -> bool:
        return decode_answer(self.payload()) == ("ok", [LONG])


@pytest.fixture
def arrival_s() -> float:
    return 10.0


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def broker(request: pytest.FixtureRequest, arrival_s: float) -> Iterator[Broker]:
    made = Broker(request.param(), arrival_s)
    yield made
    made.close()


def arriving(broker: Broker) -> int:
    return len(broker.door.arrivals._arriving)


def waiting(broker: Broker) -> int:
    return len(broker.door.arrivals._waiting)


def test_as_many_arrive_as_have_room_and_the_others_one_after_the_other(broker: Broker) -> None:
    for client in broker.clients:
        client.begins()
    wait_until(lambda: (arriving(broker), waiting(broker)) == (3, 2), what="three have room, two wait")
    inside = {c._transport.get_extra_info("peername") for c in broker.door.arrivals._arriving}  # type: ignore[union-attr]
    first = [client for client in broker.clients if client.socket.getsockname() in inside]
    others = [client for client in broker.clients if client not in first]
    for client in others:
        threading.Thread(target=client.goes_on, daemon=True).start()
    time.sleep(0.2)
    assert broker.kept() < 5 * 3 * KIB, "what the two send is not read"
    for client in first:
        client.goes_on()
        assert client.is_answered()
    assert all(client.is_answered() for client in others)
    wait_until(lambda: (arriving(broker), waiting(broker)) == (0, 0), what="no room is taken")
    assert broker.door.arrivals.bytes == 0


@pytest.mark.parametrize("arrival_s", [0.3])
def test_a_request_that_does_not_arrive_loses_its_room_with_its_connection(broker: Broker) -> None:
    for client in broker.clients[:3]:
        client.begins()
    wait_until(lambda: arriving(broker) == 3, what="three have room")
    late = broker.clients[3]
    late.socket.sendall(late.whole)
    assert late.is_answered()
    wait_until(lambda: broker.door.clients == 2, what="three connections are closed")
    assert (arriving(broker), broker.door.arrivals.bytes) == (0, 0)


def test_a_client_that_goes_away_gives_its_room_back(broker: Broker) -> None:
    for client in broker.clients[:4]:
        client.begins()
    wait_until(lambda: (arriving(broker), waiting(broker)) == (3, 1), what="one waits")
    for client in broker.clients[:4]:
        client.socket.close()
    wait_until(lambda: broker.door.clients == 1, what="all four are gone")
    assert (arriving(broker), waiting(broker), broker.door.arrivals.bytes) == (0, 0, 0)


@pytest.mark.parametrize("arrival_s", [0.5])
def test_long_requests_one_after_the_other_have_a_time_of_their_own_each(broker: Broker) -> None:
    """A busy producer always has one that is arriving."""
    client = broker.clients[0]
    half = len(client.whole) // 2
    client.socket.sendall(client.whole[:half])
    for _ in range(5):
        time.sleep(0.2)
        client.socket.sendall(client.whole[half:] + client.whole[:half])
        assert client.is_answered()
    client.socket.sendall(client.whole[half:])
    assert client.is_answered()
