"""Ranges of offsets. Both ends belong to a range. A list of ranges is sorted, and its ranges are disjoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

#: First and last offset.
Range = tuple[int, int]


class Final(Protocol):
    """What is final for one consumer group in one partition: it is never handed out to this group again."""

    @property
    def start(self) -> int:
        """Everything below is final, or gone; this one is not."""

    @property
    def ranges(self) -> int:
        """How many ranges above ``start`` are final."""

    def open_from(self, offset: int) -> tuple[int, int | None]:
        """The first range at or after ``offset`` of which nothing is final; None: it has no end."""


def open_within(final: Final, first: int, last: int) -> Iterator[Range]:
    """The parts of a range that are not final, in order."""
    while first <= last:
        begin, end = final.open_from(first)
        if begin > last:
            return
        stop = last if end is None or end > last else end
        yield begin, stop
        first = stop + 1


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Sorted ranges, with adjacent and overlapping ones made one."""
    found: list[Range] = []
    for first, last in ranges:
        if found and found[-1][1] >= first - 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found
