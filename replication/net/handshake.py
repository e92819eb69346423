"""How two replicas prove to each other that they belong together, before either believes a byte.

Four small frames. Both sides know the cluster's secret; neither sends it:

    dialer   -> listener   hello: version, cluster, group, from, to, nonce_d
    listener -> dialer     challenge: nonce_l, HMAC(secret, "listener" + transcript)
    dialer   -> listener   proof: HMAC(secret, "dialer" + transcript)
    listener -> dialer     welcome: HMAC(secret, "welcome" + transcript)

The transcript holds everything said before, both nonces among it, so that nothing can be replayed,
reflected or redirected to another replica. This authenticates peers at connect; it neither hides
nor seals what follows: that is TLS's (tls.py), or the network between replicas must be a private one.
Inside TLS the transcript begins with a value that only the two ends of that channel know, so a proof
is worth nothing in another channel.

Pure: bytes in, bytes out; the caller brings the random nonces, the clock and the socket.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import msgspec

from escrowmq.replication.errors import NotAuthorized, UnknownVersion, WireError
from escrowmq.replication.format.wire import NOT_OURS, WIRE_VERSION

MAGIC = "EMQ-raft"
NONCE_BYTES = 32
#: The longest handshake frame that is read from somebody not yet known.
HANDSHAKE_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who this replica is: the cluster, its group in it, its own id in the group."""

    cluster_id: str
    group: int
    replica: str


class _Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    magic: str
    version: int
    cluster_id: str
    group: int
    sender: str
    receiver: str
    nonce: bytes


class _Challenge(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    nonce: bytes
    proof: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_hello = msgspec.msgpack.Decoder(_Hello).decode
_decode_challenge = msgspec.msgpack.Decoder(_Challenge).decode


def _proof(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, role + b"\0" + transcript, hashlib.sha256).digest()


def _same(given: bytes, expected: bytes, who: str) -> None:
    if not hmac.compare_digest(given, expected):
        raise NotAuthorized(f"{who} does not know this cluster's secret; give every replica the same secret")


class Dialer:
    """The connecting side. ``hello()``, then ``receive`` every frame until ``established``."""

    def __init__(self, me: PeerIdentity, peer: str, secret: bytes, nonce: bytes) -> None:
        self.peer, self.established = peer, False
        self._secret, self._transcript, self._challenged, self._channel = secret, b"", False, b""
        self._hello = _encode(_Hello(MAGIC, WIRE_VERSION, me.cluster_id, me.group, me.replica, peer, nonce))

    def bind(self, channel: bytes) -> None:
        """Tie the proofs to the channel around this handshake. Before anything else is called."""
        self._channel = channel

    def hello(self) -> bytes:
        return self._hello

    def receive(self, frame: bytes) -> bytes | None:
        """The answer to a frame, or None. Raises NotAuthorized or WireError."""
        if self._challenged:
            _same(frame, _proof(self._secret, b"welcome", self._transcript), self.peer)
            self.established = True
            return None
        try:
            challenge = _decode_challenge(frame)
        except NOT_OURS as error:
            raise WireError(f"{self.peer} answered the handshake with something else: {error}") from error
        if len(challenge.nonce) != NONCE_BYTES:
            raise WireError(f"{self.peer} sent a nonce of {len(challenge.nonce)} bytes")
        self._transcript = self._channel + self._hello + challenge.nonce
        _same(challenge.proof, _proof(self._secret, b"listener", self._transcript), self.peer)
        self._challenged = True
        return _proof(self._secret, b"dialer", self._transcript)


class Listener:
    """The accepting side. ``receive`` every frame until ``established``; then ``peer`` is who it is."""

    def __init__(self, me: PeerIdentity, peers: frozenset[str], secret: bytes, nonce: bytes) -> None:
        self.peer: str | None = None
        self.established = False
        self._me, self._peers, self._secret, self._nonce = me, peers, secret, nonce
        self._transcript = self._channel = b""

    def bind(self, channel: bytes) -> None:
        """As the dialer's."""
        self._channel = channel

    def receive(self, frame: bytes) -> bytes:
        """The answer to a frame. Raises NotAuthorized, UnknownVersion or WireError."""
        if self.peer is None:
            self.peer = self._identify(frame)
            self._transcript = self._channel + frame + self._nonce
            return _encode(_Challenge(self._nonce, _proof(self._secret, b"listener", self._transcript)))
        _same(frame, _proof(self._secret, b"dialer", self._transcript), self.peer)
        self.established = True
        return _proof(self._secret, b"welcome", self._transcript)

    def _identify(self, frame: bytes) -> str:
        try:
            hello = _decode_hello(frame)
        except NOT_OURS as error:
            raise WireError(f"not a replica's greeting: {error}") from error
        if hello.magic != MAGIC or len(hello.nonce) != NONCE_BYTES:
            raise WireError("not a replica's greeting")
        if hello.version != WIRE_VERSION:
            raise UnknownVersion(
                f"a replica speaks version {hello.version} of the peer protocol, this one {WIRE_VERSION}; "
                "upgrade the older one"
            )
        me = self._me
        if (hello.cluster_id, hello.group, hello.receiver) != (me.cluster_id, me.group, me.replica):
            raise NotAuthorized(
                f"a replica of cluster {hello.cluster_id!r}, group {hello.group} looked for "
                f"{hello.receiver!r} and found {me.replica!r} of cluster {me.cluster_id!r}, group {me.group}"
            )
        if hello.sender not in self._peers:
            raise NotAuthorized(f"{hello.sender!r} is not a replica of this group")
        return hello.sender
