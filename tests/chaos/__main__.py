"""``python -m tests.chaos``: real processes under faults drawn from a seed; exit code 0 if all held."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.chaos import report
from tests.chaos.kinds import KINDS, Kind, kind_of
from tests.chaos.machines import missing
from tests.chaos.measure import FAIL_OVER_S, FAIL_OVER_SAMPLES, FailOver, fail_over
from tests.chaos.picture import draw
from tests.chaos.plan import ROUND_TRIALS, Round
from tests.chaos.running import NothingPossible, Run, RunOptions
from tests.support.faults.absence import lines
from tests.support.faults.progress import bar

#: Exit codes: a promise was broken; nothing could be inflicted; fail-over took too long.
BROKEN, IMPOSSIBLE, TOO_SLOW = 1, 2, 3


class Screen:
    """A progress bar, and above it a line for every trial."""

    def __init__(self, console: Console, trials: int) -> None:
        self.progress = bar(console)
        self._task = self.progress.add_task("starting", total=trials)

    def round_begins(self, plan: Round) -> None:
        self._doing(plan, "a fresh cluster")

    def told(self, plan: Round, event: dict[str, Any]) -> None:
        what = event["event"]
        if what == "trial":
            overlapping = " (overlapping)" if event["overlapping"] else ""
            overlapping += f" (with {event['meanwhile']})" if event["meanwhile"] else ""
            self._say(
                f"{plan.number}.{event['number']:<3} {event['kind']:16} {event['victim'][:48]:48} "
                f"away {event['away_s']:5.2f} s{overlapping}"
            )
            self.progress.advance(self._task)
        elif what == "judged":
            counts = Counter(event["counts"])
            self._say(
                f"{plan.number}     round judged: {counts['transactions']:,} transactions, "
                f"{counts['records read']:,} records read, {len(event['violations'])} violations"
            )
        elif "text" in event:
            self._say(f"{plan.number}     {what}: {event['text'][:300]}", "yellow")
        if what == "trial begins":
            what = event["kind"]
        self._doing(plan, {"trial": "working", "started": "clients start"}.get(what, what))

    def left_out(self, reasons: dict[str, str]) -> None:
        for line in lines(reasons):
            self._say(f"will not be inflicted: {line}", "yellow")

    def failed(self, plan: Round, directory: Path, problems: list[str], replay: str) -> None:
        for problem in problems[:10]:
            self._say(problem, "red")
        self._say(f"round {plan.number} failed (seed {plan.seed}); everything is in {directory}", "bold red")
        self._say(f"again: {replay}", "bold")

    def _doing(self, plan: Round, what: str) -> None:
        where = "machines" if plan.machines else "processes"
        place = f"{plan.groups} x 3 {where}{', slow database' if plan.slow_database else ''}"
        self.progress.update(self._task, description=f"round {plan.number} ({place}): {what}")

    def _say(self, text: str, style: str = "") -> None:
        self.progress.console.print(escape(text), style=style, highlight=False)


def _kinds(names: str) -> tuple[Kind, ...]:
    try:
        return tuple(kind_of(name.strip()) for name in names.split(",")) if names else tuple(Kind)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _list(wanted: bool) -> None:
    if not wanted:
        return
    console = Console()
    table = Table("kind", "what it does", "drawn", title="Faults")
    for kind, about in KINDS.items():
        lasts = f", for {about.seconds[0]:g} to {about.seconds[1]:g} s" if any(about.seconds) else ""
        table.add_row(
            kind.value, about.text + lasts, f"{about.cards} of a deck" + (" (machines)" * about.machines)
        )
    console.print(table)
    reason = missing()
    console.print("Those on machines of their own: " + (reason or "available here"))
    raise typer.Exit


def main(
    trials: Annotated[int, typer.Option(help="faults to inflict", min=1)] = 2 * ROUND_TRIALS,
    seed: Annotated[int, typer.Option(help="the faults and what clients do are drawn from it")] = 1,
    kinds: Annotated[str, typer.Option(help="comma-separated; all if not given (see --list)")] = "",
    per_round: Annotated[int, typer.Option(help="trials per cluster, before all is checked")] = ROUND_TRIALS,
    only_round: Annotated[int | None, typer.Option(help="repeat this round of the seed alone")] = None,
    only_trial: Annotated[
        int | None, typer.Option(help="of that round this trial alone, on a fresh cluster", min=0)
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="broker groups of every round; else 1, 2 and 3 in turn", min=1, max=3)
    ] = None,
    keep_going: Annotated[bool, typer.Option(help="go on after a violation")] = False,
    keep: Annotated[bool, typer.Option(help="keep the directories of good rounds too")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write all results to this file, also after each trial")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="write the tables as markdown")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw a round: PNG or SVG")] = None,
    enforce_fail_over: Annotated[
        bool,
        typer.Option(
            "--fail-over/--no-fail-over",
            help=f"exit with {TOO_SLOW} if fail-over takes longer than {FAIL_OVER_S:g} s (p95 of at least "
            f"{FAIL_OVER_SAMPLES} undisturbed leader-kills). make chaos sets it; where other things keep the "
            "machine busy: make chaos ARGS=--no-fail-over",
        ),
    ] = False,
    list_kinds: Annotated[
        bool, typer.Option("--list", help="say what each fault does", callback=_list, is_eager=True)
    ] = False,
) -> None:
    """Inflict faults on a real cluster at work, and check that nothing was lost, doubled or early.

    Exits with 0 if all promises held, 1 if one did not, 2 if nothing of what was asked for is possible here,
    and 3 if fail-over was too slow and --fail-over is on.
    """
    # A run that is ended by SIGINT or SIGTERM cleans up, even if the shell made it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # output to a file can be followed
    console = Console()
    if only_trial is not None and (only_round is None or only_trial >= per_round):
        raise typer.BadParameter("--only-trial is the number of a trial of the round that --only-round names")
    options = RunOptions(
        seed,
        trials,
        per_round,
        _kinds(kinds),
        only=only_round,
        only_trial=only_trial,
        groups=groups,
        keep_going=keep_going,
        keep=keep,
    )
    screen = Screen(console, sum(len(plan.faults) for plan in options.plans()))
    run = Run(options, screen, missing(), lambda results: report.write(results, json_file, markdown))
    try:
        with screen.progress:
            good = run.run()
    except NothingPossible as error:
        console.print(f"[bold red]nothing of this can be inflicted on this machine: {escape(str(error))}")
        raise typer.Exit(IMPOSSIBLE) from None
    finally:
        report.write(run.results, json_file, markdown)
    report.show(run.results, console)
    if picture is not None and not draw(run.results, picture):
        console.print("[yellow]no round came to its end: there is nothing to draw")
    raise typer.Exit(exit_code(good, fail_over(run.results.trials), enforce_fail_over, console))


def exit_code(good: bool, found: FailOver | None, enforced: bool, console: Console) -> int:
    """The run's exit code; prints a line if the fail-over decides it."""
    too_slow = found is not None and found.held is False
    if found is not None and too_slow:
        fate = f"the run fails ({TOO_SLOW})" if enforced else "told only: --fail-over is off"
        console.print(f"[bold red]{escape(found.text())}: {fate}")
    if not good:
        return BROKEN
    return TOO_SLOW if enforced and too_slow else 0


if __name__ == "__main__":
    typer.run(main)
