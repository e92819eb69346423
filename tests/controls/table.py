"""``python -m tests.controls``: how soon each planted fault is found, from many starting points.

Prints a table, and writes it as markdown to the file that ``--markdown`` names, or its rows into the table of
docs/evidence/planted-faults.md (``--page``). It fails if, from one of the starts, a fault is not found within
its bound (``Planted.within``) or is reported as something that was not expected.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from tests.controls.catalogue import PLANTED, Planted
from tests.controls.hunt import Found, hunt
from tests.controls.page import COLUMNS, renew
from tests.support.faults.tables import Sheet

STRIDE = 1000  # between starting points
STARTS = 10  # of each row, unless it says otherwise


def _hunt(job: tuple[str, int, int]) -> tuple[str, Found | None]:
    name, first, most = job
    warnings.simplefilter("ignore")
    return name, hunt(PLANTED[name], first, most)


def row(fault: Planted, results: list[Found | None]) -> tuple[str, ...]:
    """The fault's line. The text counts the starts from which it was not found; the figures omit them."""
    found = [result for result in results if result is not None]
    kinds = Counter(result.outcome.kind for result in found)
    reported = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    missed = len(results) - len(found)
    if missed:
        reported += f"{'; ' * bool(found)}not found from {missed} of {len(results)} starts"
    elif len(results) != STARTS:
        reported += f" (of {len(results)} start{'s' * (len(results) > 1)})"
    if not found:
        return fault.name, fault.breaks, reported, "-", "-", "-"
    seeds = [result.seeds for result in found]
    seconds = statistics.median(result.virtual_s for result in found)
    return (
        *(fault.name, fault.breaks, reported, f"{statistics.median(seeds):g}"),
        *(f"{max(seeds)}", f"{seconds:.1f}"),
    )


def markdown(rows: list[tuple[str, ...]]) -> str:
    """The table for the documentation."""
    return Sheet(COLUMNS, rows, left=3).markdown() + "\n"


def main(
    starts: Annotated[int, typer.Option(help="Starting points per fault.")] = STARTS,
    most: Annotated[
        int | None, typer.Option(help="Seeds that are tried from each.", show_default="the fault's bound")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A planted fault; may be repeated.")] = None,
    to: Annotated[Path | None, typer.Option("--markdown", help="Where the table goes as markdown.")] = None,
    page: Annotated[bool, typer.Option("--page", help="Put the figures into docs/evidence.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes; 0: one per core.")] = 0,
) -> None:
    names = only or list(PLANTED)
    if unknown := set(names) - set(PLANTED):
        raise typer.BadParameter(f"no planted fault {', '.join(unknown)}; there are {', '.join(PLANTED)}")
    console, started = Console(), time.monotonic()
    work = [(name, STRIDE * n, most or PLANTED[name].within) for name in names for n in range(starts)]
    results: dict[str, list[Found | None]] = {name: [] for name in names}
    with multiprocessing.get_context("spawn").Pool(jobs or os.cpu_count() or 1) as pool:
        for name, found in track(pool.imap(_hunt, work), "hunting", len(work), console=console):
            results[name].append(found)
    rows = [row(PLANTED[name], results[name]) for name in names]
    console.print(Sheet(COLUMNS, rows).table())
    odd = sum(f.outcome.kind not in PLANTED[n].expected for n, r in results.items() for f in r if f)
    missed = sum(found is None for found_all in results.values() for found in found_all)
    console.print(
        f"{len(names)} planted faults from {starts} starts each: {missed} hunts found nothing, "
        f"{odd} a kind that was not expected; {time.monotonic() - started:.0f} s"
    )
    if to is not None:
        to.write_text(markdown(rows))
    if page:
        renew({row[0]: row for row in rows})
    raise typer.Exit(bool(missed or odd))
