"""Consumer groups that an operator has deleted, and from which generation on a membership counts again.

The log has only the places of a group. A member that was paused while its group was deleted would join again,
claim its partitions and commit: the group would come back with this member's places only, and its other
partitions would be read from their beginning. So a deletion records the coordinator's newest generation.
Claims and commits under that generation or an earlier one are void.

Bounded: beyond the limit, the groups that were deleted longest ago share one generation (``floor``), up to
which claims and commits are void in every group. A member that was paused for that long then loses its
uncommitted progress and reads those records again.
"""

from __future__ import annotations

from collections import OrderedDict

#: About 100 bytes each.
DELETED_GROUPS_MAX = 10_000


class DeletedGroups:
    """Changed only in the applying thread; any thread may read. ``floor``: the highest generation of the
    deletions that are no longer kept by group."""

    def __init__(self) -> None:
        self.generations: OrderedDict[str, int] = OrderedDict()
        self.floor = -1

    def add(self, group: str, generation: int) -> None:
        """Records a deletion. One that is older than the recorded one changes nothing."""
        if generation > self.generations.get(group, self.floor):
            self.generations[group] = generation
            self.generations.move_to_end(group)
        while len(self.generations) > DELETED_GROUPS_MAX:
            self.floor = max(self.floor, self.generations.popitem(last=False)[1])

    def last_void(self, group: str) -> int:
        """The generation up to which nothing counts in this group; -1: everything counts."""
        return max(self.generations.get(group, -1), self.floor)
