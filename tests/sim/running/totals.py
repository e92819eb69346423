"""Totals over schedules: a run prints them and writes them to a file; those of several runs can be added."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tests.sim.faults.plan import GROUP_KINDS, ONE_GROUP_KINDS
from tests.sim.group.simulation import Figures
from tests.sim.running import coverage
from tests.support.faults.absence import lines, unseen
from tests.support.faults.tables import Cells, Grid, Sheet

_FROM_FIGURES = tuple(f.name for f in fields(Figures) if f.name != "trace")
#: Those figures of a history that the table shows.
_FROM_HISTORY = (
    "events",
    "messages",
    "records read",
    "transactions",
    "transactions committed",
    "transactions rolled back",
)


@dataclass(slots=True)
class Told:
    """The result of one schedule. Sent between processes."""

    seed: int
    workload: str
    groups: int
    figures: Figures
    broken: str | None
    faults: Counter[str]
    aim: str = ""
    cells: Cells = field(default_factory=Cells)
    history: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Name of the range of seeds that this schedule belongs to."""
        several = " in several groups" if self.groups > 1 else ""
        return f"{self.workload}{several}{', aimed' if self.aim else ''}"


@dataclass(slots=True)
class Totals:
    """Totals of one run or of several."""

    schedules: int = 0
    broken: int = 0
    wall_s: float = 0.0
    commits: list[str] = field(default_factory=list)
    #: [workload, first seed, seeds]
    seeds: list[list[Any]] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    history: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    cells: Cells = field(default_factory=Cells)
    #: The same for schedules over several groups, which have their own phases and faults.
    across: Cells = field(default_factory=Cells)
    #: "2 groups: virtual seconds" and the like.
    groups: Counter[str] = field(default_factory=Counter)
    #: [commit, command that runs the schedule again, what was broken]
    violations: list[list[str]] = field(default_factory=list)

    def add(self, told: Told) -> None:
        self.schedules += 1
        self.broken += told.broken is not None
        self.figures.update({name: getattr(told.figures, name) for name in _FROM_FIGURES})
        self.history += told.history
        self.faults += told.faults
        if told.groups == 1:
            self.cells += told.cells
        else:
            self.across += told.cells
        group = "1 group" if told.groups == 1 else f"{told.groups} groups"
        self.groups[f"{group}: schedules"] += 1
        self.groups[f"{group}: virtual seconds"] += round(told.figures.virtual_s)
        for known in self.seeds:
            if known[0] == told.name and known[1] + known[2] == told.seed:
                known[2] += 1
                break
        else:
            self.seeds.append([told.name, told.seed, 1])

    def add_run(self, other: Totals) -> None:
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            setattr(self, item.name, mine + theirs)
        self.commits = sorted(set(self.commits))

    def overlaps(self) -> list[str]:
        """Seeds that were run more than once: they must not count more than once."""
        found, last = [], ("", 0)
        for workload, first, count in sorted(self.seeds):
            if last[0] == workload and first < last[1]:
                found.append(f"{workload} {first}..{min(last[1], first + count) - 1}")
            last = (workload, max(first + count, last[1] if last[0] == workload else 0))
        return found

    def ranges(self) -> list[tuple[str, int, int]]:
        """Workload, first seed, last seed; adjacent ranges are joined into one."""
        joined: list[tuple[str, int, int]] = []
        for workload, first, count in sorted(self.seeds):
            if joined and joined[-1][0] == workload and joined[-1][2] + 1 == first:
                first, count = joined[-1][1], first + count - joined[-1][1]
                joined.pop()
            joined.append((workload, first, first + count - 1))
        return joined

    def next_seed(self) -> int:
        """The first seed above all that were run."""
        return max((first + count for _, first, count in self.seeds), default=0)

    def virtual_s(self, *, several: bool = False) -> int:
        """Virtual seconds of all schedules, or of those over several groups."""
        ends = " groups: virtual seconds" if several else ": virtual seconds"
        return sum(n for name, n in self.groups.items() if name.endswith(ends))

    def text(self) -> str:
        f = self.figures
        return (
            f"{self.schedules:,} schedules, {self.broken} broken · "
            f"{self.schedules / max(self.wall_s, 1e-9):.1f}/s · {f['virtual_s']:,.0f} virtual s · "
            f"{f['elections']:,} elections · {f['crashes']:,} crashes · {f['repairs']:,} repairs · "
            f"{f['wipes']:,} wiped disks · {f['acknowledged']:,} acknowledged"
        )

    def show(self, console: Console) -> None:
        console.print(self.text())
        console.print(" · ".join(f"{name} {n:,}" for name, n in sorted(self.groups.items())))
        if not (self.cells or self.across):
            return
        history = [(name, f"{self.history[name]:,}") for name in _FROM_HISTORY]
        console.print(Sheet(("history", "sum"), history).table())
        for title, found in self._grids():
            console.print(found.table(title))
            console.print(found.missing())
            for line in found.named():
                console.print(f"[yellow]not reached: {line}")
        for commit, again, broken in self.violations:
            console.print(f"[bold red]broken at {commit}: {broken}[/]\n  {again}")
        console.print(f"{self.faults.total():,} faults struck; commits {', '.join(self.commits)}")
        kinds = GROUP_KINDS if self.across else ONE_GROUP_KINDS
        for line in lines(unseen(kinds, self.faults, lambda _: f"in none of {self.schedules:,} schedules")):
            console.print(f"[yellow]did not strike: {line}")

    def _grids(self) -> list[tuple[str, Grid]]:
        grids = [("Faults by phase", coverage.grid(self.cells))] if self.cells else []
        if self.across:
            grids.append(("Faults by phase, several groups", coverage.across_grid(self.across)))
        return grids

    def dump(self, file: Path) -> None:
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("cells", "across"):
            data[name] = [[phase, kind, n] for (phase, kind), n in sorted(data[name].items())]
        data["seeds"] = [[name, first, last - first + 1] for name, first, last in self.ranges()]
        written = file.with_name(file.name + ".new")  # the old file stays whole if this write is interrupted
        written.write_text(json.dumps(data, indent=1) + "\n")
        written.replace(file)

    @staticmethod
    def load(file: Path) -> Totals:
        data = json.loads(file.read_text())
        for name in ("cells", "across"):
            data[name] = Cells({(phase, kind): n for phase, kind, n in data.get(name, ())})
        for name in ("figures", "history", "faults", "groups"):
            data[name] = Counter(data.get(name, {}))
        return Totals(**data)

    def markdown(self) -> str:
        """Totals, seeds and faults by phase as Markdown, for a document."""
        seeds = ", ".join(f"{w} {first} to {last}" for w, first, last in self.ranges())
        rows = [
            ("schedules", f"{self.schedules:,}"),
            ("of them with a broken promise", f"{self.broken:,}"),
            ("virtual seconds", f"{self.figures['virtual_s']:,.0f}"),
            *((name, f"{n:,}") for name, n in sorted(self.groups.items())),
            ("seeds", seeds),
            ("commits", ", ".join(self.commits)),
            ("faults that struck", f"{self.faults.total():,}"),
            *((name, f"{self.figures[name]:,}") for name in ("elections", "crashes", "repairs", "wipes")),
            *((f"history: {name}", f"{self.history[name]:,}") for name in _FROM_HISTORY),
        ]
        parts = [Sheet(("", ""), rows, left=2).markdown()]
        for _, found in self._grids():
            parts += [
                found.markdown(),
                "\n".join((found.missing(), *(f"- {line}" for line in found.named()))),
            ]
        return "\n\n".join(parts)


def commit_hash() -> str:
    """The commit of the code that ran; marked if there are uncommitted changes."""
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return shown.stdout.strip() or "unknown"


def total(files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Add up the files that several runs wrote with --coverage-json; print the totals, and as Markdown."""
    console, sums = Console(), Totals()
    for file in files:
        sums.add_run(Totals.load(file))
    sums.show(console)
    print(sums.markdown())
    if twice := sums.overlaps():
        console.print(f"[bold red]counted more than once: {', '.join(twice)}")
        raise typer.Exit(1)
