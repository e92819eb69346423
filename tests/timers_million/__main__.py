"""``python -m tests.timers_million``: exit code 0 if every message came once and none early."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from tests.support.faults.progress import bar
from tests.support.faults.replaying import command
from tests.timers_million.running import RunPlan, run


def main(
    messages: Annotated[int, typer.Option(help="How many; a multiple of 5,000.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Of the moments of the kills.")] = 1,
    seconds: Annotated[int, typer.Option(help="Within which all become due.")] = 60,
) -> None:
    """Schedule messages, kill everything while they are sent, wait and come, and count what comes."""
    plan = RunPlan(seed=seed, messages=messages, span_ms=1000 * seconds)
    with bar(Console()) as shown:
        task = shown.add_task("started", total=2 * messages)  # each is acknowledged, and read
        out = run(plan, lambda kind, done: shown.update(task, description=kind, completed=done))
    for line in out.struck:
        print(f"killed {line}")
    starts = ", ".join(f"{took:.1f}" for took in out.starts_s)
    print(
        f"{out.acknowledged:,} acknowledged, {out.unknown:,} without an answer, {out.read:,} read, the last "
        f"{out.late_ms / 1000:.1f} s after its time; starts took {starts} s; {len(out.problems)} problems, "
        f"{out.seconds:.0f} s"
    )
    for problem in out.problems:
        print(problem)
    if out.problems:
        print(f"again: {command('tests.timers_million', messages=messages, seed=seed, seconds=seconds)}")
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
