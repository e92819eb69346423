"""A slice of ``make spark-trials`` for ``make test-long``: a driver is killed after its intent.

It starts Ray, a cluster and Spark, twice, and takes two minutes. What the next driver does with an intent,
leaders that die, Python workers that are killed, and code that raises: test_spark_sink.py.
"""

from __future__ import annotations

import pytest

from tests.spark_trials.plan import Step, Strike, Trial, Victim
from tests.spark_trials.running import Run

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(400)]

SEED = 11
TRIAL = Trial(0, SEED, 1, (40, 300), (Strike(0, Victim.DRIVER, Step.INTENT, 1, 0.5),))


def test_every_row_is_there_once_whatever_is_killed() -> None:
    import ray

    from escrowmq.cluster.ray_use import start_ray
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
    assert (outcome.trials, outcome.rows, outcome.starts) == (1, 340, 2)
