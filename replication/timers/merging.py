"""Which files of timers are merged into one, and what is left of their records then.

Files are in classes by the number of records that are not released yet. Eight of a class become one of a
higher class: so each record is written again three times at most while 100 million wait, and there are few
files. Which files are merged when differs from replica to replica, and changes no answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from escrowmq.replication.timers.record import settled
from escrowmq.replication.timers.runs import in_order
from escrowmq.replication.timers.sealed_file import SealedFile

#: The least number of records of each class but the first.
CLASSES: Final = (1 << 19, 1 << 22, 1 << 25)
#: Files of one class that are merged.
FAN_IN: Final = 8
#: Records that are sorted in one piece: less than a millisecond, during which no other thread runs.
SLICE: Final = 2_048


def choose(files: Sequence[SealedFile], cursor: bytes) -> list[SealedFile]:
    """The files to merge now; none if there are few. A single large one: most of it is released. Reads no
    record."""
    by_class: list[list[SealedFile]] = [[] for _ in range(len(CLASSES) + 1)]
    for file in files:
        by_class[bisect_right(CLASSES, file.about_after(cursor))].append(file)
    for some in by_class:
        if len(some) >= FAN_IN:
            return some[:FAN_IN]
    return next(([f] for f in files if len(f) >= CLASSES[0] and f.about_after(cursor) < len(f) // 2), [])


def merged(
    files: Sequence[SealedFile], cursor: bytes, rest: Callable[[], None] = lambda: None
) -> Iterator[list[bytes]]:
    """What is left of their records behind the cursor, in order: without those that a tombstone among them
    kills. Tombstones stay, since what they kill may be in other files. Raises CorruptLog."""
    for records in in_order(files, cursor, SLICE):
        yield settled(records)
        rest()
