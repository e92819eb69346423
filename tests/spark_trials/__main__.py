"""``python -m tests.spark_trials``: kill trials from a seed; exit code 0 if every row is there once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tests.spark_trials.plan import DECK, long_trial, trials
from tests.spark_trials.running import Run


def main(
    trials_: Annotated[int, typer.Option("--trials", help="How many.")] = 50,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 1,
    long: Annotated[int, typer.Option(help="Epochs of one long query with an aggregation; 0: none.")] = 100,
    kills: Annotated[int, typer.Option(help="Strikes in the long query.")] = 10,
    only: Annotated[int, typer.Option(help="Only the trial of this number.")] = -1,
) -> None:
    """Kill drivers, workers, brokers at drawn steps of Spark's sink, and count every row."""
    import ray

    from escrowmq.cluster.embedded_ray import start_ray
    from escrowmq.cluster.settings import RaySettings

    planned = [trial for trial in trials(seed, trials_) if only in (-1, trial.number)]
    if long and only == -1:
        planned.append(long_trial(seed, long, min(kills, long)))
    start_ray(RaySettings(num_cpus=12), namespace="trials")
    try:
        outcome = Run(planned, lambda line: print(line, flush=True)).run()
    finally:
        ray.shutdown()
    print(
        f"{outcome.trials} trials, {outcome.epochs} epochs, {outcome.rows} rows, "
        f"{sum(outcome.strikes.values())} strikes of {len(outcome.strikes)} kinds (of {len(DECK)}), "
        f"{outcome.starts} drivers, {outcome.seconds:.0f} s"
    )
    for missed in outcome.missed:
        print(f"did not happen: {missed}")
    for problem in outcome.problems:
        print(problem)
    if outcome.problems:
        print(f"again: make spark-trials TRIALS={trials_} SEED={seed}")
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
