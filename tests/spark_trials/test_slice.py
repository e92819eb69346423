"""A slice of ``make spark-trials`` for every test run: a driver, a worker, and a leader are killed."""

from __future__ import annotations

import pytest

from tests.spark_trials.plan import Step, Strike, Trial, Victim
from tests.spark_trials.running import Run

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

SEED = 11
TRIALS = (
    Trial(
        0,
        SEED,
        1,
        (40, 40, 8),
        (Strike(0, Victim.DRIVER, Step.INTENT, 1, 0.5), Strike(1, Victim.RAISE, Step.FINISHED, 2, 0.5)),
    ),
    Trial(
        1,
        SEED,
        1,
        (40, 300, 8),
        (Strike(0, Victim.WORKER, Step.COMMIT_SENT, 0, 0.5), Strike(1, Victim.LEADER, Step.SENDING, 1, 0.5)),
    ),
)


def test_every_row_is_there_once_whatever_is_killed() -> None:
    import ray

    from escrowmq.cluster.embedded_ray import start_ray
    from escrowmq.cluster.settings import RaySettings

    ours = not ray.is_initialized()
    if ours:
        start_ray(RaySettings(num_cpus=8), namespace="trials")
    try:
        outcome = Run(TRIALS).run()
    finally:
        if ours:
            ray.shutdown()
    assert outcome.problems == [] and outcome.missed == []
    assert (outcome.trials, outcome.rows, outcome.starts) == (2, 436, 2)
