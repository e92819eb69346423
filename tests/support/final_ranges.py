"""What is final for a share group in one partition, as a set: slow, and easy to believe."""

from __future__ import annotations


class FinalSet:
    """A ``sharing.ranges.Final``."""

    def __init__(self, start: int = 0) -> None:
        self.start, self._above = start, set[int]()

    def add(self, first: int, last: int) -> None:
        """These are final."""
        self._above.update(range(max(first, self.start), last + 1))
        self.raise_start(self.start)

    def raise_start(self, start: int) -> None:
        """Everything below is final, or gone."""
        self.start = max(self.start, start)
        while self.start in self._above:
            self.start += 1
        self._above = {offset for offset in self._above if offset > self.start}

    def __contains__(self, offset: int) -> bool:
        return offset < self.start or offset in self._above

    @property
    def ranges(self) -> int:
        return sum(offset - 1 not in self._above for offset in self._above)

    def open_from(self, offset: int) -> tuple[int, int | None]:
        first = max(offset, self.start)
        while first in self._above:
            first += 1
        behind = [final for final in self._above if final > first]
        return first, min(behind) - 1 if behind else None
