"""``make load``: runs the experiments one after another; writes a JSON file and a Markdown page."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.load import crowd, followers, opened, polls
from benchmarks.load.overload import OverloadPlan, overload
from benchmarks.load.page import render
from benchmarks.measure import machine

EXPERIMENTS = ("overload", "open", "polls", "crowd", "slow", "dead")


def main(
    minutes: Annotated[float, typer.Option(help="minutes of overload")] = 10.0,
    open_transactions: Annotated[int, typer.Option("--open", help="transactions to leave open")] = 1_000_000,
    parked: Annotated[int, typer.Option(help="number of parked polls of producers")] = 10_000,
    apps: Annotated[int, typer.Option(help="apps that the parked producers belong to")] = 200,
    poll_seconds: Annotated[
        float, typer.Option(help="longest time that a real feedback actor parks a poll")
    ] = 60.0,
    log_mb: Annotated[int, typer.Option(help="MB of log that a dead follower misses")] = 1_000,
    seconds: Annotated[float, typer.Option(help="length of the other measurements")] = 10.0,
    only: Annotated[list[str] | None, typer.Option(help="one of " + ", ".join(EXPERIMENTS))] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="folder on the disk to use")] = None,
    output: Annotated[Path, typer.Option(help="folder for the figures: JSON, SVG, Markdown")] = Path(
        "artifacts/load"
    ),
) -> None:
    """Measure overload, a million open transactions, ten thousand parked polls, slow and dead followers."""
    wanted = only or list(EXPERIMENTS)
    for name in wanted:
        if name not in EXPERIMENTS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(EXPERIMENTS)}")
    console = Console(width=140)
    output.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-load-", dir=directory))
    figures: dict[str, Any] = {"machine": machine(folder)}

    def run(name: str, say: Callable[[str], None]) -> dict[str, Any]:  # each in its own folder
        where = folder / name
        if name == "overload":
            with escrowmq.start_local(groups=1, replicas=3, data_dir=where) as cluster:
                pids = brokers(GroupUnderTest(cluster))
                return overload(cluster, pids, OverloadPlan(seconds=60 * minutes), output, say)
        if name == "open":
            return opened.measure(where, open_transactions, seconds, say)
        if name == "polls":
            return polls.measure(where, parked, apps, poll_seconds, seconds, say)
        if name == "crowd":
            return crowd.measure(where, parked, apps, seconds, say)
        if name == "slow":
            return followers.slow(where, seconds, say)
        return followers.dead(where, log_mb, seconds, say)

    try:
        for name in wanted:
            with progress(console, name) as say:
                figures[name] = run(name, say)
            shutil.rmtree(folder / name, ignore_errors=True)
            (output / "load.json").write_text(json.dumps(figures, indent=1, default=str) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = render(figures)
    (output / "load.md").write_text(text)
    console.print(text)
    problems = [f"{name}: {p}" for name in wanted for p in figures[name].get("violations", ())]
    for problem in problems:
        console.print(f"[red]{problem}")
    raise typer.Exit(code=1 if problems else 0)


def brokers(group: GroupUnderTest) -> dict[str, int]:
    """Process ids of the three replicas, by role."""
    return {name: pid for name, pid in group.pids().items() if name.startswith(("leader", "follower"))}


@contextmanager
def progress(console: Console, name: str) -> Iterator[Callable[[str], None]]:
    """A progress line while an experiment runs; its messages are printed above it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(name, total=None)
        begin = time.monotonic()

        def say(text: str) -> None:
            console.print(f"[dim]{time.monotonic() - begin:7.1f}[/dim] {name}: {text}", highlight=False)

        yield say


if __name__ == "__main__":
    typer.run(main)
