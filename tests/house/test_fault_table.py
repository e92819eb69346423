"""The table of faults in docs/reliability.md names what is generated: every kind, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos.kinds import Kind
from tests.sim.faults.plan import CHANGE, GROUP_KINDS, ONE_GROUP_KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def test_the_table_names_every_kind_of_fault_and_no_other() -> None:
    table = re.search(r"^\| fault \| simulation \| real \|\n.*\n((?:\|.*\n)+)", PAGE.read_text(), re.M)
    assert table is not None
    columns = list(zip(*(row.strip("| ").split(" | ") for row in table[1].splitlines()), strict=True))
    simulated, real = (set(re.findall(r"`([a-z-]+)`", " ".join(column))) for column in columns[1:])
    assert simulated == {*ONE_GROUP_KINDS, *GROUP_KINDS, CHANGE}
    assert real == {kind.value for kind in Kind}
