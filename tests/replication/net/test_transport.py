"""Links under attack and in bad conditions: nothing gets in, nothing piles up, nothing hangs."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from escrowmq.replication.errors import NotAuthorized, UnknownVersion, WireError
from escrowmq.replication.format import wire
from escrowmq.replication.log.peer_marks import Incarnation
from escrowmq.replication.net import tcp
from escrowmq.replication.net.handshake import NONCE_BYTES, About, Dialer, Listener, PeerIdentity
from escrowmq.replication.net.tcp import TcpTransport
from escrowmq.replication.net.tls import TlsIdentity
from tests.support.certificates import Authority
from tests.support.raft_group import RaftGroup
from tests.support.waiting import wait_until
from tests.support.wire_samples import ME, MESSAGES, PEER, SECRET, gate


# ------------------------------------------------------------------ the handshake, pure
def shake(dialer: Dialer, listener: Listener) -> None:
    frame: bytes | None = dialer.hello()
    for _ in range(4):
        if frame is None:
            return
        answer = listener.receive(frame)
        frame = dialer.receive(answer)


def pair(secret: bytes = SECRET, **changes: object) -> tuple[Dialer, Listener]:
    me = PeerIdentity(**({"cluster_id": "cluster", "group": 3, "replica": "a"} | changes))  # type: ignore[arg-type]
    return Dialer(me, "b", secret, b"d" * NONCE_BYTES, gate("a")), Listener(
        PEER, frozenset("a"), SECRET, b"l" * NONCE_BYTES, gate("b")
    )


def test_both_sides_know_each_other_after_the_handshake() -> None:
    dialer, listener = pair()
    shake(dialer, listener)
    assert dialer.established
    assert listener.established
    assert listener.peer == "a"


@pytest.mark.parametrize("change", [{"cluster_id": "other"}, {"group": 4}, {"replica": "c"}])
def test_another_cluster_group_or_replica_is_refused(change: dict[str, object]) -> None:
    dialer, listener = pair(**change)
    with pytest.raises(NotAuthorized):
        shake(dialer, listener)
    assert not listener.established


def test_a_wrong_secret_is_refused_by_the_dialer_before_it_proves_anything() -> None:
    dialer, listener = pair(secret=b"wrong")
    challenge = listener.receive(dialer.hello())
    with pytest.raises(NotAuthorized, match="secret"):
        dialer.receive(challenge)


def test_a_dialer_without_the_secret_is_refused() -> None:
    dialer, listener = pair()
    listener.receive(dialer.hello())
    with pytest.raises(NotAuthorized, match="secret"):
        listener.receive(bytes(32))


def test_a_proof_cannot_be_reflected_or_replayed() -> None:
    dialer, listener = pair()
    challenge = listener.receive(dialer.hello())
    proof = dialer.receive(challenge)
    assert proof is not None
    again = Listener(
        PEER, frozenset("a"), SECRET, b"L" * NONCE_BYTES, gate("b")
    )  # a later connection: another nonce
    again.receive(dialer.hello())
    with pytest.raises(NotAuthorized):
        again.receive(proof)
    reflected = wire_challenge_proof(challenge)
    with pytest.raises(NotAuthorized):
        listener.receive(reflected)


def wire_challenge_proof(challenge: bytes) -> bytes:
    return challenge[-32:]


def test_another_protocol_version_is_named() -> None:
    magic, version, *rest = msgspec.msgpack.decode(pair()[0].hello())
    assert version == wire.WIRE_VERSION
    with pytest.raises(UnknownVersion, match="version 99"):
        pair()[1].receive(msgspec.msgpack.encode([magic, 99, *rest]))


def test_random_bytes_are_never_a_handshake() -> None:
    rng = random.Random(1)
    for size in range(200):
        with pytest.raises(WireError):
            pair()[1].receive(rng.randbytes(size))


# ------------------------------------------------------------------ frames, pure
def decode(frame: bytes) -> wire.RaftMessage:
    total, header = wire.PREFIX.unpack_from(frame)
    wire.check_prefix(total, header)
    assert total + 4 == len(frame)
    view, begin = memoryview(frame), wire.PREFIX.size
    return wire.decode(view[begin : begin + header], view[begin + header :])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m["type"])
def test_every_message_comes_back_as_it_was(message: wire.RaftMessage) -> None:
    assert decode(b"".join(wire.encode(message))) == message


def test_damaged_frames_are_refused_and_nothing_else_happens() -> None:
    rng = random.Random(2)
    whole = [b"".join(wire.encode(m)) for m in MESSAGES]
    for _ in range(5000):
        frame = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(min(len(frame), 64))] = rng.randrange(256)
        total, header = wire.PREFIX.unpack_from(frame)
        view = memoryview(bytes(frame))
        try:
            wire.check_prefix(total, header)
            message = wire.decode(view[8 : 8 + header], view[8 + header : 4 + total])
        except WireError:
            continue
        assert message["type"] in {m["type"] for m in MESSAGES}


def test_a_message_over_the_frame_limit_is_never_sent() -> None:
    entries = [(bytes(wire.FRAME_BYTES_MAX // 2), 2, 1)] * 2
    with pytest.raises(WireError, match="exceeds"):
        wire.encode({**MESSAGES[0], "entries": entries})


# ------------------------------------------------------------------ real sockets
def test_a_replica_with_another_secret_stays_out_and_is_counted(tmp_path: Path) -> None:
    with RaftGroup(tmp_path, secrets={2: b"wrong"}) as group:
        leader = group.leader()
        assert leader.rid != 2
        assert leader.propose(b"\0two of three").wait() is True
        outsider = group.alive[2]
        wait_until(lambda: outsider.driver.counters.refused > 0, what="a refusal")
        assert outsider.applied == []


def test_a_frame_header_of_four_gigabytes_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        leader = group.leader()
        assert leader.driver.address is not None
        with socket.create_connection(leader.driver.address, timeout=5) as sock:
            sock.sendall(struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFF0))
            assert sock.recv(1) == b"", "closed at once"
        assert leader.driver.counters.malformed == 1


def test_even_a_known_peer_cannot_announce_more_than_the_limit() -> None:
    with pytest.raises(WireError):
        wire.check_prefix(wire.FRAME_BYTES_MAX + 1, 100)
    with pytest.raises(WireError):
        wire.check_prefix(100, 97)
    wire.check_prefix(wire.FRAME_BYTES_MAX, 100)


def test_one_who_never_finishes_the_handshake_is_put_out(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        leader = group.leader()
        leader.driver.transport.handshake_timeout_s = 0.3
        assert leader.driver.address is not None
        started = time.monotonic()
        with socket.create_connection(leader.driver.address, timeout=5) as sock:
            try:
                for byte in struct.pack("<II", 500, 490) + b"x" * 400:  # 20 s
                    sock.sendall(bytes([byte]))
                    time.sleep(0.05)
                pytest.fail("a slow stranger was kept")
            except OSError:
                pass
        assert time.monotonic() - started < 10
        assert leader.driver.counters.timed_out == 1


def test_strangers_are_limited_and_do_not_keep_peers_out(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        leader = group.leader()
        assert leader.driver.address is not None
        strangers = [socket.create_connection(leader.driver.address) for _ in range(tcp.STRANGERS_MAX + 20)]
        wait_until(lambda: leader.driver.counters.crowded_out >= 20, what="the limit")
        assert leader.propose(b"\0go on").wait() is True
        for sock in strangers:
            sock.close()


def test_a_replica_that_comes_back_gets_in_past_strangers_who_hold_every_slot(tmp_path: Path) -> None:
    """Its own dials are not counted, and of those that dial it the slowest is closed to make room."""
    with RaftGroup(tmp_path) as group:
        group.leader()
        for rid in (0, 1):
            group.alive[rid].driver.transport.handshake_timeout_s = 60.0
        addresses = [group.alive[rid].driver.address for rid in (0, 1)]
        strangers = [socket.create_connection(a) for a in addresses if a for _ in range(tcp.STRANGERS_MAX)]
        group.stop(2)  # it dials the two others
        leader = group.leader()
        (back,) = group.start(2)
        assert leader.propose(b"\0seen by all").wait() is True
        wait_until(lambda: back.commands() == [b"\0seen by all"], what="the third replica's return")
        for sock in strangers:
            sock.close()


def test_a_storm_of_garbage_costs_neither_memory_nor_commits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four threads connect and send nonsense for two seconds while the group continues to commit."""
    rng = random.Random(5)
    hello = pair()[0].hello()
    nonsense = [
        struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFF0), struct.pack("<II", 1024, 1020) + b"x", rng.randbytes(300),
        struct.pack("<II", 4 + len(hello), len(hello)) + hello, b"GET / HTTP/1.1\r\n\r\n", b"",
        struct.pack("<II", 600, 596) + b"\x91" * 596,
    ]  # fmt: skip
    with RaftGroup(tmp_path) as group:
        leader = group.leader()
        address, term = leader.driver.address, leader.driver.node.term
        assert address is not None
        before, until_then, attempts = psutil.Process().memory_info().rss, time.monotonic() + 2, [0] * 4

        def storm(number: int) -> None:
            kept: list[socket.socket] = []
            while time.monotonic() < until_then:
                sock = socket.create_connection(address, timeout=5)
                sock.sendall(nonsense[attempts[number] % len(nonsense)])
                kept.append(sock)
                attempts[number] += 1
                if len(kept) > 50:
                    kept.pop(0).close()
            for sock in kept:
                sock.close()

        with ThreadPoolExecutor(4) as pool:
            storms = [pool.submit(storm, number) for number in range(4)]
            commits, slowest = 0, 0.0
            while time.monotonic() < until_then:
                started = time.monotonic()
                assert leader.propose(b"\0%d" % commits).wait() is True
                slowest, commits = max(slowest, time.monotonic() - started), commits + 1
            for future in storms:
                future.result()
        counters = leader.driver.counters
        assert sum(attempts) > 200
        assert counters.malformed + counters.refused + counters.crowded_out > sum(attempts) // 4
        assert commits > 20 and slowest < 1.5, (commits, slowest)
        assert leader.whoami() == (True, leader.rid, term), "nobody stood for election"
        assert psutil.Process().memory_info().rss - before < 64 << 20
        assert sum("stranger" in record.message for record in caplog.records) <= 6, "the log is no target"


def test_no_secret_is_not_a_secret() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotAuthorized, match="no secret"):
        TcpTransport(ME, frozenset("b"), b"", lambda peer: None, None, pool, gate=gate("a"))  # type: ignore[arg-type]


class Recorder:
    """The loop-side events of a transport."""

    def __init__(self) -> None:
        self.up: list[str] = []
        self.messages: list[wire.RaftMessage] = []
        self.told: Incarnation | None = None

    def link_up(self, peer: str, about: About) -> None:
        self.up.append(peer)

    def link_down(self, peer: str) -> None:
        self.up.remove(peer)

    def received(self, peer: str, message: wire.RaftMessage) -> None:
        self.messages.append(message)

    def superseded(self, by: Incarnation) -> None:
        self.told = by

    def broken(self, error: BaseException) -> None:
        raise AssertionError(error)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within twenty seconds")


def test_a_slow_or_failing_lookup_does_not_stop_the_others() -> None:
    """The look-up of one peer's address takes seconds (or raises); the link to the other is up long
    before."""

    async def scene() -> None:
        a, b = Recorder(), Recorder()

        def resolve(peer: str) -> tuple[str, int] | None:
            if peer == "0":
                time.sleep(0.5)
                raise RuntimeError("the directory is down")
            return address

        with ThreadPoolExecutor(2) as pool:
            quick = TcpTransport(ME, frozenset("b"), SECRET, lambda peer: None, a, pool, gate=gate("a"))
            address = await quick.start("127.0.0.1", 0)
            dialing = TcpTransport(PEER, frozenset(("a", "0")), SECRET, resolve, b, pool, gate=gate("b"))
            await dialing.start("127.0.0.1", 0)
            await until(lambda: b.up == ["a"] and a.up == ["b"])
            assert dialing.send("a", MESSAGES[0])
            await until(lambda: bool(a.messages))
            assert a.messages == [MESSAGES[0]]
            await dialing.stop()
            await quick.stop()

    asyncio.run(scene())


class Leaves(Recorder):
    """Gives the link up when the first message arrives."""

    give_up: Callable[[], None] = staticmethod(lambda: None)

    def received(self, peer: str, message: wire.RaftMessage) -> None:
        super().received(peer, message)
        self.give_up()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "inside TLS"])
@pytest.mark.parametrize("why", ["removed", "replaced"])
def test_what_a_dead_link_still_holds_is_not_delivered(why: str, encrypted: bool, tmp_path: Path) -> None:
    """Five messages come in one read. After the first one the peer is no longer a member, or was replaced:
    the other four would count for a process that nobody may hear any more."""
    authority = Authority(tmp_path)
    tls = {name: TlsIdentity(authority.issue(name)) if encrypted else None for name in "ab"}

    async def scene() -> None:
        a, b = Leaves(), Recorder()
        with ThreadPoolExecutor(2) as pool:
            known = gate("a")
            here = TcpTransport(
                ME, frozenset("b"), SECRET, lambda peer: None, a, pool, gate=known, tls=tls["a"]
            )
            address = await here.start("127.0.0.1", 0)
            there = TcpTransport(
                PEER, frozenset("a"), SECRET, lambda peer: address, b, pool, gate=gate("b"), tls=tls["b"]
            )
            await there.start("127.0.0.1", 0)
            await until(lambda: b.up == ["a"] and a.up == ["b"])

            def replaced() -> None:
                known.learn([("b", 1, "its successor")])
                here.drop_superseded("b")

            a.give_up = replaced if why == "replaced" else partial(here.follow, frozenset())
            for number in range(5):  # in one turn of the loop, so the other side reads them at once
                assert there.send("a", {**MESSAGES[0], "entries": [], "seq": number})
            await until(lambda: not a.up and not b.up)
            assert [message["seq"] for message in a.messages] == [0]
            if why == "replaced":
                await until(lambda: b.told is not None)
            await there.stop()
            await here.stop()

    asyncio.run(scene())
