"""The table in docs/evidence/planted-faults.md: a row for each planted fault, and its figures.

``python -m tests.controls.page`` writes the rows anew, in the catalogue's order: names and what they break
from the code, figures as they are on the page. ``python -m tests.controls --page`` has new figures, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.controls.catalogue import MODULES, PLANTED
from tests.support.faults.tables import Sheet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "planted-faults.md"
COLUMNS = ("planted fault", "what it breaks", "reported as", "seeds: median", "max", "virtual s: median")
#: Columns that the code tells; the others are measured.
TOLD = 2
NOT_MEASURED = ("not measured yet", "-", "-", "-")

Row = tuple[str, ...]
_TABLE = re.compile(rf"^\| {COLUMNS[0]} \|.*\n\|[ -:|]+\|\n(?P<rows>(?:\|.*\n)*)", re.MULTILINE)


def listed(page: str) -> list[Row]:
    """The rows of the table on the page. Raises ValueError if there is none."""
    found = _TABLE.search(page)
    if found is None:
        raise ValueError(f"no table that begins with {COLUMNS[0]!r}")
    return [tuple(row.strip("| ").split(" | ")) for row in found["rows"].splitlines()]


def told() -> list[Row]:
    """What the code says of each planted fault, by where they are planted."""
    places = [module.__name__ for module in MODULES]
    faults = sorted(PLANTED.values(), key=lambda fault: places.index(fault.install.__module__))
    return [(fault.name, fault.breaks) for fault in faults]


def renewed(page: str, measured: Mapping[str, Sequence[str]]) -> str:
    """The page with a row for each planted fault: figures of ``measured``, by name, else those it has."""
    figures = {row[0]: row[TOLD:] for row in listed(page)}
    figures |= {name: tuple(row[TOLD:]) for name, row in measured.items()}
    rows = [(*row, *figures.get(row[0], NOT_MEASURED)) for row in told()]
    return _TABLE.sub(lambda _: Sheet(COLUMNS, rows, left=3).markdown() + "\n", page)


def renew(measured: Mapping[str, Sequence[str]]) -> None:
    """Write the rows on the page anew; see ``renewed``."""
    PAGE.write_text(renewed(PAGE.read_text(), measured))


if __name__ == "__main__":
    renew({})
