"""Totals of several runs are the sums of their parts, and seeds count once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer
from typer.testing import CliRunner

from tests.sim.group.simulation import Figures
from tests.sim.running.coverage import Phase, cells, grid
from tests.sim.running.totals import Told, Totals, total
from tests.support.faults.tables import Cells


def told(seed: int, broken: str | None = None, groups: int = 1) -> Told:
    cell = Cells({(Phase.LOCAL.value, "kill"): 2})
    history = Counter({"transactions": 5})
    return Told(seed, "broker", groups, Figures(virtual_s=14.0), broken, Counter(kill=3), "", cell, history)


def run(*seeds: int) -> Totals:
    totals = Totals(commits=["abc"], wall_s=2.0)
    for seed in seeds:
        totals.add(told(seed))
    return totals


def test_a_file_holds_what_was_summed_up(tmp_path: Path) -> None:
    totals = run(1, 2, 3)
    totals.dump(tmp_path / "a")
    assert Totals.load(tmp_path / "a") == totals
    assert totals.seeds == [["broker", 1, 3]]


def test_runs_are_added_up(tmp_path: Path) -> None:
    run(1, 2).dump(tmp_path / "a")
    run(3).dump(tmp_path / "b")
    app = typer.Typer()
    app.command()(total)
    result = CliRunner().invoke(app, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 0, result.output
    assert "| schedules | 3 |" in result.output and "| virtual seconds | 42 |" in result.output
    assert "| history: transactions | 15 |" in result.output
    again = CliRunner().invoke(app, [str(tmp_path / "a"), str(tmp_path / "a")])
    assert again.exit_code == 1 and "counted more than once: broker 1..2" in again.output


def test_schedules_over_several_groups_have_totals_of_their_own(tmp_path: Path) -> None:
    totals = run(1, 2)
    totals.add(told(1, groups=2))
    totals.add(told(2, groups=3))
    totals.dump(tmp_path / "a")
    assert Totals.load(tmp_path / "a") == totals and not totals.overlaps()
    assert totals.groups["1 group: virtual seconds"] == 28 and totals.groups["3 groups: schedules"] == 1
    assert totals.cells[Phase.LOCAL.value, "kill"] == totals.across[Phase.LOCAL.value, "kill"] == 4
    assert "| 2 groups: virtual seconds | 14 |" in totals.markdown()


def test_a_fault_counts_for_the_phases_it_met() -> None:
    stays = [(1.0, 2.0, Phase.LOCAL), (1.5, 3.0, Phase.LOCAL), (2.5, 4.0, Phase.CHECK_OUT)]
    log = [(1.7, "kill", "r0"), (2.6, "pause", "r1"), (2.7, "eio", ""), (9.0, "kill", "r0")]
    found = cells(log, stays)
    assert found == {
        (Phase.LOCAL.value, "kill"): 1,
        (Phase.LOCAL.value, "pause"): 1,
        (Phase.CHECK_OUT.value, "pause"): 1,
    }
    assert (Phase.CHECK_OUT.value, "kill") in grid(found, ("kill",)).empty()
    assert (Phase.LOCAL.value, "kill") not in grid(found, ("kill",)).empty()


def test_ranges_of_seeds_that_join_are_one() -> None:
    totals = Totals(seeds=[["raw", 5, 5], ["broker", 10, 5], ["broker", 0, 10], ["broker", 16, 1]])
    assert totals.ranges() == [("broker", 0, 14), ("broker", 16, 16), ("raw", 5, 9)]
