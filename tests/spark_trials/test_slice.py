"""A slice of ``make spark-trials`` for every test run: a driver and a leader are killed."""

from __future__ import annotations

import pytest

from tests.spark_trials.plan import Step, Strike, Trial, Victim
from tests.spark_trials.running import Run

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

SEED = 11
#: Workers that die, and code that raises: test_spark_sink.py, and the trials of ``make spark-trials``.
TRIAL = Trial(
    0,
    SEED,
    1,
    (40, 300, 8),
    (Strike(0, Victim.DRIVER, Step.INTENT, 1, 0.5), Strike(1, Victim.LEADER, Step.SENDING, 2, 0.5)),
)


def test_every_row_is_there_once_whatever_is_killed() -> None:
    import ray

    from escrowmq.cluster.embedded_ray import start_ray
    from escrowmq.cluster.settings import RaySettings

    ours = not ray.is_initialized()
    if ours:
        start_ray(RaySettings(num_cpus=8), namespace="trials")
    try:
        outcome = Run((TRIAL,)).run()
    finally:
        if ours:
            ray.shutdown()
    assert outcome.problems == [] and outcome.missed == []
    assert (outcome.trials, outcome.rows, outcome.starts) == (1, 348, 2)
