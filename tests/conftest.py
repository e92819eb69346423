"""For all tests: no deadline for Hypothesis' examples, which files share a worker, and which start first.

Hypothesis judges what an example does, never how long it takes on a busy machine.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

settings.register_profile("here", deadline=None)
settings.load_profile("here")

#: The longest first: started last, they would run alone at the end. After them come the files without a
#: cluster, then those that share one, because a running cluster costs a sixth of a core.
LONGEST_FIRST = (
    "spark_trials/test_slice.py",
    "integration/test_spark_sessions.py",
    "integration/test_spark_batch.py",
    "integration/test_spark_stream.py",
    "integration/test_spark_cut.py",
    "integration/test_spark_sink.py",
    "integration/test_spark_dataframes.py",
    "chaos/test_slice.py",
    "integration/test_demo.py",
    "integration/test_hardened_cluster.py",
    "integration/test_three_nodes.py",
    "integration/test_ghost.py",
    "test_packaging.py",
    "integration/test_ray_cluster_yaml.py",
    "integration/test_spark_examples.py",
    "sim/test_broker_simulation.py",
    "sim/test_simulation.py",
    "sim/across/test_across.py",
    "controls/test_controls.py",
    "sim/test_ghosts.py",
    "sim/test_campaign.py",
    "sim/test_member_changes.py",
)
#: One worker runs the files of a group one after the other: they share Ray, a cluster and a JVM with a Spark
#: session; or database servers.
ON_ONE_WORKER = (
    (
        "tests/integration/test_spark_sessions.py",
        "tests/integration/test_spark_batch.py",
        "tests/integration/test_spark_stream.py",
        "tests/integration/test_spark_cut.py",
        "tests/integration/test_spark_sink.py",
        "tests/integration/test_spark_dataframes.py",
    ),
    (
        "tests/feedback/database/test_races.py",
        "tests/feedback/database/test_misuse.py",
        "tests/feedback/database/test_purging.py",
        "tests/feedback/database/test_lost_commits.py",
        "tests/feedback/database/test_async.py",
    ),
)
#: The tests of these files are independent, and together they take longer than any other file.
ONE_BY_ONE = ("tests/controls/test_controls.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    rank = {here / name: at for at, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish() -> None:
    """Freeze what is imported by now: it stays, so the garbage collector need not look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """``--dist loadfile``, except for the files above."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if file in ONE_BY_ONE:
                return nodeid
            return next((group[0] for group in ON_ONE_WORKER if file in group), file)

    return Scheduling(config, log)
