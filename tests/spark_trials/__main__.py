"""``python -m tests.spark_trials``: kill trials from a seed; exit code 0 if every row is there once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from tests.spark_trials.plan import DECK, grid, long_trial, trials
from tests.spark_trials.running import Run
from tests.support.faults.absence import lines, not_drawn, unseen
from tests.support.faults.replaying import command


def main(
    trials_: Annotated[int, typer.Option("--trials", help="How many.")] = 50,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 1,
    long: Annotated[int, typer.Option(help="Epochs of one long query with an aggregation; 0: none.")] = 100,
    kills: Annotated[int, typer.Option(help="Strikes in the long query.")] = 10,
    only: Annotated[int, typer.Option(help="Only the trial of this number.")] = -1,
) -> None:
    """Kill drivers, workers, brokers at drawn steps of Spark's sink, and count every row."""
    import ray

    from escrowmq.cluster.ray_use import start_ray
    from escrowmq.cluster.settings import RaySettings

    planned = [trial for trial in trials(seed, trials_) if only in (-1, trial.number)]
    if long and only == -1:
        planned.append(long_trial(seed, long, min(kills, long)))
    start_ray(RaySettings(num_cpus=12), namespace="trials")
    try:
        outcome = Run(planned, lambda line: print(line, flush=True)).run()
    finally:
        ray.shutdown()
    found = grid(outcome.strikes)
    Console().print(found.table("Strikes by step"))
    print(
        f"{outcome.trials} trials, {outcome.epochs} epochs, {outcome.rows} rows, "
        f"{outcome.strikes.total()} strikes of {len(outcome.strikes)} kinds (of {len(DECK)}), "
        f"{outcome.starts} drivers, {outcome.seconds:.0f} s"
    )
    drawn = {f"{s.victim.value} at {s.step.value}" for trial in planned for s in trial.strikes}
    every = [f"{victim.value} at {step.value}" for victim, step in DECK]
    for line in lines(unseen(every, drawn, lambda _: not_drawn(len(planned)))):
        print(line)
    for missed in outcome.missed:
        print(f"did not happen: {missed}")
    for problem in outcome.problems:
        print(problem)
    if outcome.problems:
        again = command("tests.spark_trials", trials=trials_, seed=seed, long=long, kills=kills)
        print(f"again: {again}   (--only NUMBER for one trial)")
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
