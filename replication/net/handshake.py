"""How two replicas prove to each other that they belong together, before either trusts a byte.

Four small frames. Both sides know the cluster's secret; neither sends it:

    dialer   -> listener   hello: version, cluster, group, from, to, nonce_d, about the dialer
    listener -> dialer     challenge: nonce_l, about the listener, HMAC(secret, "listener" + transcript)
    dialer   -> listener   proof: HMAC(secret, "dialer" + transcript)
    listener -> dialer     welcome: HMAC(secret, "welcome" + transcript)

``About`` is a map of what a replica tells of itself. A reader ignores fields that it does not know, so a
later version can add some while a group is upgraded one replica after the other.

Each side asks its ``Gate`` about the other as soon as the other is authenticated, and before the link is up.
The gate keeps the incarnations of the peers (log/peer_marks.py). A peer that was replaced gets, instead of
the proof or the welcome, a frame that says so: ``"superseded", number, disk id, HMAC(secret, "superseded" +
transcript + the frame's other fields)``. Only a holder of the secret can send one.

The transcript holds everything said before, including both nonces, so that nothing can be replayed,
reflected or redirected to another replica. This authenticates peers when they connect; it neither encrypts
nor authenticates what follows: TLS does that (tls.py), or the network between replicas must be private.
Inside TLS the transcript begins with a value that only the two ends of that channel know, so a proof
is worthless in another channel.

Pure: bytes in, bytes out; the caller supplies the random nonces, the clock and the socket.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from escrowmq.replication.errors import NotAuthorized, UnknownVersion, WireError
from escrowmq.replication.format.wire import NOT_OURS, WIRE_VERSION, Index
from escrowmq.replication.log.peer_marks import DISK_ID_MAX, Incarnation

MAGIC = "EMQ-raft"
NONCE_BYTES = 32
#: The longest handshake frame that is accepted from an unauthenticated peer.
HANDSHAKE_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who this replica is: the cluster, its group in it, its own id in the group. Its gate knows which
    process (incarnation) of that id it is."""

    cluster_id: str
    group: int
    replica: str


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replica says about itself. New fields have defaults that mean what their absence meant."""

    incarnation: Index = 0
    disk_id: Annotated[str, msgspec.Meta(max_length=DISK_ID_MAX)] = ""


class Gate(Protocol):
    """Decides which peers may connect."""

    @property
    def own(self) -> Incarnation: ...
    def refuses(self, peer: str, shown: Incarnation) -> Incarnation | None: ...
    def admit(self, peer: str, shown: Incarnation) -> Incarnation | None:
        """None: it may connect, and the incarnation that it showed is durable. Else the mark that forbids
        it."""


class Refused(NotAuthorized):
    """The peer was replaced by another process; ``frame`` tells it so."""

    def __init__(self, text: str, frame: bytes) -> None:
        super().__init__(text, frame)
        self.text, self.frame = text, frame

    def __str__(self) -> str:
        return self.text


class ToldSuperseded(NotAuthorized):
    """The peer, which has proved to be one, says that our own replica was replaced by ``by``."""

    def __init__(self, peer: str, by: Incarnation) -> None:
        super().__init__(peer, by)
        self.peer, self.by = peer, by

    def __str__(self) -> str:
        return (
            f"{self.peer} has met incarnation {self.by.number} of this replica, on disk {self.by.disk_id!r}"
        )


class _Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    magic: str
    version: int
    cluster_id: str
    group: int
    sender: str
    receiver: str
    nonce: bytes
    about: About


class _Challenge(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    nonce: bytes
    about: msgspec.Raw  # undecoded: the transcript holds these very bytes
    proof: bytes


class _Superseded(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    word: str
    number: Index
    disk_id: Annotated[str, msgspec.Meta(max_length=DISK_ID_MAX)]
    proof: bytes


class _Greeting(msgspec.Struct, array_like=True):
    """The beginning of a hello of any version."""

    magic: str
    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_greeting = msgspec.msgpack.Decoder(_Greeting).decode
_decode_hello = msgspec.msgpack.Decoder(_Hello).decode
_decode_challenge = msgspec.msgpack.Decoder(_Challenge).decode
_decode_about = msgspec.msgpack.Decoder(About).decode
_decode_superseded = msgspec.msgpack.Decoder(_Superseded).decode
SUPERSEDED = "superseded"
_PROOF_BYTES = hashlib.sha256().digest_size


def _proof(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, role + b"\0" + transcript, hashlib.sha256).digest()


def _same(given: bytes, expected: bytes, who: str) -> None:
    if not hmac.compare_digest(given, expected):
        raise NotAuthorized(f"{who} does not know this cluster's secret; give every replica the same secret")


def shown(about: About) -> Incarnation:
    return Incarnation(about.incarnation, about.disk_id)


class _Side:
    """What dialer and listener share: the gate, and how one tells the other that it was replaced."""

    def __init__(self, gate: Gate, secret: bytes) -> None:
        self.established = False
        #: What the other side told of itself; None: nothing yet.
        self.about: About | None = None
        self._gate, self._secret = gate, secret
        self._transcript = self._channel = b""

    def bind(self, channel: bytes) -> None:
        """Tie the proofs to the channel around this handshake. Call it before anything else."""
        self._channel = channel

    def _let_in(self, peer: str) -> None:
        """For a peer that has proved itself: record its incarnation, or raise Refused."""
        assert self.about is not None, "it has told that before its proof"
        mark = self._gate.admit(peer, shown(self.about))
        if mark is None:
            return
        text = (
            f"{peer} comes as incarnation {self.about.incarnation} on disk {self.about.disk_id!r}, but it "
            f"was replaced by incarnation {mark.number} on disk {mark.disk_id!r}"
        )
        said = _encode([SUPERSEDED, *mark])
        proof = _proof(self._secret, b"superseded", self._transcript + said)
        raise Refused(text, _encode(_Superseded(SUPERSEDED, mark.number, mark.disk_id, proof)))

    def _check_not_superseded(self, frame: bytes, peer: str) -> None:
        """Raise ToldSuperseded if the frame says that and a peer wrote it."""
        if len(frame) == _PROOF_BYTES:
            return
        try:
            told = _decode_superseded(frame)
        except NOT_OURS:
            return
        said = _encode([SUPERSEDED, told.number, told.disk_id])
        _same(told.proof, _proof(self._secret, b"superseded", self._transcript + said), peer)
        by = Incarnation(told.number, told.disk_id)
        if told.word == SUPERSEDED and by.supersedes(self._gate.own):
            raise ToldSuperseded(peer, by)


class Dialer(_Side):
    """The connecting side. ``hello()``, then ``receive`` every frame until ``established``."""

    def __init__(self, me: PeerIdentity, peer: str, secret: bytes, nonce: bytes, gate: Gate) -> None:
        super().__init__(gate, secret)
        self.peer = peer
        self._challenged = False
        to_whom = (me.cluster_id, me.group, me.replica, peer, nonce)
        self._hello = _encode(_Hello(MAGIC, WIRE_VERSION, *to_whom, about_us(gate.own)))

    def hello(self) -> bytes:
        return self._hello

    def receive(self, frame: bytes) -> bytes | None:
        """The answer to a frame, or None. Raises NotAuthorized (Refused, ToldSuperseded) or WireError."""
        if self._challenged:
            self._check_not_superseded(frame, self.peer)
            _same(frame, _proof(self._secret, b"welcome", self._transcript), self.peer)
            self.established = True
            return None
        try:
            nonce, about, proof = self._read_challenge(frame)
        except NOT_OURS as error:
            raise WireError(f"{self.peer} answered the handshake with something else: {error}") from error
        if len(nonce) != NONCE_BYTES:
            raise WireError(f"{self.peer} sent a nonce of {len(nonce)} bytes")
        self._transcript = self._channel + self._hello + nonce + about
        _same(proof, _proof(self._secret, b"listener", self._transcript), self.peer)
        self._challenged = True
        self._let_in(self.peer)
        return _proof(self._secret, b"dialer", self._transcript)

    def _read_challenge(self, frame: bytes) -> tuple[bytes, bytes, bytes]:
        challenge = _decode_challenge(frame)
        raw = bytes(challenge.about)
        self.about = _decode_about(raw)
        return challenge.nonce, raw, challenge.proof


def about_us(own: Incarnation) -> About:
    """What we say about ourselves."""
    return About(own.number, own.disk_id)


class Listener(_Side):
    """The accepting side. ``receive`` every frame until ``established``; then ``peer`` is the dialer's id."""

    def __init__(
        self, me: PeerIdentity, peers: frozenset[str], secret: bytes, nonce: bytes, gate: Gate
    ) -> None:
        super().__init__(gate, secret)
        self.peer: str | None = None
        self._me, self._peers, self._nonce = me, peers, nonce

    def receive(self, frame: bytes) -> bytes:
        """The answer to a frame. Raises NotAuthorized (Refused, ToldSuperseded), UnknownVersion or
        WireError."""
        if self.peer is None:
            self.peer = self._identify(frame)
            self._transcript = self._channel + frame + self._nonce
            return self._challenge()
        self._check_not_superseded(frame, self.peer)
        _same(frame, _proof(self._secret, b"dialer", self._transcript), self.peer)
        self._let_in(self.peer)
        self.established = True
        return _proof(self._secret, b"welcome", self._transcript)

    def _challenge(self) -> bytes:
        about = _encode(about_us(self._gate.own))
        self._transcript += about
        proof = _proof(self._secret, b"listener", self._transcript)
        return _encode(_Challenge(self._nonce, msgspec.Raw(about), proof))

    def _identify(self, frame: bytes) -> str:
        hello = self._read_hello(frame)
        if len(hello.nonce) != NONCE_BYTES:
            raise WireError("not a replica's greeting")
        me = self._me
        if (hello.cluster_id, hello.group, hello.receiver) != (me.cluster_id, me.group, me.replica):
            raise NotAuthorized(
                f"a replica of cluster {hello.cluster_id!r}, group {hello.group} looked for "
                f"{hello.receiver!r} and found {me.replica!r} of cluster {me.cluster_id!r}, group {me.group}"
            )
        if hello.sender not in self._peers:
            raise NotAuthorized(f"{hello.sender!r} is not a replica of this group")
        return hello.sender

    def _read_hello(self, frame: bytes) -> _Hello:
        try:
            greeting = _decode_greeting(frame)
            if greeting.magic != MAGIC:
                raise WireError("not a replica's greeting")
            if greeting.version != WIRE_VERSION:
                raise UnknownVersion(
                    f"a replica uses version {greeting.version} of the greeting, this one {WIRE_VERSION}; "
                    "upgrade the older one"
                )
            hello = _decode_hello(frame)
        except NOT_OURS as error:
            raise WireError(f"not a replica's greeting: {error}") from error
        self.about = hello.about
        return hello
