"""What share groups have finished: for each group and partition a start, and the final ranges above it.

Final is final: no message below the start or in a range is handed out to the group again. Retention moves the
start, too: what it passes unhandled has expired. That is computed when a pair is looked at, because a
retention has to visit all partitions at once (``Cuts`` in index.py).

A snapshot may hold the table: from then until it is released, a pair is copied before it changes for the
first time, as consumer groups are (group_offsets.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from escrowmq.replication.format.internal_topics import is_internal
from escrowmq.replication.format.settings import DEFAULTS, GroupSettings
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.topics import Partition

#: Group and slot of a partition.
Key = tuple[str, int]
#: No more pairs of a group and a partition begin, and no more final ranges above a start come up, in one
#: broker group: 2,000,000 ranges take 32 MB.
PAIRS_MAX, RANGES_MAX = 50_000, 2_000_000
#: Final ranges of one pair. Leaders hand out nothing new from here on, and what is handed out then, 20,000
#: messages at most, can still be acknowledged.
RANGES_OF_PAIR_MAX = 10_000
#: Beyond these only what was never handed out could be acknowledged: it is refused.
RANGES_OF_PAIR_LAST, RANGES_LAST = RANGES_OF_PAIR_MAX + 20_000, RANGES_MAX + 1_000_000
#: Groups with settings of their own.
GROUPS_MAX = 50_000


class Group(NamedTuple):
    """Settings of a group; ``number``: of their newest change, 0: none."""

    settings: GroupSettings = DEFAULTS
    number: int = 0


class Pair:
    """A share group in one partition. Read and changed in the applying thread. Not to be kept: while a
    snapshot is written, a change makes another object."""

    __slots__ = ("_expired", "_firsts", "_index", "_lasts", "_start")

    def __init__(self, index: PartitionIndex, start: int, expired: int = 0, flat: Sequence[int] = ()) -> None:
        self._index, self._start, self._expired = index, start, expired
        self._firsts, self._lasts = array("q", flat[::2]), array("q", flat[1::2])

    def copy(self) -> Pair:
        """The same, to be changed."""
        twin = Pair(self._index, self._start, self._expired)
        twin._firsts, twin._lasts = self._firsts[:], self._lasts[:]
        return twin

    # -------------------------------------------------------------- reading

    @property
    def start(self) -> int:
        """Everything below is final, or gone."""
        return max(self._start, self._index.start)

    @property
    def ranges(self) -> int:
        """How many ranges above the start are final; some of them may be gone."""
        return len(self._firsts)

    @property
    def expired(self) -> int:
        """How many messages retention has passed that were never final."""
        start = self._index.start
        return self._expired + (self._open_below(start) if start > self._start else 0)

    @property
    def waiting(self) -> int:
        """How many messages are not final, up to the partition's end."""
        return self._open_below(self._index.end) - (self.expired - self._expired)

    def has(self, offset: int) -> bool:
        """Whether it is final, or gone."""
        if offset < self.start:
            return True
        at = bisect_right(self._firsts, offset)
        return at > 0 and offset <= self._lasts[at - 1]

    def open_from(self, offset: int) -> tuple[int, int | None]:
        """The first range at or after ``offset`` of which nothing is final; None: it has no end."""
        offset = max(offset, self.start)
        at = bisect_right(self._firsts, offset)
        if at and offset <= self._lasts[at - 1]:
            offset = self._lasts[at - 1] + 1
        return offset, self._firsts[at] - 1 if at < len(self._firsts) else None

    def flat(self) -> list[int]:
        """The ranges above the start: first, last, first, last, ..."""
        return [offset for pair in zip(self._firsts, self._lasts, strict=True) for offset in pair]

    def saved(self) -> tuple[int, int, list[int]]:
        """As a snapshot has it: start, expired and ranges of the last change."""
        return self._start, self._expired, self.flat()

    def _open_below(self, end: int) -> int:
        """How many from the stored start on to ``end`` are not final."""
        at = bisect_left(self._firsts, end)
        final = sum(self._lasts[:at]) - sum(self._firsts[:at]) + at
        beyond = self._lasts[at - 1] - end + 1 if at else 0
        return max(end - self._start, 0) - final + max(beyond, 0)

    # -------------------------------------------------------------- changing

    def follow(self) -> None:
        """Take over what retention has moved."""
        start = self._index.start
        if start > self._start:
            self._expired += self._open_below(start)
            self._begin_at(start)

    def add(self, flat: Sequence[int]) -> None:
        """These are final: first, last, first, last, ... in ascending order. ``follow`` was called."""
        it = iter(flat)
        for first, last in zip(it, it, strict=True):
            firsts, lasts = self._firsts, self._lasts
            if first <= self._start:
                if last >= self._start:
                    self._begin_at(last + 1)
            elif not lasts or first > lasts[-1] + 1:
                firsts.append(first)
                lasts.append(last)
            else:
                low, high = bisect_left(lasts, first - 1), bisect_right(firsts, last + 1)
                if low < high:
                    firsts[low], lasts[low] = min(firsts[low], first), max(lasts[high - 1], last)
                    if high > low + 1:
                        del firsts[low + 1 : high], lasts[low + 1 : high]
                else:
                    firsts.insert(low, first)
                    lasts.insert(low, last)

    def _begin_at(self, start: int) -> None:
        """Everything below is final or gone; so are the ranges that begin there."""
        at = bisect_right(self._firsts, start)
        if at:
            start = max(start, self._lasts[at - 1] + 1)
            del self._firsts[:at], self._lasts[:at]
        self._start = start


class Shares:
    """The share groups of one broker group. Changed only by applying entries."""

    def __init__(self) -> None:
        self.pairs: dict[Key, Pair] = {}
        self.groups: dict[str, Group] = {}
        #: Final ranges of all pairs.
        self.ranges = 0
        self._of_slot: dict[int, set[str]] = {}
        self._fresh: set[Key] | None = None  # not shared with the snapshot that holds the table

    @property
    def full(self) -> bool:
        """Whether leaders hand out nothing new. What is handed out already can still be acknowledged."""
        return self.ranges >= RANGES_MAX

    def settings(self, group: str) -> GroupSettings:
        """Those in force. Any thread."""
        return self.groups.get(group, _NONE).settings

    def get(self, group: str, partition: Partition) -> Pair | None:
        """To be read; None: the group has not begun with that partition. With its internal topics every group
        begins by itself."""
        found = self.pairs.get((group, partition.slot))
        if found is None and is_internal(partition.topic):
            return Pair(partition.index, 0)
        return found

    def begin(self, group: str, partition: Partition, start: int) -> Pair:
        """The group reads that partition from now on."""
        key = group, partition.slot
        found = self.pairs[key] = Pair(partition.index, start)
        self._of_slot.setdefault(partition.slot, set()).add(group)
        if self._fresh is not None:
            self._fresh.add(key)
        return found

    def add(self, group: str, partition: Partition, flat: Sequence[int]) -> bool:
        """These are final. False: the group has not begun with that partition."""
        key = group, partition.slot
        pair = self.pairs.get(key)
        if pair is None:
            if not is_internal(partition.topic):
                return False
            pair = self.begin(group, partition, 0)
        elif self._fresh is not None and key not in self._fresh:
            self._fresh.add(key)
            pair = self.pairs[key] = pair.copy()
        before = pair.ranges
        pair.follow()
        pair.add(flat)
        self.ranges += pair.ranges - before
        return True

    def drop_slots(self, slots: Iterable[int]) -> None:
        """Their topic was deleted."""
        for slot in slots:
            for group in self._of_slot.pop(slot, ()):
                self.ranges -= self.pairs.pop((group, slot)).ranges

    def drop_group(self, group: str) -> bool:
        """An operator deletes a group. Returns whether there was anything of it."""
        slots = [slot for slot, groups in self._of_slot.items() if group in groups]
        for slot in slots:
            self.ranges -= self.pairs.pop((group, slot)).ranges
            self._of_slot[slot].remove(group)
            if not self._of_slot[slot]:
                del self._of_slot[slot]
        return self.groups.pop(group, None) is not None or bool(slots)

    # -------------------------------------------------------------- snapshots

    def hold(self) -> list[tuple[Key, Pair]]:
        """All pairs as they are now; they stay unchanged until ``release``."""
        self._fresh = set()
        return list(self.pairs.items())

    def release(self) -> None:
        """The snapshot is no longer read."""
        self._fresh = None

    def restore(self, group: str, partition: Partition, start: int, expired: int, flat: list[int]) -> None:
        """From a snapshot. Raises ValueError for ranges that are none."""
        bounds = [start - 1, *flat]
        if start < 0 or len(flat) % 2 or any(map(int.__gt__, bounds, flat)):
            raise ValueError(f"ranges of share group {group!r}: {flat[:10]}")
        self.begin(group, partition, start)
        self.pairs[group, partition.slot] = Pair(partition.index, start, expired, flat)
        self.ranges += len(flat) // 2


_NONE = Group()
