"""The reports of a run: tables on the terminal, markdown for the docs, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tests.chaos.measure import Results, Row, clusters, fail_over, rows
from tests.support.faults.absence import lines
from tests.support.faults.tables import Sheet

HEADINGS = ("fault", "trials", "groups 1, 2, 3", "overlap", "away p50", "p95", "max", "well p50", "max")
NOTE = (
    "Away: seconds from the fault to the acknowledgement of a transaction that a client began right after; "
    "of rolling-restart, the longest time between two acknowledgements in a row while it goes on. Well: "
    "until every replica was back and had caught up. Overlapping ones struck before the cluster had "
    "recovered from the fault before, or had another strike while they lasted; their times are not counted."
)


def show(results: Results, console: Console) -> None:
    """Print the tables."""
    console.print(faults(results).table(f"{len(results.trials)} trials, seed {results.seed}"))
    console.print(NOTE, style="dim")
    console.print(by_groups(results).table())
    console.print(operations(results).table())
    console.print(", ".join(f"{count:,} {what}" for what, count in results.figures().items()))
    if results.together():
        console.print(f"While another lasted: {together(results)}.")
    if (found := fail_over(results.trials)) is not None:
        console.print(escape(found.text()))
    for line in lines(results.left_out):
        console.print(f"[yellow]not inflicted: {escape(line)}")
    if results.violations:
        console.print(f"[bold red]{len(results.violations)} violations")
    else:
        console.print(f"[bold green]no violations[/] ({results.took_s:.0f} s)")


def faults(results: Results) -> Sheet:
    """For each kind of fault: how often it struck, and how long the cluster was away."""
    return Sheet(HEADINGS, [cells(row) for row in rows(results.trials)])


def by_groups(results: Results) -> Sheet:
    """Figures for clusters of one, two and three broker groups."""
    headings = ("broker groups", "rounds", "on machines", "slow database", "trials")
    return Sheet(
        (*headings, "transactions", "records read", "entries damaged"),
        [[f"{cell:,}" for cell in astuple(cluster)] for cluster in clusters(results)],
    )


def operations(results: Results) -> Sheet:
    """The clients' operations, by how they ended."""
    counted = sorted(results.operations().items())
    ends = ("invoke", "ok", "fail", "unknown")
    return Sheet(
        ("operation", "invoked", "ok", "failed", "unknown"),
        [[kind, *(f"{ended[end]:,}" for end in ends)] for kind, ended in counted],
    )


def together(results: Results) -> str:
    """The faults that struck during another one."""
    return ", ".join(f"{pair} {count}" for pair, count in sorted(results.together().items()))


def cells(row: Row) -> list[str]:
    """A row's cells as text."""
    times = (row.away_p50, row.away_p95, row.away_max, row.well_p50, row.well_max)
    return [
        row.kind,
        str(row.trials),
        ", ".join(map(str, row.by_groups)),
        str(row.overlapping),
        *("-" if time is None else f"{time:.2f}" for time in times),
    ]


def markdown(results: Results) -> str:
    """The text for docs/evidence/chaos.md."""
    page = [
        f"{len(results.trials)} trials on real processes (seed {results.seed}), "
        f"{len(results.violations)} violations, {results.took_s / 60:.0f} minutes.",
        "",
        faults(results).markdown(),
        "",
        NOTE,
        "",
        by_groups(results).markdown(),
        "",
        operations(results).markdown(),
    ]
    page += ["", ", ".join(f"{count:,} {what}" for what, count in results.figures().items()) + "."]
    page += [f"While another lasted: {together(results)}."] if results.together() else []
    page += [f"{found.text()}."] if (found := fail_over(results.trials)) is not None else []
    page += [f"Not inflicted: {line}." for line in lines(results.left_out)]
    return "\n".join(page) + "\n"


def write(results: Results, json_file: Path | None, markdown_file: Path | None) -> None:
    """Write the requested files."""
    if json_file is not None:
        _replace(json_file, json.dumps(results.as_dict()) + "\n")
    if markdown_file is not None:
        _replace(markdown_file, markdown(results))


def _replace(file: Path, text: str) -> None:
    """Write a file so that it is whole at any time, even if this process is killed."""
    new = file.with_name(file.name + ".new")
    new.write_text(text)
    new.replace(file)


def read(files: Iterable[Path]) -> Results:
    """The results of several runs, such as one for each round of a long one, as those of one run."""
    found: Results | None = None
    for file in files:
        one = json.loads(file.read_text())
        found = found or Results(one["seed"])
        found.trials += one["trials"]
        found.judged += one["rounds"]
        found.violations += one["violations"]
        found.took_s += one["took_s"]
    if found is None:
        raise ValueError("no files of results")
    return found


if __name__ == "__main__":  # python -m tests.chaos.report FILES: the tables of all of them together
    print(markdown(read(map(Path, sys.argv[1:]))))
