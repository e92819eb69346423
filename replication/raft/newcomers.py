"""Whether a replica that starts empty, with a number higher than the founders', may start as one that has
promised nothing. Pure.

Either it never voted, or it has lost the disk with its votes and acknowledgements. It has a copy of
a leader's log, which says whether it is a voter. That is not enough: the leader may have been deposed without
knowing it yet. In the log of that leader's successor the new replica may have become a voter, have voted,
have acknowledged entries, and have lost its disk, all within the second for which a leader without followers
carries on. If it started as if nothing had happened, it could form a majority with replicas that have heard
of none of this, and what was committed with its help would be lost.

So it asks a leader, and only one that a majority has answered after the question. By then no leader had been
elected in a later term, not even with the vote of the lost disk, since every majority of voters without the
new replica shares another voter with every majority that includes it. A replica that does not get this answer
waits like one that lost its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from escrowmq.replication.format.membership import Members


def votes_in(replica: str, configurations: Iterable[Members]) -> bool:
    """Whether it is a voter in any of these."""
    return any(replica in members.voters for members in configurations)


def has_promised_nothing(
    replica: str, copied: Iterable[Members], ask_leader: Callable[[], bool | None]
) -> bool | None:
    """``copied``: the configurations in the log that it has copied. ``ask_leader()``: whether it is never a
    voter in the log of a leader that was confirmed after the question; None: there is no such leader now.
    Returns None in that case too."""
    return ask_leader() if not votes_in(replica, copied) else False
