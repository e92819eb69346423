"""Positions of consumer groups: group -> topic -> partition -> next offset, ordered by last commit.

A snapshot may hold the table: from then until it is released, a group is copied before it changes for the
first time, so that what the snapshot took stays unchanged. Holding costs a reference for each group;
copying 20,000 groups of 100 partitions took 300 ms of the applying thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence

ByTopic = dict[str, dict[int, int]]


class GroupOffsets(OrderedDict[str, ByTopic]):
    """Changed in the applying thread only, by these methods; any thread may look up groups."""

    def __init__(self) -> None:
        super().__init__()
        self._fresh: set[str] | None = None  # not shared with the snapshot that holds the table

    def commit(self, group: str, topic: str, flat: Sequence[int]) -> None:
        """``flat``: partition, next offset, partition, next offset, ..."""
        it = iter(flat)
        self._own(group).setdefault(topic, {}).update(zip(it, it, strict=True))
        self.move_to_end(group)  # in one step: other threads look groups up meanwhile

    def drop_group(self, group: str) -> bool:
        """Deletes a group for an operator. Returns whether it had any committed offsets."""
        return self.pop(group, None) is not None

    def keep(self, most: int, held: Container[str] = ()) -> None:
        """Keep ``most`` groups: forget those that committed longest ago, but none of ``held``."""
        while len(self) > most:
            oldest = next((group for group in self if group not in held), None)
            if oldest is None:
                return
            del self[oldest]

    def drop_topic(self, topic: str) -> None:
        """A topic was deleted."""
        for group in [group for group, by_topic in self.items() if topic in by_topic]:
            offsets = self._own(group)
            del offsets[topic]
            if not offsets:
                del self[group]

    def _own(self, group: str) -> ByTopic:
        """The group's offsets, as a copy that may be changed."""
        offsets = self.get(group)
        if offsets is None:
            offsets = self[group] = {}
        elif self._fresh is not None and group not in self._fresh:
            offsets = self[group] = {topic: dict(numbers) for topic, numbers in offsets.items()}
        if self._fresh is not None:
            self._fresh.add(group)
        return offsets

    # -------------------------------------------------------------- snapshots

    def hold(self) -> list[tuple[str, ByTopic]]:
        """All groups as they are now, in order; they stay unchanged until ``release``."""
        self._fresh = set()
        return list(self.items())

    def release(self) -> None:
        """The snapshot is no longer read."""
        self._fresh = None


# ------------------------------------------------------------------ deleted groups
# Consumer groups that an operator has deleted, and from which generation on a membership counts again.
#
# The log has only the committed offsets of a group. A member that was paused while its group was deleted
# would join again, claim its partitions and commit: the group would come back with this member's offsets
# only, and its other partitions would be read from their beginning. So a deletion records the coordinator's
# newest generation. Claims and commits under that generation or an earlier one are void.
#
# Bounded: beyond the limit, the groups that were deleted longest ago share one generation (``floor``), up
# to which claims and commits are void in every group. A member that was paused for that long then loses its
# uncommitted progress and reads those records again.


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


# ------------------------------------------------------------------------------------------------------------
# How often the message at a consumer group's committed offset has failed: for groups that read a partition in
# order.
#
# An entry counts only while the offset is the one that it was noted for. It is forgotten once the offset is
# another one: a message that was done begins anew if its group is moved back to it. Bounded: those noted
# longest ago are forgotten, and their messages begin again at the first attempt.

#: Committed offsets with failed attempts that are kept.
ATTEMPTS_KEPT = 100_000
#: Group, topic and partition.
Key = tuple[str, str, int]


class Attempts(dict[Key, tuple[int, int]]):
    """Key -> committed offset and failed attempts, in the order in which they were noted. Changed in
    the applying thread only, by these methods."""

    def note(self, group: str, topic: str, flat: Sequence[int]) -> None:
        """``flat``: partition, next offset, attempts, and so on."""
        it = iter(flat)
        for partition, offset, attempts in zip(it, it, it, strict=True):
            self.pop((group, topic, partition), None)
            if attempts:
                self[group, topic, partition] = offset, attempts
        while len(self) > ATTEMPTS_KEPT:
            del self[next(iter(self))]

    def at(self, group: str, topic: str, partition: int, offset: int) -> int:
        """How often the message at that offset has failed. Any thread."""
        noted, attempts = self.get((group, topic, partition), (-1, 0))
        return attempts if noted == offset else 0

    def passed(self, group: str, topic: str, flat: Sequence[int]) -> None:
        """Committed offsets have moved; ``flat``: partition, next offset, and so on."""
        it = iter(flat)
        for partition, offset in zip(it, it, strict=True):
            noted, _ = self.get((group, topic, partition), (offset, 0))
            if noted != offset:
                del self[group, topic, partition]

    def drop_group(self, group: str) -> None:
        """It was deleted."""
        for key in [key for key in self if key[0] == group]:
            del self[key]

    def drop_topic(self, topic: str) -> None:
        """It was deleted."""
        for key in [key for key in self if key[1] == topic]:
            del self[key]
