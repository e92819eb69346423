"""A replica that was replaced tells its peers that it has taken its predecessor's place, before anything
else.

The predecessor may be alive and well, and even lead: then the peers have a link to it, of two replicas the
one with the greater id dials, and a link that is up is not dialled again. So they would never look for the
successor, and this one would wait for ever for another leader to copy from, while clients, who ask Ray for
the replica, find the successor and nobody who leads. A peer that is told makes the incarnation durable and
closes its link to the earlier one. It may only have become more careful by that: who counts is decided in the
handshake and by what the learner has been answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from escrowmq.replication.log.peer_marks import Incarnation

PAUSE_S = 0.5


def announce(
    own: Incarnation,
    peers: Sequence[str],
    tell: Callable[[str, Incarnation], bool],
    sleep: Callable[[float], None],
) -> None:
    """``tell`` every peer until it says that it has noted it; ``peers`` may change meanwhile. Ends when
    ``sleep`` raises, at the latest."""
    noted: set[str] = set()
    while own.number:
        noted.update([peer for peer in peers if peer not in noted and tell(peer, own)])
        if noted.issuperset(peers):
            return
        sleep(PAUSE_S)
