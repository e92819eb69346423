"""For all tests: no deadline for Hypothesis' examples, which files share a worker, which start first, and
which of the planted faults are hunted today.

Hypothesis judges what an example does, never how long it takes on a busy machine.
"""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime
from functools import cache
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
    "house/test_packaging.py",
    "integration/test_ray_cluster_yaml.py",
    "integration/test_spark_examples.py",
    "sim/group/test_broker_simulation.py",
    "sim/group/test_simulation.py",
    "sim/across/test_across.py",
    "controls/test_controls.py",
    "sim/group/test_ghosts.py",
    "sim/running/test_campaign.py",
    "sim/group/test_member_changes.py",
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

#: The planted faults (tests/controls) take two seconds each, and there are hundreds. The worker processes
#: inherit the quarter, so that all of them collect the same tests at midnight, too.
PLANTED_QUARTERS = 4
PLANTED_QUARTER = int(
    os.environ.setdefault("PLANTED_QUARTER", str(datetime.now(UTC).date().toordinal() % PLANTED_QUARTERS))
)


def pytest_report_header() -> str:
    return f"of the planted faults, quarter {PLANTED_QUARTER}; again: PLANTED_QUARTER={PLANTED_QUARTER}"


#: Tests that only compute, most of them in virtual time: however rarely they get the processor, they do the
#: same. ``make test`` runs them at the lowest priority beside those with Ray and Spark, which wait for
#: disks and processes for a third of their time.
SIMULATED = (
    *("sim", "controls", "fuzz", "history", "scenarios", "feedback/asking", "house/test_rules.py"),
    *("replication/format", "replication/log", "replication/raft", "replication/replica"),
    *("replication/sharing", "replication/state", "replication/timers"),
)
#: Of these folders: they start processes or threads, or wait for them, for a bounded time.
NOT_SIMULATED = (
    *("sim/running/test_campaign.py", "sim/running/test_minimise.py"),
    *("fuzz/test_calls.py", "fuzz/test_share_calls.py"),
    *("replication/format/test_packing.py", "replication/log/test_datadir.py"),
    *("replication/log/test_defect_k_durability.py", "replication/log/test_disk.py"),
    *("replication/log/test_journal_reading.py", "replication/replica/test_checkpoint_steps.py"),
    *("replication/replica/test_fetch_ends.py", "replication/replica/test_together.py"),
)
SIMULATED_TIMEOUT_S = 3000.0


def is_simulated(path: Path) -> bool:
    name = path.relative_to(Path(__file__).parent).as_posix()
    return name not in NOT_SIMULATED and any(name == one or name.startswith(f"{one}/") for one in SIMULATED)


#: What a test of a cluster has in its file, or gets from the fixtures of its folder.
CLUSTER_MARKERS = ("ray", "spark", "slow")
CLUSTER_FOLDER = "integration/"


@cache
def has_cluster_tests(path: Path) -> bool:
    name, text = path.relative_to(Path(__file__).parent).as_posix(), path.read_text()
    return name.startswith(CLUSTER_FOLDER) or any(f"mark.{marker}" in text for marker in CLUSTER_MARKERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which ``make test`` would run nothing: collecting all takes each worker 20 s."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    which = config.getoption("markexpr")
    if which.startswith("simulated "):
        return not is_simulated(collection_path) or None
    if which.startswith("not simulated "):
        return is_simulated(collection_path) or None
    if which.startswith("(ray or spark or slow) "):
        return not has_cluster_tests(collection_path) or None
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if is_simulated(item.path):
            item.add_marker("simulated")
            item.add_marker(pytest.mark.timeout(SIMULATED_TIMEOUT_S), append=False)
        marked = any(item.get_closest_marker(name) for name in CLUSTER_MARKERS)
        if marked and not has_cluster_tests(item.path):
            raise pytest.UsageError(f"make test does not find {item.nodeid}: no marker is in its file")
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
