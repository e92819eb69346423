"""Links inside TLS: a peer with a certificate and the secret is accepted; without either, it gets nothing."""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from cryptography.hazmat.primitives import serialization

from escrowmq.replication.errors import ConfigError, NotAuthorized, WireError
from escrowmq.replication.format import wire
from escrowmq.replication.net import tcp
from escrowmq.replication.net.handshake import NONCE_BYTES, Dialer, Listener, PeerIdentity
from escrowmq.replication.net.tls import TlsChannel, TlsFiles, TlsIdentity
from tests.support.certificates import Authority
from tests.support.raft_group import SECRET, RaftGroup, RaftReplica
from tests.support.waiting import wait_until
from tests.support.wire_samples import gate


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def certificates(
    authority: Authority, others: Mapping[int, TlsFiles | None] = MappingProxyType({})
) -> dict[int, TlsFiles]:
    files = {rid: authority.issue(f"r{rid}") for rid in range(3)} | dict(others)
    return {rid: file for rid, file in files.items() if file is not None}


def commits(leader: RaftReplica, text: bytes) -> None:
    assert leader.propose(b"\0" + text).wait() is True


# ------------------------------------------------------------------ groups of three
def test_a_group_with_certificates_works_and_its_log_is_not_on_the_wire(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    feed = TlsChannel.feed

    def watched(self: TlsChannel, data: memoryview) -> None:
        seen.append(bytes(data))
        feed(self, data)

    monkeypatch.setattr(TlsChannel, "feed", watched)
    with RaftGroup(tmp_path, tls=certificates(authority)) as group:
        leader = group.leader()
        commits(leader, b"the quick brown fox" * 1000)
        commits(leader, random.Random(1).randbytes(3 << 20))  # many records, many reads
        wait_until(lambda: all(len(m.commands()) == 2 for m in group.alive.values()))
        commands = {tuple(member.commands()) for member in group.alive.values()}
        assert len(commands) == 1
        for member in group.alive.values():
            assert member.driver.counters.refused == member.driver.counters.malformed == 0
    assert sum(map(len, seen)) > 6 << 20
    assert b"the quick brown fox" not in b"".join(seen)


def outsiders(path: Path, authority: Authority) -> dict[str, TlsFiles | None]:
    stranger = Authority(path / "stranger")
    return {
        "plain": None,
        "another authority": stranger.issue("r2", trusts=authority),
        "another authority, and trusts it alone": stranger.issue("r2"),
        "expired": authority.issue("r2-expired", expired=True),
    }


@pytest.mark.parametrize(
    "which", ["plain", "another authority", "another authority, and trusts it alone", "expired"]
)
def test_a_replica_without_a_good_certificate_stays_out_and_the_others_go_on(
    tmp_path: Path, authority: Authority, which: str
) -> None:
    unfit = outsiders(tmp_path, authority)[which]
    with RaftGroup(tmp_path, tls=certificates(authority, {2: unfit})) as group:
        leader = group.leader()
        assert leader.rid != 2
        outsider = group.alive[2].driver
        inside = [group.alive[rid].driver for rid in (0, 1)]

        def turned_away() -> int:
            return sum(
                d.counters.refused + d.counters.malformed + d.counters.timed_out for d in (*inside, outsider)
            )

        wait_until(lambda: turned_away() >= 3, what="attempts that were turned away")
        term = leader.driver.node.term
        commits(leader, b"two of three")
        assert outsider.counters.connects == 0
        assert group.alive[2].commands() == []
        assert leader.whoami() == (True, leader.rid, term), "the group was disturbed"


def test_a_good_certificate_does_not_replace_the_secret(tmp_path: Path, authority: Authority) -> None:
    with RaftGroup(tmp_path, tls=certificates(authority), secrets={2: b"another secret"}) as group:
        leader = group.leader()
        outsider = group.alive[2].driver
        wait_until(lambda: outsider.counters.refused > 0, what="a refusal")
        commits(leader, b"two of three")
        assert outsider.counters.connects == 0
        assert group.alive[2].commands() == []


def test_a_dialer_with_tls_gets_nothing_from_a_group_without(tmp_path: Path, authority: Authority) -> None:
    with RaftGroup(tmp_path, tls={2: authority.issue("r2")}) as group:
        leader = group.leader()
        wait_until(lambda: leader.driver.counters.malformed > 0, what="TLS's greeting refused as a frame")
        commits(leader, b"two of three")
        assert group.alive[2].driver.counters.connects == 0


# ------------------------------------------------------------------ one connection, by hand
def client(files: TlsFiles, *, certificate: bool = True) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.ca)
    if certificate:
        context.load_cert_chain(files.cert, files.key)
    return context


def ends_without_a_word(address: tuple[str, int], context: ssl.SSLContext, say: bytes) -> None:
    """Asserts that the other side closes the connection without sending a byte."""
    with socket.create_connection(address, timeout=5) as raw:
        try:
            with context.wrap_socket(raw) as sock:
                sock.sendall(say)
                assert sock.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            pass


def frame(header: bytes) -> bytes:
    return wire.PREFIX.pack(4 + len(header), len(header)) + header


@pytest.mark.parametrize("which", ["no certificate", "TLS 1.2", "no greeting", "absent secret", "4 GiB"])
def test_whoever_connects_with_less_than_everything_hears_nothing(
    tmp_path: Path, authority: Authority, which: str
) -> None:
    files = certificates(authority)
    hello = Dialer(PeerIdentity("test-cluster", 0, "2"), "0", b"", bytes(NONCE_BYTES), gate("2")).hello()
    context = client(files[2], certificate=which != "no certificate")
    if which == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    say = {"no greeting": bytes(100), "4 GiB": wire.PREFIX.pack(0xFFFFFFFF, 0xFFFFFFF0)}.get(which, b"")
    with RaftGroup(tmp_path, tls=files) as group:
        leader, listener = group.leader(), group.alive[0].driver
        assert listener.address is not None
        before = listener.counters.connects
        if which == "absent secret":
            with (
                socket.create_connection(listener.address, timeout=5) as raw,
                context.wrap_socket(raw) as sock,
            ):
                sock.sendall(frame(hello))
                assert len(sock.recv(4096)) > 64, "the listener's challenge, which tells nothing"
                sock.sendall(frame(bytes(32)))
                assert sock.recv(1) == b""
        else:
            ends_without_a_word(listener.address, context, say or frame(hello))
        wait_until(lambda: listener.counters.refused + listener.counters.malformed == 1)
        assert listener.counters.connects == before
        commits(leader, b"not disturbed")


def test_a_half_finished_tls_handshake_counts_as_a_stranger_and_is_put_out(
    tmp_path: Path, authority: Authority
) -> None:
    with RaftGroup(tmp_path, tls=certificates(authority)) as group:
        leader = group.leader()
        address = leader.driver.address
        assert address is not None
        # All must be connected before the first one's time is over, on a busy machine too.
        leader.driver.transport.handshake_timeout_s = 4.0
        opened = [socket.create_connection(address, timeout=5) for _ in range(tcp.STRANGERS_MAX + 5)]
        for sock in opened:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # a ClientHello that never ends
        counters = leader.driver.counters
        wait_until(lambda: counters.crowded_out == 5 and counters.timed_out == tcp.STRANGERS_MAX)
        assert all(map(is_put_out, opened))
        commits(leader, b"not disturbed")
        for sock in opened:
            sock.close()


def is_put_out(sock: socket.socket) -> bool:
    """The other side resets the connection if it closes it before it has read what was sent."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


# ------------------------------------------------------------------ pure
def pump(a: TlsChannel, b: TlsChannel) -> None:
    for _ in range(6):
        for one, other in ((a, b), (b, a)):
            if not one.established:
                one.shake()
            other.feed(memoryview(one.outgoing()))


def test_a_proof_is_worth_nothing_in_another_channel(authority: Authority) -> None:
    """A peer with a certificate but no secret cannot sit between two replicas and relay their proofs."""
    a, b, middle = (TlsIdentity(authority.issue(name)) for name in ("a", "b", "middle"))
    to_middle, from_a = a.channel(dials=True), middle.channel(dials=False)
    to_b, from_middle = middle.channel(dials=True), b.channel(dials=False)
    pump(to_middle, from_a)
    pump(to_b, from_middle)
    assert to_middle.binding() == from_a.binding() != to_b.binding() == from_middle.binding()
    dialer = Dialer(PeerIdentity("c", 0, "b"), "a", SECRET, bytes(NONCE_BYTES), gate("b"))
    listener = Listener(PeerIdentity("c", 0, "a"), frozenset("b"), SECRET, bytes(NONCE_BYTES), gate("a"))
    dialer.bind(to_middle.binding())
    listener.bind(from_middle.binding())
    with pytest.raises(NotAuthorized, match="secret"):
        dialer.receive(listener.receive(dialer.hello()))


def test_damage_on_the_way_ends_the_channel(authority: Authority) -> None:
    rng = random.Random(3)
    identity = TlsIdentity(authority.issue("a"))
    for _ in range(30):
        one, other = identity.channel(dials=True), identity.channel(dials=False)
        pump(one, other)
        sealed = bytearray(one.seal([b"x" * 100]))
        sealed[rng.randrange(5, len(sealed))] ^= 1 << rng.randrange(8)
        other.feed(memoryview(bytes(sealed)))
        with pytest.raises(WireError):
            other.read_into(memoryview(bytearray(1000)))


def test_files_that_are_of_no_use_are_named(tmp_path: Path, authority: Authority) -> None:
    good, other = authority.issue("a"), authority.issue("b")
    junk = tmp_path / "junk"
    junk.write_bytes(b"not PEM")
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(good.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    for change, said in (
        ({"ca": tmp_path / "none"}, "tls_ca_file"),
        ({"ca": junk}, "tls_ca_file"),
        ({"cert": junk}, "tls_cert_file"),
        ({"key": tmp_path / "none"}, "tls_key_file"),
        ({"key": other.key}, "belong together"),
        ({"key": locked}, "encrypted"),
    ):
        started = time.monotonic()
        with pytest.raises(ConfigError, match=said):
            TlsIdentity(replace(good, **change))
        assert time.monotonic() - started < 20, "it asked for a password"
