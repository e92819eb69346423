"""The table in docs/evidence/planted-faults.md: a row for each planted fault, and its figures.

``python -m tests.controls.page`` rewrites the rows in the catalogue's order: names and descriptions from the
code, figures as they are on the page. ``python -m tests.controls --page`` measures new figures as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.controls.catalogue import MODULES, PLANTED
from tests.support.faults.tables import Sheet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "planted-faults.md"
COLUMNS = ("planted fault", "what it breaks", "reported as", "seeds: median", "max", "virtual s: median")
#: The number of columns that come from the code; the others are measured.
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
    """Name and description of each planted fault, in the order of the catalogue's modules."""
    modules = [module.__name__ for module in MODULES]
    faults = sorted(PLANTED.values(), key=lambda fault: modules.index(fault.install.__module__))
    return [(fault.name, fault.breaks) for fault in faults]


def renewed(page: str, measured: Mapping[str, Sequence[str]]) -> str:
    """The page with a row for each planted fault. Its figures come from ``measured`` (by name), else from the
    page."""
    figures = {row[0]: row[TOLD:] for row in listed(page)}
    figures |= {name: tuple(row[TOLD:]) for name, row in measured.items()}
    rows = [(*row, *figures.get(row[0], NOT_MEASURED)) for row in told()]
    return _TABLE.sub(lambda _: Sheet(COLUMNS, rows, left=3).markdown() + "\n", page)


def renew(measured: Mapping[str, Sequence[str]]) -> None:
    """Rewrite the page's rows; see ``renewed``."""
    PAGE.write_text(renewed(PAGE.read_text(), measured))


if __name__ == "__main__":
    renew({})
