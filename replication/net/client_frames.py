"""What travels between a client and a broker on a TCP connection of their own: frames, after a greeting.

A frame is a length (4 bytes, of what follows), the number of the call (8 bytes), and the payload: a request's
bytes to the broker, the answer in msgpack back. Numbers are the client's; answers come in any order.

The greeting proves both ways that the other has the key which the broker's process made and gave to the
client through its actor handle. Nobody sends the key:

    client -> broker   hello:  magic, nonce_c
    broker -> client   answer: nonce_b, HMAC(key, "broker" + hello + nonce_b)
    client -> broker   proof:  HMAC(key, "client" + hello + nonce_b)

The broker says nothing after that: a client may send requests at once, and a wrong proof ends the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any

import msgspec

from escrowmq.replication.errors import NotAuthorized, WireError

PREFIX = struct.Struct("<IQ")
LENGTH_BYTES, NUMBER_BYTES = 4, 8
KEY_BYTES = NONCE_BYTES = 32
_MAGIC = b"escrowmq-client-1"
_PROOF_BYTES = hashlib.sha256().digest_size
HELLO_BYTES = len(_MAGIC) + NONCE_BYTES
#: Longer requests go through Ray's calls: the thread that sends heartbeats checks one in one go, at worst
#: 0.14 s for a MiB. Producers make requests of 96 KiB.
REQUEST_BYTES_MAX = 128 << 10
#: Of a frame's payload before the other side has proved itself.
GREETING_BYTES_MAX = 128

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


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
