"""``make walk``: counts calls, files and changes of file for one message, in the client and each replica."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.page import table
from benchmarks.walk.recorder import tree
from benchmarks.walk.steps import STEPS, TOTAL, Step, stage

#: The document with the figures, and the marks around them.
PAGE = "CONTRIBUTING.md"
BEGIN, END = "<!-- figures: written by benchmarks/walk -->", "<!-- end of figures -->"
#: Whose figures are in it.
ROLES = (TOTAL, "client", "leader")


def main(
    repeat: Annotated[int, typer.Option(help="measured runs of each step; medians are shown")] = 20,
    only: Annotated[list[str] | None, typer.Option(help="one of " + ", ".join(STEPS))] = None,
    show_tree: Annotated[bool, typer.Option("--tree", help="list files and functions in order")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
    directory: Annotated[Path | None, typer.Option("--dir", help="folder for the replicas' files")] = None,
    docs: Annotated[Path | None, typer.Option(help=f"document to write the figures into: {PAGE}")] = None,
) -> None:
    """Count the calls of the project's own functions that one message causes: no Ray, real files and TCP."""
    for name in only or ():
        if name not in STEPS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(STEPS)}")
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-walk-", dir=directory))
    try:
        with stage(folder, repeat) as it:
            steps = list(it.steps(tuple(only or STEPS)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps({step.name: _as_json(step, show_tree) for step in steps}, indent=2))
        return
    if docs is not None:
        write_docs(steps, docs)
    console = Console(width=120)
    for step in steps:
        console.print(_table(step))
        if show_tree:
            _print_tree(console, step)


def write_docs(steps: Sequence[Step], page: Path) -> None:
    """Replace the text between the marks. Raises ValueError if the page lacks them."""
    before, mark, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
    head = ("until the answer", *(f"{role}: calls" for role in ROLES), *(f"{role}: files" for role in ROLES))
    rows = [
        (step.name, *(str(count) for counts in figures_of(step) for count in counts))
        for step in steps
        if all(role in step.least for role in ROLES)
    ]
    page.write_text(f"{before}{BEGIN}\n\n{table(head, rows)}\n{END}{after}")


def figures_of(step: Step) -> tuple[list[int], list[int]]:
    """Calls and files until the answer in the repeat with the fewest, by ``ROLES``."""
    answers = [step.least[role] for role in ROLES]
    return [answer.calls for answer in answers], [answer.files for answer in answers]


def read_docs(page: Path) -> dict[str, tuple[list[int], list[int]]]:
    """What ``write_docs`` has written, by step."""
    text = page.read_text().partition(BEGIN)[2].partition(END)[0]
    found: dict[str, tuple[list[int], list[int]]] = {}
    for line in text.strip().splitlines()[2:]:
        name, *counts = (cell.strip() for cell in line.strip().strip("|").split("|"))
        numbers = list(map(int, counts))
        found[name] = numbers[: len(ROLES)], numbers[len(ROLES) :]
    return found


def _table(step: Step) -> Table:
    table = Table(
        title=f"{step.name}: median of {len(step.kept)} ({step.spoilt} others had a tick or timer)",
        title_justify="left",
    )
    table.add_column("")
    for until in ("until the answer", "until calm"):
        for name in ("calls", "files", "changes of file"):
            table.add_column(f"{until}:\n{name}" if name == "calls" else f"\n{name}", justify="right")
    for role in sorted(step.figures, key=lambda role: (role != TOTAL, role)):
        figure = step.figures[role]
        table.add_row(
            role, *(str(count) for tally in (figure.answer, figure.calm) for count in astuple(tally))
        )
    return table


def _print_tree(console: Console, step: Step) -> None:
    for role, calls in sorted(step.typical.roles.items()):
        console.print(f"\n[bold]{step.name}, {role}[/bold]")
        for file, functions in tree(calls).items():
            names = (f"{name} ×{count}" if count > 1 else name for name, count in functions.items())
            console.print(f"  [cyan]{file}[/cyan]  {', '.join(names)}", highlight=False)


def _as_json(step: Step, show_tree: bool) -> dict[str, Any]:
    found: dict[str, Any] = {role: asdict(figure) for role, figure in step.figures.items()}
    if show_tree:
        found["tree"] = {role: tree(calls) for role, calls in step.typical.roles.items()}
    return found


if __name__ == "__main__":
    typer.run(main)
