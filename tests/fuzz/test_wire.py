"""Frames and handshakes of the Raft link, as a stranger or a broken peer may send them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from escrowmq.replication.format import wire
from escrowmq.replication.net.handshake import NONCE_BYTES, Dialer, Listener
from escrowmq.replication.net.tcp import Connection
from tests.fuzz.engine import EXAMPLES, Target, drawn, examine, fuzz
from tests.support.wire_samples import ME, MESSAGES, PEER, SECRET, gate

FRAMES = [b"".join(wire.encode(message)) for message in MESSAGES if len(str(message)) < 10_000]


def handshake_frames() -> list[bytes]:
    """What both sides say in a good handshake."""
    dialer, listener = new_dialer(), new_listener()
    hello = dialer.hello()
    challenge = listener.receive(hello)
    proof = dialer.receive(challenge)
    assert proof is not None
    return [hello, challenge, proof, listener.receive(proof)]


def new_dialer() -> Dialer:
    return Dialer(ME, "b", SECRET, b"d" * NONCE_BYTES, gate("a"))


def new_listener() -> Listener:
    return Listener(PEER, frozenset("a"), SECRET, b"l" * NONCE_BYTES, gate("b"))


def decode_frame(data: bytes) -> None:
    if len(data) < wire.PREFIX.size:
        return
    total, header = wire.PREFIX.unpack_from(data)
    wire.check_prefix(total, header)
    view = memoryview(data)
    message = wire.decode(view[8 : 8 + header], view[8 + header : 4 + total])
    if message["type"] == "append_entries" and "entries" in message:
        numbers = [n for _, index, term in message["entries"] for n in (index, term)]
        assert all(0 <= n < 1 << 64 for n in numbers)
    again = b"".join(wire.encode(message))
    (total, header), view = wire.PREFIX.unpack_from(again), memoryview(again)
    assert wire.decode(view[8 : 8 + header], view[8 + header :]) == message


def in_the_middle(make: Callable[[], Dialer | Listener], before: list[bytes]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        side = make()
        for frame in before:
            side.receive(frame)
        side.receive(data)
        assert not side.established or data in SAID

    return run


SAID = handshake_frames()
TARGETS = [
    Target("wire frame", decode_frame, FRAMES),
    Target("greeting", in_the_middle(new_listener, []), [SAID[0]]),
    Target("challenge", in_the_middle(new_dialer, []), [SAID[1]]),
    Target("dialer's proof", in_the_middle(new_listener, [SAID[0]]), [SAID[2]]),
    Target("welcome", in_the_middle(new_dialer, [SAID[1]]), [SAID[3]]),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_damaged_bytes_are_refused_with_an_error_of_ours(target: Target) -> None:
    fuzz(target)


def test_text_that_is_no_unicode_is_refused() -> None:
    """Found by fuzzing: the decoder's UnicodeDecodeError reached the event loop."""
    examine(TARGETS[1], SAID[0].replace(b"cluster", b"clu\xff\xfeer"))
    assert b"\xff\xfe" in SAID[0].replace(b"cluster", b"clu\xff\xfeer")


index = st.integers(0, (1 << 63) - 1)
entries = st.lists(st.tuples(st.binary(min_size=1, max_size=50), index), max_size=5)


@drawn(index, index, index, index, entries)
def test_what_is_encoded_is_decoded(
    term: int, commit: int, seq: int, previous: int, commands: list[tuple[bytes, int]]
) -> None:
    terms = sorted(t for _, t in commands)
    wanted = {
        "type": "append_entries", "term": term, "commit_index": commit, "seq": seq, "prevLogIdx": previous,
        "prevLogTerm": 1,
        "entries": [(commands[i][0], previous + 1 + i, term) for i, term in enumerate(terms)],
    }  # fmt: skip
    frame = b"".join(wire.encode(wanted))
    (_, header), view = wire.PREFIX.unpack_from(frame), memoryview(frame)
    assert wire.decode(view[8 : 8 + header], view[8 + header :]) == wanted


# ------------------------------------------------------------------ a whole connection
class Owner:
    """The transport's side of one connection; counts what it is told."""

    handshake_timeout_s = 60.0

    def __init__(self) -> None:
        self.got: list[wire.RaftMessage] = []
        self.ended = self.wrong = 0

    def stranger_arrived(self, connection: Connection) -> bool:
        return True

    def stranger_settled(self, connection: Connection) -> None: ...
    def established(self, connection: Connection, peer: str) -> None: ...
    def complain(self, text: str) -> None: ...
    def timed_out(self) -> None: ...

    def received(self, peer: str, message: wire.RaftMessage) -> None:
        self.got.append(message)

    def refused(self) -> None:
        self.wrong += 1

    def malformed(self) -> None:
        self.wrong += 1

    def finished(self, connection: Connection) -> None:
        self.ended += 1


class Socket(asyncio.Transport):
    """A socket that swallows what is written."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def write(self, data: object) -> None: ...

    def abort(self) -> None:
        self.closed = True

    close = abort


def feed(connection: Connection, data: bytes, step: int) -> None:
    at = 0
    while at < len(data):
        room = connection.get_buffer(-1)
        size = min(step, len(room), len(data) - at)
        room[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size


def framed(header: bytes) -> bytes:
    return wire.PREFIX.pack(4 + len(header), len(header)) + header


def conversation(data: bytes) -> None:
    """``data`` comes in, in pieces of its own choosing; nothing is believed unless it is the right proof."""
    step = 1 + (sum(data[:4]) % 1500)

    async def scene() -> None:
        owner = Owner()
        with socket.socket() as sock:
            connection = Connection(owner, new_listener())
            transport = Socket(sock)
            connection.connection_made(transport)
            feed(connection, data, step)
            proved = data.startswith(framed(SAID[0]) + framed(SAID[2]))
            assert (connection.peer == "a") == proved
            assert proved or not owner.got
            assert transport.closed == (owner.ended == 1) == (owner.wrong == 1)
            assert len(connection._buffer) <= (FRAME_MEMORY if proved else 8192), "memory for a stranger"
            connection.abort()

    asyncio.run(scene())


#: A peer that has proved itself may announce one frame of the largest size.
FRAME_MEMORY = wire.FRAME_BYTES_MAX + (1 << 20)
GOOD = framed(SAID[0]) + framed(SAID[2])


@pytest.mark.parametrize("prefix", [b"", GOOD], ids=["stranger", "peer"])
def test_whatever_comes_in_a_connection_ends_or_goes_on(prefix: bytes) -> None:
    def run(data: bytes) -> None:
        conversation(prefix + data)

    seeds = [GOOD + b"".join(FRAMES), GOOD] if not prefix else FRAMES
    fuzz(Target("connection", run, seeds, allocates_max=2 * FRAME_MEMORY), EXAMPLES // 3)
