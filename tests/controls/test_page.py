"""The documentation page lists every planted fault and what it breaks."""

from __future__ import annotations

from tests.controls.catalogue import PLANTED
from tests.controls.page import COLUMNS, NOT_MEASURED, PAGE, listed, renewed, told

RENEW = "python -m tests.controls.page writes the rows again"


def test_every_planted_fault_has_its_row_and_no_other_has_one() -> None:
    rows = listed(PAGE.read_text())
    names = [row[0] for row in rows]
    assert [name for name in PLANTED if name not in names] == [], f"without a row: {RENEW}"
    assert [name for name in names if name not in PLANTED] == [], f"no longer planted: {RENEW}"
    assert [row[:2] for row in rows] == told(), f"order, or what is broken: {RENEW}"
    assert all(len(row) == len(COLUMNS) for row in rows)


def test_a_row_that_is_missing_is_put_in_and_measured_ones_stay() -> None:
    page = PAGE.read_text()
    first, second, *_ = listed(page)
    without = "\n".join(line for line in page.split("\n") if not line.startswith(f"| {second[0]} |"))
    assert second[0] not in [row[0] for row in listed(without)]
    again = listed(renewed(without, {first[0]: (*first[:2], "two-leaders 1", "1", "1", "0.5")}))
    assert again[0] == (*first[:2], "two-leaders 1", "1", "1", "0.5")
    assert again[1] == (*second[:2], *NOT_MEASURED)
    assert again[2:] == listed(page)[2:]
    assert renewed(page, {}) == page
