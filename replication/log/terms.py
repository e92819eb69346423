"""Terms of the log's entries, stored as runs: a term covers thousands of entries, so one pair per run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class TermRuns:
    """Maps log index to term. ``starts`` ascends; run i covers starts[i] up to starts[i + 1] - 1."""

    __slots__ = ("_starts", "_terms")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._terms: list[int] = []
        for first, term in runs:
            self.append(first, term)

    def __bool__(self) -> bool:
        return bool(self._terms)

    def append(self, index: int, term: int) -> None:
        """Entry ``index`` and those after it have ``term``. Does nothing if the last run has it already."""
        if self._terms and self._terms[-1] == term:
            return
        assert not self._starts or (index > self._starts[-1] and term > self._terms[-1])
        self._starts.append(index)
        self._terms.append(term)

    def at(self, index: int) -> int:
        """Term of an entry that is in the log."""
        return self._terms[bisect_right(self._starts, index) - 1]

    def run_at(self, index: int) -> tuple[int, int]:
        """(term, last index of its run) for an entry that is in the log; the newest run has no end."""
        k = bisect_right(self._starts, index)
        return self._terms[k - 1], self._starts[k] - 1 if k < len(self._starts) else 1 << 63

    def start_of(self, index: int) -> int:
        """First index of the run that ``index`` belongs to."""
        return self._starts[bisect_right(self._starts, index) - 1]

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """Runs of the entries first..last, the first run cut to begin at ``first``."""
        low = bisect_right(self._starts, first) - 1
        high = bisect_right(self._starts, last)
        return [(max(first, self._starts[k]), self._terms[k]) for k in range(max(low, 0), high)]

    def cut_after(self, last: int) -> None:
        """Forget entries after ``last``."""
        keep = bisect_right(self._starts, last)
        del self._starts[keep:], self._terms[keep:]

    def cut_before(self, first: int) -> None:
        """Forget entries before ``first``."""
        drop = bisect_right(self._starts, first) - 1
        if drop > 0:
            del self._starts[:drop], self._terms[:drop]
        if self._starts and self._starts[0] < first:
            self._starts[0] = first
