"""``python -m tests.sim campaign FILE``: runs schedules for hours, in any number of runs.

FILE has the totals of all runs so far, and the seed with which the next run continues. It is written every
minute and at the end, also if the run is ended by a signal. A violation is recorded in it with its commit and
the command to reproduce it, and the campaign continues. As long as faults and phases of transactions are left
that have not met, some schedules are aimed at them (steering.py).
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.sim.running.runner import (
    CHAOS_S,
    ENDED,
    GROUPS,
    OF_GROUPS,
    OF_REACH,
    Options,
    Schedule,
    reached,
    run,
    schedules,
)
from tests.sim.running.steering import Steering
from tests.sim.running.totals import Totals
from tests.sim.running.workers import Ending, Workers
from tests.support.faults.progress import bar

WRITE_EVERY_S = 60.0
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """``90``, ``90s``, ``40m`` or ``2h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 40m or 2h")
    return float(found[1]) * UNITS_S[found[2] or "s"]


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Lock FILE: two campaigns with the same file would lose each other's results."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(file.name + ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise typer.BadParameter(f"another campaign adds to {file}; give this one its own FILE") from None
        yield


class _Course:
    """The progress of a campaign, and when it ends."""

    def __init__(self, totals: Totals, file: Path, console: Console, wanted_s: float, wall_s: float) -> None:
        self._totals, self._file, self._console = totals, file, console
        self._wanted_s, self._until = wanted_s, time.monotonic() + wall_s
        self._written = time.monotonic()
        self.progress = bar(console)
        self._task = self.progress.add_task("virtual seconds", total=int(wanted_s) or None)

    def goes_on(self) -> bool:
        done = self._wanted_s and self._totals.virtual_s() >= self._wanted_s
        return not done and time.monotonic() < self._until

    def told(self) -> None:
        """Show the progress; called after every schedule."""
        totals, now = self._totals, time.monotonic()
        several = totals.virtual_s(several=True)
        text = f"{several:,} s in several groups" + f", {totals.broken} broken" * (totals.broken > 0)
        self.progress.update(self._task, completed=totals.virtual_s(), description=text)
        if now >= self._written + WRITE_EVERY_S:
            self._written = now
            totals.dump(self._file)
            if not self._console.is_terminal:  # it shows no progress bar
                self._console.print(totals.text())


def campaign(
    file: Annotated[Path, typer.Argument(help="Totals of all runs; made by the first one.", dir_okay=False)],
    for_: Annotated[str, typer.Option("--for", help="Wall-clock time, as 90s, 40m or 2h.")] = "40m",
    until: Annotated[int, typer.Option(help="Virtual seconds in FILE that are enough; 0: no limit.")] = 0,
    groups: Annotated[str, typer.Option(help=f"Broker groups: {OF_GROUPS}.")] = "mixed",
    chaos: Annotated[float, typer.Option(help="Virtual seconds of faults of each schedule.")] = CHAOS_S,
    reach: Annotated[list[str] | None, typer.Option(help=f"{OF_REACH}; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first; default: behind the last in FILE.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes; 0: one per core.")] = 0,
) -> None:
    """Run schedules for a given time, or until FILE has enough of them, and add the results to FILE."""
    if groups not in GROUPS:
        raise typer.BadParameter(f"--groups is one of {', '.join(GROUPS)}")
    options = Options(chaos_s=chaos, reach=reached(reach))
    wall_s, console = seconds(for_), Console()
    with _alone(file), Ending() as ending:
        totals = Totals.load(file) if file.exists() else Totals()
        broken = totals.broken
        course = _Course(totals, file, console, until, wall_s)
        first = totals.next_seed() if seed is None else seed

        def work() -> Iterator[Schedule]:
            endless = Steering(totals, groups, first).among(schedules(itertools.count(first), None, groups))
            return itertools.takewhile(lambda _: course.goes_on(), endless)

        try:
            with course.progress, Workers(jobs or os.cpu_count() or 1, ending) as workers:
                run(work(), options, workers, totals, console, keep_going=True, small=True, told=course.told)
        finally:
            totals.dump(file)
            totals.show(console)
    raise typer.Exit(min(totals.broken - broken, 100) or (ENDED if ending.asked else 0))
