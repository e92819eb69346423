"""The handshake of two simulated replicas: the broker's real code, frame by frame, in one instant.

What it makes durable is on the simulated disks, so a power cut loses marks that were not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from escrowmq.replication.net.handshake import NONCE_BYTES, Dialer, Listener, PeerIdentity, Refused

if TYPE_CHECKING:
    from tests.sim.environment.network import Host
    from tests.sim.group.replica import SimReplica

SECRET = b"simulated"
#: The handshake's protection against replay is tested in tests/replication/net; here both are of one process.
NONCE = bytes(NONCE_BYTES)
T = TypeVar("T")


class _Ended(Exception):
    """A process ended during the handshake: it crashed, or learned that it was replaced."""


def meet(dialing: Host, listening: Host) -> bool:
    """Whether both accept each other; then each has the other's incarnation on its disk."""
    return _meet(cast("SimReplica", dialing), cast("SimReplica", listening))


def _meet(a: SimReplica, b: SimReplica) -> bool:
    dialer = Dialer(_identity(a), b.name, SECRET, NONCE, a.marks)
    listener = Listener(_identity(b), frozenset((a.name,)), SECRET, NONCE, b.marks)
    try:
        challenge = _as(b, lambda: listener.receive(dialer.hello()))
        proof = _as(a, lambda: _said(lambda: dialer.receive(challenge)))
        welcome = _as(b, lambda: _said(lambda: listener.receive(proof)))
        if not listener.established:  # it was refused, or refuses
            _as(a, lambda: _said(lambda: dialer.receive(welcome)))
            return False
        _as(a, lambda: dialer.receive(welcome) or b"")
    except _Ended:
        return False
    return dialer.established


def _said(step: Callable[[], bytes | None]) -> bytes:
    """A side's answer; if it refuses the other, the frame that says so."""
    try:
        return step() or b""
    except Refused as refused:
        return refused.frame


def _as(replica: SimReplica, step: Callable[[], T]) -> T:
    answer = replica.guarded(step)
    if answer is None or not replica.up:
        raise _Ended
    return answer


def _identity(replica: SimReplica) -> PeerIdentity:
    return PeerIdentity("simulated", 0, replica.name)
