"""What brokers tell operators of share groups: how far a group is, and which of its dead letters are left.

Leader only, and of its own broker group. See ``answers`` for the rules of such types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from escrowmq.replication.calling.carried_answers import Carried, prepare
from escrowmq.replication.model import NO_ID


class SharePlace(NamedTuple):
    """A group in one partition ``[.., end)``: everything below ``start`` is final. ``waiting``: messages that
    are not final; ``leased``: those of them that a consumer has; ``later``: messages of the partition that
    cannot be read yet, such as retries whose time has not come; ``expired``: how many retention has removed
    unhandled; ``ranges``: final ranges above the start."""

    topic: str
    partition: int
    start: int
    end: int
    waiting: int
    leased: int
    later: int
    expired: int
    ranges: int


class SharePlaces(Carried, frozen=True):
    """All places of a group; the columns are the fields of ``SharePlace``."""

    topics: Sequence[str] = ()
    partitions: Sequence[int] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    waiting: Sequence[int] = ()
    leased: Sequence[int] = ()
    later: Sequence[int] = ()
    expired: Sequence[int] = ()
    ranges: Sequence[int] = ()

    @classmethod
    def of(cls, rows: Iterable[SharePlace]) -> Self:
        """From rows."""
        return cls(*zip(*rows, strict=True))

    def rows(self) -> list[SharePlace]:
        """One for each place."""
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return list(map(SharePlace._make, zip(*columns, strict=True)))


class FinalRanges(Carried, frozen=True):
    """What is final for a group in one partition ``[.., end)``: everything below ``start``, and ``ranges``
    (first, last, first, last, ...). ``topic_id``: of the partition's topic."""

    start: int
    end: int
    ranges: Sequence[int] = ()
    topic_id: int = NO_ID

    def has(self, offset: int) -> bool:
        """Whether it is final, or gone."""
        pairs = zip(self.ranges[::2], self.ranges[1::2], strict=True)
        return offset < self.start or any(first <= offset <= last for first, last in pairs)

    def left(self, start: int = 0) -> Iterable[tuple[int, int]]:
        """The ranges from ``start`` on that are not final, each as ``[begin, end)``."""
        at = max(self.start, start)
        for first, last in zip(self.ranges[::2], self.ranges[1::2], strict=True):
            if first > at:
                yield at, first
            at = max(at, last + 1)
        if at < self.end:
            yield at, self.end


prepare(__name__)
