"""Frames and greetings between clients and brokers: nothing gets in, and nothing is kept for long."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.errors import NotAuthorized, WireError
from escrowmq.replication.net.client_listener import (
    HELLO_BYTES,
    KEY_BYTES,
    NONCE_BYTES,
    PREFIX,
    BrokerGreeting,
    ClientGreeting,
    FrameBuffer,
    decode_answer,
    encode_answer,
    frame,
)

KEY = b"k" * KEY_BYTES


def greetings(key: bytes = KEY) -> tuple[ClientGreeting, BrokerGreeting]:
    return ClientGreeting(key, b"c" * NONCE_BYTES), BrokerGreeting(KEY, b"b" * NONCE_BYTES)


def test_both_sides_prove_that_they_have_the_key() -> None:
    client, broker = greetings()
    proof = client.receive(broker.receive(client.hello()))
    assert broker.receive(proof) == b""
    assert broker.established


def test_whoever_lacks_the_key_is_refused_on_both_sides() -> None:
    client, broker = greetings(b"x" * KEY_BYTES)
    answer = broker.receive(client.hello())
    with pytest.raises(NotAuthorized, match="not the broker"):
        client.receive(answer)
    with pytest.raises(NotAuthorized, match="key"):
        broker.receive(bytes(32))
    assert not broker.established


def test_a_proof_can_be_neither_replayed_nor_reflected() -> None:
    client, broker = greetings()
    answer = broker.receive(client.hello())
    proof = client.receive(answer)
    later = BrokerGreeting(KEY, b"B" * NONCE_BYTES)
    later.receive(client.hello())
    for told in (proof, answer[NONCE_BYTES:]):
        with pytest.raises(NotAuthorized):
            later.receive(told)


@pytest.mark.parametrize("hello", [b"", b"x", bytes(HELLO_BYTES), b"GET / HTTP/1.1\r\n\r\n"])
def test_anything_else_is_no_greeting(hello: bytes) -> None:
    with pytest.raises(WireError, match="greeting"):
        BrokerGreeting(KEY, bytes(NONCE_BYTES)).receive(hello)


def test_frames_come_out_as_they_went_in_however_they_are_cut() -> None:
    rng = random.Random(7)
    for _ in range(50):
        sent = [(rng.randrange(1 << 64), rng.randbytes(rng.choice((0, 1, 11, 300)))) for _ in range(20)]
        stream = b"".join(frame(*one) for one in sent)
        buffer, found, at = FrameBuffer(300), [], 0
        while at < len(stream):
            size = rng.choice((1, 3, 11, 12, 13, 500))
            buffer.feed(stream[at : at + size])
            at += size
            while (one := buffer.next()) is not None:
                found.append(one)
        assert found == sent


@pytest.mark.parametrize("size", [0, 7, 8 + 301, 0xFFFFFFFF])
def test_a_frame_of_an_impossible_length_is_refused_by_its_header(size: int) -> None:
    buffer = FrameBuffer(300)
    buffer.feed(PREFIX.pack(size, 1))
    with pytest.raises(WireError, match="frame"):
        buffer.next()


@pytest.mark.parametrize(
    "answer", [("ok", [[0], [6, [[1, 9, None]]]], 1234), ("not_leader", None, 3), ("unknown",)]
)
def test_answers_are_tuples_of_what_was_sent(answer: tuple[object, ...]) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_random_bytes_are_an_answer_or_a_typed_error() -> None:
    rng = random.Random(11)
    good = encode_answer(("ok", [[0, [1, 2]], [3, "text"]], 5))
    for _ in range(5000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            answer = decode_answer(bytes(data[: rng.randrange(len(data) + 1)]))
        except WireError:
            continue
        assert type(answer) is tuple
        assert type(answer[0]) is str
