"""Consumer groups that an operator has deleted: who was a member before is none any more.

A group's places are all that the log has of it. A member that slept while its group was deleted would join
again, claim what it read, and commit it: the group would be back with the places of that one member, and
the partitions of the others would be read from their beginning. So a deletion notes the coordinator's
generation at that moment. What is claimed or committed under one up to it is void.

Bounded: beyond that the groups that were deleted longest ago are told apart no more, and what is claimed
under a generation up to theirs is void in every group. That costs a member that has slept for so long what it
has read since its last commit, which it reads again.
"""

from __future__ import annotations

from collections import OrderedDict

#: About 100 bytes each.
DELETED_GROUPS_MAX = 10_000


class DeletedGroups:
    """Changed in the applying thread only; any thread may ask meanwhile. ``floor``: the highest generation of
    the deletions that are told apart no more."""

    def __init__(self) -> None:
        self.generations: OrderedDict[str, int] = OrderedDict()
        self.floor = -1

    def add(self, group: str, generation: int) -> None:
        """A deletion. One that comes behind a later one changes nothing."""
        if generation > self.generations.get(group, self.floor):
            self.generations[group] = generation
            self.generations.move_to_end(group)
        while len(self.generations) > DELETED_GROUPS_MAX:
            self.floor = max(self.floor, self.generations.popitem(last=False)[1])

    def last_void(self, group: str) -> int:
        """The generation up to which nothing counts in this group; -1: all does."""
        return max(self.generations.get(group, -1), self.floor)
