"""Clients that send requests and do not read the answers: what a broker keeps for all of them is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from escrowmq.replication.net.client_listener import (
    UNREAD_BYTES_MAX,
    ClientGreeting,
    ClientLimits,
    ClientListener,
    FrameBuffer,
    UnreadAnswers,
    frame,
)
from tests.support.waiting import wait_until

MIB = 1 << 20
#: Of all clients, and of one; what one answer has.
ALL, ONE, ANSWER = 4 * MIB, MIB, 100_000


class House:
    """A door in a thread of its own, whose answers are large."""

    def __init__(self, loop: asyncio.AbstractEventLoop, each: int = ONE) -> None:
        self.loop, self.highest = loop, 0
        self.guests: list[RawClient] = []
        self.door = ClientListener(
            self.begin, time.monotonic, ClientLimits(clients=100, unread_bytes=ALL, unread_bytes_each=each)
        )
        self.thread = threading.Thread(target=loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self.door.start("127.0.0.1"), loop).result(10.0)

    def begin(self, request: bytes, done: Callable[[tuple[Any, ...]], None]) -> None:
        done(("ok", [bytes(int(request))]))
        self.highest = max(self.highest, self.unread())

    def unread(self) -> int:
        """What is kept for all clients, as the event loop knows it."""
        transports = [connection._transport for connection in self.door._clients]
        return sum(transport.get_write_buffer_size() for transport in transports if transport is not None)

    def guest(self) -> RawClient:
        self.guests.append(RawClient(self))
        return self.guests[-1]

    def close(self) -> None:
        for guest in self.guests:
            guest.socket.close()
        self.loop.call_soon_threadsafe(self.door.stop)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10.0)
        self.loop.close()


class RawClient:
    """A client that reads when it is told to."""

    def __init__(self, house: House) -> None:
        assert house.door.address is not None
        self.socket = socket.socket()
        self.socket.settimeout(10.0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.socket.connect(house.door.address)
        greeting = ClientGreeting(house.door.key, bytes(32))
        self.socket.sendall(frame(0, greeting.hello()))
        self.frames = FrameBuffer(64 * MIB)
        self.socket.sendall(frame(0, greeting.receive(self.answer())))

    def ask(self, count: int, size: int = ANSWER) -> None:
        self.socket.sendall(b"".join(frame(1, b"%d" % size) for _ in range(count)))

    def answer(self) -> bytes:
        while (found := self.frames.next()) is None:
            data = self.socket.recv(1 << 16)
            assert data, "the broker has closed the connection"
            self.frames.feed(data)
        return found[1]

    def is_cut(self) -> bool:
        """Reads all there is."""
        self.socket.settimeout(0.5)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionResetError:
            pass
        return True


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoop:
    made: asyncio.AbstractEventLoop = request.param()
    return made


@pytest.fixture
def house(loop: asyncio.AbstractEventLoop) -> Iterator[House]:
    made = House(loop)
    yield made
    made.close()


@pytest.fixture
def house_without_a_bound_for_each(loop: asyncio.AbstractEventLoop) -> Iterator[House]:
    """Clients fall behind at different speeds: on a busy machine each would be closed before all are many."""
    made = House(loop, each=ALL)
    yield made
    made.close()


def neglected(house: House) -> list[RawClient]:
    """Twelve clients that do not read fall behind together, beside one that reads."""
    clients, reader = [house.guest() for _ in range(12)], house.guest()
    # The sockets of this machine hold some megabytes, too, before a broker has to keep anything.
    for count in range(200):
        if house.door.clients < 5:
            break
        for client in clients:
            with contextlib.suppress(OSError):  # it was cut
                client.ask(1)
        time.sleep(0.005)
        if count % 10 == 0:
            reader.ask(1)
            assert len(reader.answer()) > ANSWER, "who reads is served"
    reader.ask(1)
    assert reader.answer()
    return clients


def test_answers_that_many_clients_do_not_read_stay_within_a_bound(
    house_without_a_bound_for_each: House, caplog: pytest.LogCaptureFixture
) -> None:
    house = house_without_a_bound_for_each
    clients = neglected(house)
    assert ALL / 2 < house.highest <= ALL + ANSWER + 100
    cut = sum(
        client.is_cut() for client in clients
    )  # reading frees the broker, which may cut more before that
    assert house.door.unread.cut == cut >= 8
    assert "answers that clients have not read" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_client_that_catches_up_does_not_count(house: House) -> None:
    client = house.guest()
    client.ask(9)
    for _ in range(9):
        assert len(client.answer()) > ANSWER
    wait_until(lambda: house.door.unread.bytes == 0, what="nothing unread")
    assert house.door.unread.cut == 0 and not house.door.unread._behind


def test_what_clients_have_read_meanwhile_does_not_count() -> None:
    class Behind:
        def __init__(self) -> None:
            self.size, self.open = 0, True

        def unread(self) -> int:
            return self.size

        def abort(self) -> None:
            self.open = False

    answers, clients = UnreadAnswers(), [Behind() for _ in range(20)]
    for _ in range(100):
        for client in clients:
            client.size = 7 << 20
            answers.grown(client)
            client.size = 1 << 20
    assert answers.cut == 0 and answers.bytes <= UNREAD_BYTES_MAX
    for client in clients:
        client.size = 7 << 20
        answers.grown(client)
    kept = sum(client.open for client in clients)
    assert answers.cut == 20 - kept and 6 <= kept <= 9
    for client in clients:
        answers.gone(client)
    assert answers.bytes == 0
