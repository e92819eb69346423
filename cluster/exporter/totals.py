"""Sums counters from several processes so that the totals never decrease.

A counter that a leader reports ends with its leadership, and the next leader's counter started with that
process. So only increases are added, and only between two looks at the same process. Pure.
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
        """Add the increase of ``source``, which now reports ``value``, to the total of ``label``.

        The increase is computed only if the last value came from the same ``process``. ``at_first``: the
        first value of a new source or process is added in full, because it started at 0; otherwise it adds
        nothing.
        """
        before, last = self._last.get(source, (None, 0.0))
        known = source in self._last and before == process
        grown = value - last if known else value if at_first else 0.0
        self._last[source] = process, value
        self.values[label] = self.values.get(label, 0.0) + max(grown, 0.0)

    def forget(self, label: str) -> None:
        """Remove the total of ``label``."""
        self.values.pop(label, None)

    @property
    def sources(self) -> set[Any]:
        """All known sources."""
        return set(self._last)

    def keep(self, sources: set[Hashable]) -> None:
        """Forget all other sources."""
        self._last = {source: said for source, said in self._last.items() if source in sources}
