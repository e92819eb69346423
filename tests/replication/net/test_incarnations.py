"""A process that was replaced is told so, and no longer trusted; what a later version may tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import msgspec
import pytest

from escrowmq.replication.errors import NotAuthorized, WireError
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.net.handshake import (
    HANDSHAKE_BYTES_MAX,
    NONCE_BYTES,
    About,
    Dialer,
    Listener,
    PeerIdentity,
    Refused,
    ToldSuperseded,
)
from escrowmq.replication.net.tcp import TcpTransport
from tests.support.wire_samples import ME, MESSAGES, PEER, SECRET, gate

NEWER, GHOST = Incarnation(1, "new"), Incarnation(0, "b")


def sides(dialing: Incarnations, listening: Incarnations) -> tuple[Dialer, Listener]:
    """``b`` dials ``a``."""
    return (
        Dialer(PEER, "a", SECRET, b"d" * NONCE_BYTES, dialing),
        Listener(ME, frozenset("b"), SECRET, b"l" * NONCE_BYTES, listening),
    )


def proof_of(dialer: Dialer, listener: Listener) -> bytes:
    """The third frame: the dialer's answer to the listener's challenge."""
    proof = dialer.receive(listener.receive(dialer.hello()))
    assert proof is not None
    return proof


def refused_by(listener: Listener, proof: bytes) -> bytes:
    """The frame with which the listener refuses it."""
    with pytest.raises(Refused) as refused:
        listener.receive(proof)
    return refused.value.frame


def test_each_side_learns_the_others_incarnation_before_it_is_established() -> None:
    b, a = gate("b", 3), gate("a", 5)
    dialer, listener = sides(b, a)
    proof = proof_of(dialer, listener)
    assert b.of("a") == (5, "a") and not dialer.established
    listener.receive(proof)
    assert a.of("b") == (3, "b")
    assert listener.about == About(3, "b")


def test_a_dialer_whose_place_was_taken_is_told_so() -> None:
    a = gate("a")
    a.admit("b", NEWER)
    dialer, listener = sides(Incarnations(GHOST), a)
    frame = refused_by(listener, proof_of(dialer, listener))
    assert not listener.established
    with pytest.raises(ToldSuperseded) as told:
        dialer.receive(frame)
    assert told.value.by == NEWER
    assert len(frame) < HANDSHAKE_BYTES_MAX


def test_a_listener_whose_place_was_taken_is_told_so() -> None:
    b = gate("b")
    b.admit("a", NEWER)
    dialer, listener = sides(b, gate("a"))
    with pytest.raises(Refused) as refused:
        dialer.receive(listener.receive(dialer.hello()))
    with pytest.raises(ToldSuperseded):
        listener.receive(refused.value.frame)
    assert not listener.established


def test_another_disk_with_the_same_number_is_refused_on_both_ways() -> None:
    a = gate("a")
    a.admit("b", Incarnation(0, "another"))
    dialer, listener = sides(gate("b"), a)
    proof = proof_of(dialer, listener)
    with pytest.raises(Refused, match="another"):
        listener.receive(proof)


def test_nobody_without_the_secret_can_end_a_replica() -> None:
    """The frame is accepted only with a proof that only a peer can make, for this very connection."""
    a = gate("a")
    a.admit("b", NEWER)
    dialer, listener = sides(Incarnations(GHOST), a)
    frame = refused_by(listener, proof_of(dialer, listener))
    forged = msgspec.msgpack.encode([*msgspec.msgpack.decode(frame)[:3], bytes(32)])
    with pytest.raises(NotAuthorized, match="secret"):
        dialer.receive(forged)
    again = Dialer(PEER, "a", SECRET, b"D" * NONCE_BYTES, Incarnations(GHOST))
    other = Listener(ME, frozenset("b"), SECRET, b"L" * NONCE_BYTES, gate("a"))
    again.receive(other.receive(again.hello()))
    with pytest.raises(NotAuthorized, match="secret"):
        again.receive(frame)  # from another connection


def test_a_peer_that_lags_behind_cannot_end_one_that_is_newer() -> None:
    """A frame that names an incarnation which is not above ours is no reason to stop."""
    a, b = gate("a"), Incarnations(GHOST)
    dialer, listener = sides(b, a)
    a.admit("b", NEWER)
    frame = refused_by(listener, proof_of(dialer, listener))
    b.own = Incarnation(2, "b")
    with pytest.raises(NotAuthorized, match="secret"):
        dialer.receive(frame)


# ------------------------------------------------------------------ versions
def test_fields_of_a_later_version_are_passed_over() -> None:
    dialer, listener = sides(gate("b", 3), gate("a"))
    hello = msgspec.msgpack.decode(dialer.hello())
    hello[-1]["a_field_to_come"] = {"with": ["content"]}
    listener.receive(msgspec.msgpack.encode(hello))
    assert listener.about == About(3, "b")


def test_who_tells_nothing_about_itself_is_no_replica() -> None:
    a = gate("a")
    dialer, listener = sides(gate("b"), a)
    hello = msgspec.msgpack.decode(dialer.hello())
    with pytest.raises(WireError, match="not a replica's greeting"):
        listener.receive(msgspec.msgpack.encode(hello[:-1]))
    assert listener.peer is None and a.of("b") is None


@pytest.mark.parametrize("about", [{"incarnation": -1}, {"disk_id": "x" * 65}, {"disk_id": 7}, [], None])
def test_nonsense_about_oneself_is_no_greeting(about: object) -> None:
    dialer, listener = sides(gate("b"), gate("a"))
    hello = msgspec.msgpack.decode(dialer.hello())
    hello[-1] = about
    with pytest.raises(WireError):
        listener.receive(msgspec.msgpack.encode(hello))


# ------------------------------------------------------------------ real sockets
class Events:
    """The loop-side events of a transport."""

    def __init__(self) -> None:
        self.up: dict[str, About] = {}
        self.told: Incarnation | None = None
        self.messages: list[object] = []

    def link_up(self, peer: str, about: About) -> None:
        self.up[peer] = about

    def link_down(self, peer: str) -> None:
        self.up.pop(peer, None)

    def received(self, peer: str, message: object) -> None:
        self.messages.append(message)

    def superseded(self, by: Incarnation) -> None:
        self.told = by

    def broken(self, error: BaseException) -> None:
        raise AssertionError(error)


async def until(condition: object) -> None:
    for _ in range(2_000):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within twenty seconds")


@asynccontextmanager
async def transports(
    pool: ThreadPoolExecutor, *gates: Incarnations
) -> AsyncIterator[list[tuple[Events, TcpTransport]]]:
    """``a`` listens; every further one is a process with the id ``b`` and dials it."""
    made: list[tuple[Events, TcpTransport]] = []
    events = Events()
    a = TcpTransport(ME, frozenset("b"), SECRET, lambda peer: None, events, pool, gate=gates[0])
    made.append((events, a))
    address = await a.start("127.0.0.1", 0)
    for each in gates[1:]:
        events = Events()
        b = TcpTransport(PEER, frozenset("a"), SECRET, lambda peer: address, events, pool, gate=each)
        made.append((events, b))
    try:
        yield made
    finally:
        for _, transport in made:
            await transport.stop()


def test_the_successors_link_ends_the_predecessors_and_tells_it() -> None:
    async def scene() -> None:
        with ThreadPoolExecutor(4) as pool:
            async with transports(pool, gate("a"), Incarnations(GHOST), Incarnations(NEWER)) as made:
                (at_a, _), (at_ghost, ghost), (at_newer, newer) = made
                await ghost.start("127.0.0.1", 0)
                await until(lambda: at_a.up.get("b") == About(*GHOST) and "a" in at_ghost.up)
                await newer.start("127.0.0.1", 0)
                await until(lambda: at_a.up.get("b") == About(*NEWER))
                await until(
                    lambda: {"type": "superseded", "number": 1, "disk_id": "new"} in at_ghost.messages
                )
                await until(lambda: at_ghost.told == NEWER)  # it dials again, and is told in the handshake
                assert newer.send("a", MESSAGES[-1])
                await until(lambda: bool(at_a.messages))
                assert at_a.up == {"b": About(*NEWER)}
                assert "a" in at_newer.up

    asyncio.run(scene())


def test_a_link_to_a_process_whose_place_was_taken_meanwhile_is_closed_and_it_is_told() -> None:
    async def scene() -> None:
        with ThreadPoolExecutor(4) as pool:
            known = gate("a")
            async with transports(pool, known, Incarnations(GHOST)) as made:
                (at_a, a), (at_ghost, ghost) = made
                await ghost.start("127.0.0.1", 0)
                await until(lambda: "b" in at_a.up)
                a.drop_superseded("b")
                assert "b" in at_a.up
                known.admit("b", NEWER)
                a.drop_superseded("b")
                assert "b" not in at_a.up
                await until(
                    lambda: {"type": "superseded", "number": 1, "disk_id": "new"} in at_ghost.messages
                )

    asyncio.run(scene())


def test_a_place_that_is_taken_in_the_middle_of_a_handshake_is_taken() -> None:
    """``a`` has accepted the old process by the challenge, and hears of the new one before the welcome."""

    async def scene() -> None:
        with ThreadPoolExecutor(4) as pool:
            b_events, a_events = Events(), Events()
            listening = TcpTransport(
                PEER, frozenset("c"), SECRET, lambda peer: None, b_events, pool, gate=Incarnations(GHOST)
            )
            address = await listening.start("127.0.0.1", 0)
            knows = gate("c")
            dialing = TcpTransport(
                PeerIdentity("cluster", 3, "c"),
                frozenset("b"),
                SECRET,
                lambda peer: address,
                a_events,
                pool,
                gate=knows,
            )
            admit = knows.admit

            def admit_and_hear(peer: str, shown: Incarnation) -> Incarnation | None:
                admitted = admit(peer, shown)
                knows.learn([("b", *NEWER)])
                return admitted

            knows.admit = admit_and_hear  # type: ignore[method-assign]
            await dialing.start("127.0.0.1", 0)
            await until(lambda: b_events.told == NEWER)
            assert not a_events.up
            await dialing.stop()
            await listening.stop()

    asyncio.run(scene())
