"""A client's own connection to a broker: real sockets, a broker's door in a thread, Ray's calls beside."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq.actors.client.linked_calls import CONNECT_TIMEOUT_S, SILENT_S, ClientLink, LinkedCalls
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.replication.format.operation import FRAME
from escrowmq.replication.net.client_listener import (
    COLUMNS_BYTES_MAX,
    PREFIX,
    REQUEST_BYTES_MAX,
    STRANGERS_SHARE,
    ClientLimits,
    ClientListener,
    frame,
)
from tests.support.waiting import wait_until

OK = ("ok", [[0]])


class Loop:
    """The replica's thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10.0)

    def call(self, fn: Callable[[], Any]) -> None:
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (fn(), done.set()))
        assert done.wait(10.0)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10.0)
        self.loop.close()


class Broker:
    """A door, and Ray's calls to the process behind it."""

    def __init__(self, loop: Loop, limits: ClientLimits) -> None:
        self.loop, self.limits, self.taken, self.held = loop, limits, [], []  # type: ignore[var-annotated]
        self.over_ray: list[str] = []
        self.holds = False
        self.offers: Callable[[], Any] = lambda: self.door.open_to()
        self.start()

    def start(self) -> None:
        self.door = ClientListener(self.begin, time.monotonic, self.limits)
        self.loop.run(self.door.start("127.0.0.1"))

    def begin(self, request: bytes, done: Callable[[tuple[Any, ...]], None]) -> None:
        self.taken.append(request)
        if self.holds:
            self.held.append(done)
        else:
            done(("ok", [[0, len(request)]]))

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        self.over_ray.append(method)
        done(self.offers() if method == "client_link" else OK, None)

    def close(self) -> None: ...


def request_of(size: int) -> bytes:
    """A request of one operation, as far as its frame says; this broker does not look inside."""
    return (
        bytes(size)
        if size < FRAME.size
        else FRAME.pack(1, 1, 0, 0, size - FRAME.size) + bytes(size - FRAME.size)
    )


def small_operations(size: int) -> bytes:
    """The same of as many operations without a body as fit."""
    return FRAME.pack(1, 1, 0, 0, 0) * (size // FRAME.size)


class Client:
    """A router's thread, driven by hand."""

    def __init__(self, broker: Broker) -> None:
        self.now = 0.0
        self.calls = LinkedCalls(broker, lambda: self.now)
        self.answers: list[tuple[Any, BaseException | None]] = []

    def submit(self, request: bytes = b"r") -> None:
        self.calls.call(
            0, 1, "submit", (request,), lambda answer, error: self.answers.append((answer, error))
        )

    def turn(self, wait_s: float = 0.05) -> None:
        self.calls.wakeup.clear()
        self.calls.pump(self.now)
        self.calls.wakeup.wait(wait_s)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10.0
        while not condition():
            assert time.monotonic() < deadline, "nothing came"
            self.turn()

    def link_up(self) -> None:
        def linked() -> bool:
            before = self.calls.linked
            self.submit(b"is it up")
            self.turn()
            self.now += 0.1
            return self.calls.linked > before

        self.until(linked)
        self.until(lambda: not self.under_way())
        self.answers.clear()

    def link(self) -> ClientLink:
        link = self.calls._brokers[0, 1].link
        assert link is not None
        return link

    def under_way(self) -> bool:
        return bool(self.link()._calls)

    def ask(self, request: bytes = b"r") -> Any:
        count = len(self.answers)
        self.submit(request)
        self.until(lambda: len(self.answers) > count)
        return self.answers[-1]


@pytest.fixture
def loop() -> Iterator[Loop]:
    it = Loop()
    yield it
    it.close()


@pytest.fixture
def limits() -> ClientLimits:
    return ClientLimits(clients=100)


@pytest.fixture
def broker(loop: Loop, limits: ClientLimits) -> Iterator[Broker]:
    it = Broker(loop, limits)
    yield it
    loop.call(it.door.stop)


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    it = Client(broker)
    yield it
    it.calls.stopped("the test ends")
    it.calls.close()


def test_the_first_requests_go_through_ray_and_later_ones_over_the_link(
    broker: Broker, client: Client
) -> None:
    assert client.ask() == (OK, None)
    assert broker.over_ray == ["client_link", "submit"]
    client.link_up()
    asked = len(broker.over_ray)
    assert client.ask(b"12345") == (("ok", [[0, 5]]), None)
    assert broker.taken[-1] == b"12345"
    assert len(broker.over_ray) == asked


def test_answers_come_in_any_order_and_large_requests_in_pieces(broker: Broker, client: Client) -> None:
    client.link_up()
    broker.holds = True
    sizes = [1, REQUEST_BYTES_MAX, 7, 60_000, REQUEST_BYTES_MAX]
    for size in sizes:
        client.submit(request_of(size))
    client.until(lambda: len(broker.held) == len(sizes))
    assert [len(request) for request in broker.taken[-len(sizes) :]] == sizes
    for number in (4, 0, 3, 2, 1):
        broker.loop.call(lambda number=number: broker.held[number](("ok", [[number]])))
        client.until(lambda number=number: client.answers[-1:] == [(("ok", [[number]]), None)])


def test_calls_under_way_fail_when_the_broker_ends_and_later_ones_go_through_ray(
    loop: Loop, broker: Broker, client: Client
) -> None:
    client.link_up()
    broker.holds = True
    client.submit(b"lost")
    client.until(lambda: bool(broker.held))
    loop.call(broker.door.stop)
    client.until(lambda: bool(client.answers))
    answer, error = client.answers.pop()
    assert answer is None
    assert isinstance(error, OSError)
    assert client.ask() == (OK, None), "through Ray"
    broker.holds = False
    broker.start()
    client.now += 60.0
    client.link_up()


def test_a_broker_that_offers_nothing_is_asked_ever_more_rarely(broker: Broker, client: Client) -> None:
    broker.offers = lambda: None
    broker.over_ray.clear()
    for _ in range(1000):
        client.submit()
        client.turn(0.0)
        client.now += 0.1
    assert 1 <= broker.over_ray.count("client_link") <= 12
    assert client.calls.linked == 0


def test_a_broker_that_cannot_be_reached_or_says_nothing_costs_nobody_a_wait(
    broker: Broker, client: Client
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        broker.offers = lambda: (*mute.getsockname(), b"k" * 32)
        assert client.ask() == (OK, None)
        client.turn()
        client.now += CONNECT_TIMEOUT_S + 0.1
        assert client.ask() == (OK, None)
        port = mute.getsockname()[1]
    broker.offers = lambda: ("127.0.0.1", port, b"k" * 32)  # nobody listens there any more
    client.now += 60.0
    assert client.ask() == (OK, None)
    client.turn()
    broker.offers = lambda: broker.door.open_to()
    client.now += 60.0
    client.link_up()


def test_a_stranger_at_that_address_is_no_broker(loop: Loop, broker: Broker, client: Client) -> None:
    other = Broker(loop, broker.limits)
    host, port, _ = other.door.open_to() or ("", 0, b"")
    broker.offers = lambda: (host, port, broker.door.key)
    for _ in range(20):
        assert client.ask(b"secret") == (OK, None)
        client.turn(0.01)
    assert other.taken == []
    assert other.door.refused > 0 or client.calls.linked == 0
    loop.call(other.door.stop)


@pytest.mark.parametrize(
    "request_bytes",
    [request_of(REQUEST_BYTES_MAX + 1), small_operations(COLUMNS_BYTES_MAX + 20)],
    ids=["long", "many operations"],
)
def test_requests_that_take_long_go_through_ray(broker: Broker, client: Client, request_bytes: bytes) -> None:
    """Checking many operations takes long, and the thread behind the door sends heartbeats."""
    client.link_up()
    linked, asked = client.calls.linked, broker.over_ray.count("submit")
    assert client.ask(request_bytes) == (OK, None)
    assert (client.calls.linked, broker.over_ray.count("submit")) == (linked, asked + 1)


def test_many_operations_are_taken_up_to_the_bound(broker: Broker, client: Client) -> None:
    client.link_up()
    linked = client.calls.linked
    assert client.ask(small_operations(COLUMNS_BYTES_MAX - 20))[0][0] == "ok"
    assert client.calls.linked == linked + 1


def test_a_connection_that_has_gone_silent_takes_no_further_calls(broker: Broker, client: Client) -> None:
    client.link_up()
    broker.holds = True
    client.submit(b"held")
    client.until(lambda: bool(broker.held))
    client.turn(0.0)
    client.now += SILENT_S + 0.1
    assert client.ask(b"repeated") == (OK, None), "through Ray"
    broker.loop.call(lambda: broker.held.pop()(OK))
    client.until(lambda: client.answers[-2:] == [(OK, None), (OK, None)])
    broker.holds = False
    linked = client.calls.linked
    assert client.ask()[0] == ("ok", [[0, 1]])
    assert client.calls.linked == linked + 1, "it has answered"


def test_a_connection_that_breaks_while_it_proves_itself_is_never_up(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ClientLink._send

    def broken(link: ClientLink, data: bytes) -> None:
        monkeypatch.setattr(ClientLink, "_send", send)
        link.close(ConnectionResetError("reset"))

    monkeypatch.setattr(ClientLink, "_send", broken)
    for _ in range(20):
        assert client.ask() == (OK, None)
        client.turn(0.01)
    client.now += 60.0
    client.link_up()


def test_a_closed_connection_ends_at_the_broker_although_a_forked_process_has_a_copy(
    broker: Broker, client: Client
) -> None:
    client.link_up()
    assert broker.door.clients == 1
    with client.link()._socket.dup():
        client.calls.stopped("closed")
        wait_until(lambda: broker.door.clients == 0, what="the end of the connection")


def test_whatever_an_answer_is_the_thread_goes_on(broker: Broker, client: Client) -> None:
    client.link_up()

    def fails(*answer: object) -> None:
        raise MemoryError

    client.link().call(b"r", fails)
    client.until(lambda: client.link().ended is not None)
    assert client.ask() == (OK, None), "through Ray"


# ------------------------------------------------------------------ attacks on the door


def talk(broker: Broker, data: bytes, timeout_s: float = 5.0) -> bytes:
    """Send that, and read until the broker closes."""
    address = broker.door.address
    assert address is not None
    with socket.create_connection(address, timeout_s) as link:
        link.sendall(data)
        received = b""
        try:
            while part := link.recv(4096):
                received += part
        except ConnectionResetError:
            pass
        return received


def test_random_bytes_close_the_connection_and_nothing_is_taken(broker: Broker, client: Client) -> None:
    rng = random.Random(3)
    for _ in range(50):
        # At least a whole header, or the door waits for the rest until its time is over.
        assert (
            talk(broker, rng.choice((b"", PREFIX.pack(40, 0))) + rng.randbytes(rng.randrange(64, 400))) == b""
        )
    assert broker.taken == []
    client.link_up()


def test_requests_before_the_greeting_are_refused(broker: Broker) -> None:
    assert talk(broker, frame(1, b"request")) == b""
    assert broker.taken == []


@pytest.mark.parametrize("limits", [ClientLimits(greeting_s=0.2)])
def test_a_greeting_that_never_ends_is_cut_off(broker: Broker) -> None:
    assert talk(broker, b"\0\0") == b""
    assert broker.door.refused == 1


@pytest.mark.parametrize("limits", [ClientLimits(clients=4 * STRANGERS_SHARE)])
def test_strangers_beyond_the_bound_push_out_the_oldest(broker: Broker, client: Client) -> None:
    address = broker.door.address
    assert address is not None
    idle = [socket.create_connection(address, 5.0) for _ in range(12)]
    wait_until(lambda: broker.door.refused == 8, what="eight pushed out")
    client.link_up()
    for link in idle:
        link.close()


@pytest.mark.parametrize(
    "request_bytes",
    [request_of(REQUEST_BYTES_MAX + 1), small_operations(COLUMNS_BYTES_MAX + 20)],
    ids=["long", "many operations"],
)
def test_a_request_that_is_too_long_ends_its_connection_only(
    loop: Loop, client: Client, broker: Broker, request_bytes: bytes
) -> None:
    client.link_up()
    other = Client(broker)
    other.link_up()
    client.link().call(request_bytes, lambda *answer: client.answers.append(answer))
    client.until(lambda: bool(client.answers))
    assert isinstance(client.answers[0][1], OSError)
    assert other.ask(b"fine") == (("ok", [[0, 4]]), None)
    other.calls.stopped("the test ends")


@pytest.mark.parametrize("limits", [ClientLimits(clients=1)])
def test_beyond_the_greatest_number_of_clients_none_is_offered(broker: Broker, client: Client) -> None:
    client.link_up()
    late = Client(broker)
    for _ in range(5):
        assert late.ask() == (OK, None)
        late.turn(0.01)
    assert late.calls.linked == 0
    assert client.ask(b"1")[0] == ("ok", [[0, 1]])
    late.calls.stopped("the test ends")


@pytest.mark.parametrize("limits", [ClientLimits(clients=100, waiting_bytes=1000)])
def test_a_flood_of_requests_is_checked_in_slices(loop: Loop, broker: Broker, client: Client) -> None:
    """Other work of the loop (heartbeats) gets its turn between them."""
    client.link_up()
    turns: list[int] = []

    def slow(request: bytes, done: Callable[[tuple[Any, ...]], None]) -> None:
        time.sleep(0.001)
        broker.taken.append(request)
        done(OK)

    def heartbeat() -> None:
        turns.append(len(broker.taken))
        loop.loop.call_soon(heartbeat)

    broker.taken.clear()
    broker.door.begin = slow
    loop.call(heartbeat)
    for _ in range(200):
        client.submit(bytes(100))
    client.until(lambda: len(client.answers) == 200)
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert 1 <= max(steps) <= 4, "two milliseconds at a time, and each takes one"
    assert client.ask()[1] is None, "connections that were not read meanwhile are read again"
