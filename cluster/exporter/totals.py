"""Counters that several processes count, added up so that they never fall.

A counter that a leader tells ends with its leadership, and the next leader's began when that process did. So
only what it grows by is taken over, and only from one look at the same process to the next. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Totals:
    """One total for each label value, fed from any number of sources."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._last: dict[Hashable, tuple[Hashable, float]] = {}

    def feed(
        self, label: str, source: Hashable, process: Hashable, value: float, *, at_first: bool = False
    ) -> None:
        """``source`` says ``value``. What it said before counts only if the same ``process`` said it.

        ``at_first``: all of the value is news where the source or its process is: it began at 0.
        """
        before, last = self._last.get(source, (None, 0.0))
        known = source in self._last and before == process
        grown = value - last if known else value if at_first else 0.0
        self._last[source] = process, value
        self.values[label] = self.values.get(label, 0.0) + max(grown, 0.0)

    def forget(self, label: str) -> None:
        """It has no series any more."""
        self.values.pop(label, None)

    @property
    def sources(self) -> set[Any]:
        """Whatever something comes from."""
        return set(self._last)

    def keep(self, sources: set[Hashable]) -> None:
        """Nothing comes from any other source any more."""
        self._last = {source: said for source, said in self._last.items() if source in sources}
