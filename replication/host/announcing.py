"""A replica that replaced another one tells its peers so, before anything else.

The predecessor may be alive and well, and even lead. Then the peers have a link to it; of two replicas only
the one with the greater number dials, and a link that is up is not dialled again. So the peers would never
connect to the successor. It would wait for ever for another leader to copy from, while clients, who ask Ray
for the replica, find the successor and no leader. A peer that is told makes the incarnation durable and
closes its link to the earlier one. A false announcement can only make it more careful: the
handshake and the learner's answers decide which process counts.

A replica that joins the group later is told, too. It may have a link to the predecessor, which nobody else
would end: it knows of no other process of that name.

A peer answers with the incarnation that it has recorded. That may be another one, with a higher number, or
with the same number on another disk (two supervisors counted alike). Then this process was itself replaced,
and nobody else would tell it so: the peers have a link to the other process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from escrowmq.replication.errors import Superseded
from escrowmq.replication.log.peer_marks import Incarnation

PAUSE_S = 0.5
#: Pause once all peers know: then only one that joins the group has to be told.
NEWCOMERS_S = 5.0


def announce(
    own: Incarnation,
    peers: Sequence[str],
    tell: Callable[[str, Incarnation], Incarnation | None],
    sleep: Callable[[float], None],
    stay: bool = False,
) -> None:
    """``tell`` every peer until it has recorded this incarnation; ``peers`` may change meanwhile. With
    ``stay``, those that come later as well: then it ends only when ``sleep`` raises. ``tell`` returns which
    incarnation the peer has recorded; None: no answer. Raises Superseded if a peer refuses this one."""
    noted: set[str] = set()
    while own.number:
        noted.update([peer for peer in peers if peer not in noted and is_recorded(own, tell(peer, own))])
        noted.intersection_update(peers)  # one that leaves and comes again is told again
        known = noted.issuperset(peers)
        if known and not stay:
            return
        sleep(NEWCOMERS_S if known else PAUSE_S)


def is_recorded(own: Incarnation, recorded: Incarnation | None) -> bool:
    """Whether a peer that has answered this knows of us. Raises Superseded if it refuses us."""
    if recorded is not None and recorded.supersedes(own):
        raise Superseded("this replica", recorded.number)
    return recorded is not None
