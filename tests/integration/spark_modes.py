"""The ways to a session, for fixtures: tests of source and sink are the same under each of them.

A process has one session at a time, and to start one costs as much processor time as the tests of a whole
module. So ``shared`` keeps the last one for the next module, if that is one of those which import ``shared``;
for all others the fixture ``room`` (conftest.py) has ended it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Without executors to start, so it is the one of every run; the others have theirs in `make test-long`.
MODES = [
    "local",
    pytest.param("raydp", marks=pytest.mark.long),
    pytest.param("standalone", marks=pytest.mark.long),
]

_kept: dict[str, SparkSession] = {}  # by mode, at most one


def shared(mode: str) -> SparkSession:
    """The session of this process in that mode, in the cluster that is shared as well.

    Two tasks run at a time, in two executors if there are any; without, a task that fails is tried once more.
    """
    from escrowmq.spark_integration import spark_session

    if mode not in _kept:
        make_room()
        configs = {"spark.sql.shuffle.partitions": "2"}
        settings: dict[str, Any] = {"executors": 2, "cores": 1, "memory": "512m"}
        if mode == "local":
            settings = {"cores": 2}
            configs["spark.master"] = "local[2,2]"  # else a task that fails is not repeated
        session = spark_session("tests", mode=mode, quick_start=True, configs=configs, **settings)
        session.sparkContext.setLogLevel("ERROR")
        _kept[mode] = session
    return _kept[mode]


def make_room() -> None:
    """End the session that is kept, if there is one."""
    from escrowmq.spark_integration import stop_session

    while _kept:
        stop_session(_kept.popitem()[1])
