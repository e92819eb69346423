"""The same rows on a terminal and in a document; and counts of faults by what was going on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.table import Table

#: (where or when, kind of fault) -> how often.
Cells = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """``left``: so many columns are text, the others are figures."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def table(self, title: str | None = None) -> Table:
        """For a terminal."""
        shown = Table(title=title)
        for column, heading in enumerate(self.headings):
            shown.add_column(heading, no_wrap=column == 0)
        for row in self.rows:
            shown.add_row(*row)
        return shown

    def markdown(self) -> str:
        """For a document; no line end behind the last row."""
        marks = ["---" if column < self.left else "--:" for column in range(len(self.headings))]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.headings, marks, *self.rows))


@dataclass(frozen=True, slots=True)
class Grid:
    """Faults down, phases across. ``possible``: the cells that can be reached; None: all of them."""

    kinds: Sequence[str]
    phases: Sequence[str]
    cells: Cells
    possible: Collection[tuple[str, str]] | None = None

    def empty(self) -> list[tuple[str, str]]:
        """Cells that can be reached, and that nothing has reached."""
        return [cell for cell in self._reachable() if not self.cells[cell]]

    def table(self, title: str) -> Table:
        """For a terminal: phases under numbers; what was not reached is red."""
        shown = Table("fault", *(str(n) for n, _ in enumerate(self.phases, start=1)), title=title)
        for row in self._rows(zero="[bold red]0"):
            shown.add_row(*row)
        shown.caption = "\n".join(f"{n}: {phase}" for n, phase in enumerate(self.phases, start=1))
        return shown

    def markdown(self) -> str:
        """The same for a document."""
        return Sheet(("fault", *self.phases), self._rows(zero="0")).markdown()

    def missing(self) -> str:
        """How many cells were not reached, in words."""
        return f"{len(self.empty())} of {len(self._reachable())} cells were not reached"

    def named(self) -> list[str]:
        """Cells that were not reached: each fault, with the phases that it never met."""
        phases: dict[str, list[str]] = {}
        for phase, kind in self.empty():
            phases.setdefault(kind, []).append(phase)
        return [f"{kind}: {'; '.join(phases[kind])}" for kind in self.kinds if kind in phases]

    def _reachable(self) -> list[tuple[str, str]]:
        every = [(phase, kind) for phase in self.phases for kind in self.kinds]
        return every if self.possible is None else [cell for cell in every if cell in self.possible]

    def _rows(self, zero: str) -> list[list[str]]:
        reachable = set(self._reachable())

        def text(cell: tuple[str, str]) -> str:
            if cell not in reachable:
                return ""
            return f"{self.cells[cell]:,}" if self.cells[cell] else zero

        return [[kind, *(text((phase, kind)) for phase in self.phases)] for kind in self.kinds]
