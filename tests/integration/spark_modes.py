"""The modes of a Spark session, for fixtures: the tests of source and sink are the same in each mode.

A process has one session at a time, and starting one costs as much CPU time as the tests of a whole module.
So ``shared`` keeps the last session for the next module if that imports ``shared``; before all other modules
the fixture ``room`` (conftest.py) ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Local mode starts no executors, so it is tested in every run; the other modes only in `make test-long`.
MODES = [
    "local",
    pytest.param("raydp", marks=pytest.mark.long),
    pytest.param("standalone", marks=pytest.mark.long),
]

_kept: dict[str, SparkSession] = {}  # by mode, at most one


def shared(mode: str) -> SparkSession:
    """This process's session in that mode, connected to the shared cluster.

    Two tasks run at a time, in two executors if the mode has any; in local mode a failed task is retried
    once.
    """
    from escrowmq.spark_integration import spark_session

    if mode not in _kept:
        make_room()
        # A Python worker has 15 s to connect back, which are too few for three JVMs that start on two cores.
        configs = {"spark.sql.shuffle.partitions": "2", "spark.python.authenticate.socketTimeout": "60s"}
        settings: dict[str, Any] = {"executors": 2, "cores": 1, "memory": "512m"}
        if mode == "local":
            settings = {"cores": 2}
            configs["spark.master"] = "local[2,2]"  # otherwise a failed task is not retried
        session = spark_session("tests", mode=mode, quick_start=True, configs=configs, **settings)
        session.sparkContext.setLogLevel("ERROR")
        _kept[mode] = session
    return _kept[mode]


def make_room() -> None:
    """End the kept session, if there is one."""
    from escrowmq.spark_integration import stop_session

    while _kept:
        stop_session(_kept.popitem()[1])
