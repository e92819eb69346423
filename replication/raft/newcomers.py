"""Whether a replica that starts empty, with a number that came after the founders', may begin as one that has
promised nothing. Pure.

Either it never voted, or it has lost the disk on which its votes and acknowledgements were. It has a copy of
a leader's log, in which it votes or not. That is not enough: the leader may have been deposed, and not know
it yet. In the log of its successor the newcomer may have become a voter, have voted, have acknowledged, and
have lost its disk, all within the second that a leader without followers goes on. Begun as if nothing were,
it could make a majority with who has heard of none of that, and what was committed with it would be lost.

So it asks a leader, and one that a majority has answered after the question: in a later term nobody was
elected by then, also not with the vote of the lost disk, since each majority of voters without the newcomer
meets each of those with it in somebody else. Whoever does not get that answer waits as one that lost its
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from escrowmq.replication.format.membership import Members


def votes_in(replica: str, configurations: Iterable[Members]) -> bool:
    """Whether any of these lets it vote."""
    return any(replica in members.voters for members in configurations)


def has_promised_nothing(
    replica: str, copied: Iterable[Members], ask_leader: Callable[[], bool | None]
) -> bool | None:
    """``copied``: the configurations in the log that it has copied. ``ask_leader()``: whether in the log of a
    leader, who was confirmed after the question, it never votes; None: there is none now. None: as that."""
    return ask_leader() if not votes_in(replica, copied) else False
