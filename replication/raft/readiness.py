"""Whether a replica could lead at once: it has applied what is committed, and its disk has room."""

from __future__ import annotations

from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.types import Log

#: A leader that lacks room asks each peer for the minimum election time-out at most, and again only after
#: longer than ``ASKED_FOR_S``. So whoever is asked for this part more has another reason, and is obeyed:
#: before a planned stop, or when the leader's disk hangs, any replica is better.
INSISTS = 1.5
ASKED_FOR_S = 3.0
#: A replica with less than this many times its reserve does not take the lead over for its room.
ROOM_TO_LEAD = 1.25


def room_to_lead(free_bytes: int, reserve_bytes: int) -> bool:
    """Whether a replica with so much free space may take the lead over because it has room."""
    return free_bytes >= ROOM_TO_LEAD * reserve_bytes


class Readiness:
    """One per node. Its caller sets ``disk_full`` while syncs find no room, and calls ``look_at_room``."""

    def __init__(self, core: Core, journal: Log, election_min_s: float) -> None:
        self._core, self._journal = core, journal
        self._insists_s = INSISTS * election_min_s
        self.disk_full = self.short_of_room = self.little_room = False
        self._asked_at = float("-inf")

    def look_at_room(self, free_bytes: int | None, reserve_bytes: int) -> None:
        """So much is free now; None: unknown. ``short_of_room``: new work is refused because less than the
        reserve is left. ``little_room``: it soon might be. A replica that takes the lead over because it has
        room needs some more than that, or the lead would go to and fro."""
        if free_bytes is not None:
            self.short_of_room = free_bytes < reserve_bytes
            self.little_room = not room_to_lead(free_bytes, reserve_bytes)

    @property
    def lacks_room(self) -> bool:
        """Whether the disk is too full for new work."""
        return self.disk_full or self.short_of_room

    def more_to_apply(self) -> bool:
        """Whether another tick right away would apply more."""
        applied = self._core.applied_index
        journal = self._journal
        if applied >= self._core.commit_index or applied >= journal.durable_index:
            return False
        return applied + 1 not in journal.damaged

    def takes_over(self, now: float) -> bool:
        """Whether to take the lead over from a leader that asks for it. Without room only if it insists."""
        if self.more_to_apply():
            return False
        if not (self.lacks_room or self.little_room):
            return True
        if now - self._asked_at > ASKED_FOR_S:
            self._asked_at = now
        return now - self._asked_at >= self._insists_s
