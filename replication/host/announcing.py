"""A replica that replaced another one tells its peers so, before anything else.

The predecessor may be alive and well, and even lead. Then the peers have a link to it; of two replicas only
the one with the greater number dials, and a link that is up is not dialled again. So the peers would never
connect to the successor. It would wait for ever for another leader to copy from, while clients, who ask Ray
for the replica, find the successor and no leader. A peer that is told makes the incarnation durable and
closes its link to the earlier one. A false announcement can only make it more careful: the
handshake and the learner's answers decide which process counts.
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
    """``tell`` every peer until it confirms that it has recorded it; ``peers`` may change meanwhile. Ends at
    the latest when ``sleep`` raises."""
    noted: set[str] = set()
    while own.number:
        noted.update([peer for peer in peers if peer not in noted and tell(peer, own)])
        if noted.issuperset(peers):
            return
        sleep(PAUSE_S)
