"""Whether a replica could lead at once: it has applied what is committed, and its disk has room."""

from __future__ import annotations

from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.types import Log


class Readiness:
    """One per node. Its caller sets ``disk_full`` while its syncs find no room, and ``short_of_room`` while
    new work is refused because little is left."""

    def __init__(self, core: Core, journal: Log) -> None:
        self._core, self._journal = core, journal
        self.disk_full = self.short_of_room = False

    @property
    def lacks_room(self) -> bool:
        """Whether the disk is too full for new work."""
        return self.disk_full or self.short_of_room

    def more_to_apply(self) -> bool:
        """Whether another tick right away would apply more."""
        applied = self._core.applied_index()
        if applied >= min(self._core.commit_index(), self._journal.durable_index):
            return False
        return self._journal.damaged_after(applied) != applied + 1

    def takes_over(self) -> bool:
        """Whether to take the lead over from a leader that is there."""
        return not self.lacks_room and not self.more_to_apply()
