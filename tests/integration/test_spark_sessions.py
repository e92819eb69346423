"""The same in every mode: a session reads what is committed, survives its executors, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import escrowmq
from escrowmq.replication.errors import ConfigError, Unavailable
from escrowmq.replication.model import Message
from escrowmq.spark_integration import spark_session, stop_session
from escrowmq.spark_integration.session.request import executor_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(240)]
Unique = Callable[[str], str]
MESSAGES, PARTITIONS = 400, 4


# In every run, test_spark_batch tests RayDP's sessions and the other modules test local ones.
MODES = [pytest.param(mode, marks=pytest.mark.long) for mode in ("standalone", "raydp", "local")]


@pytest.fixture(scope="module", params=MODES)
def session(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[SparkSession]:
    before, children = free_cpus(), java_children()
    spark = spark_session(f"sessions-{request.param}", mode=request.param, quick_start=True)
    yield spark
    stop_session(spark)
    stop_session(spark)  # used to call a JVM that was gone
    assert java_children() == children, "stop_session left its JVM behind"
    until(lambda: free_cpus() >= before, "stop_session left executors behind")


@pytest.fixture(scope="module")
def numbers(cluster: Cluster) -> str:
    """A topic with the numbers below MESSAGES, and some messages that were rolled back."""
    topic = f"numbers-{os.getpid()}"
    cluster.admin.create_topic(topic, partitions=PARTITIONS)
    with cluster.producer(app="sessions") as producer:
        for number in range(MESSAGES):
            producer.send(Message(topic, b"%d" % number, partition=number % PARTITIONS))
        with producer.transaction() as tx:
            tx.send(Message(topic, b"1000000"))
            tx.prepare()
            tx.rollback()
    return topic


def free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))  # type: ignore[no-untyped-call]


def java_children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.name() == "java"}


def until(holds: Callable[[], Any], otherwise: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def total(spark: SparkSession, topic: str, pause_s: float = 0.0) -> int:
    """Sum of the topic's numbers; each task sleeps ``pause_s`` first."""
    rows = spark.read.format("escrowmq").option("subscribe", topic).load().select("value")

    def resting(batches: Iterator[Any]) -> Iterator[Any]:
        time.sleep(pause_s)
        yield from batches

    found = rows.mapInArrow(resting, rows.schema).selectExpr("sum(CAST(CAST(value AS STRING) AS INT)) AS s")
    return int(found.collect()[0].s)


def executor_pid(spark: SparkSession) -> int:
    """Process id of the JVM that runs a task, as seen by the task."""

    def parents(_: int) -> list[int]:
        return [parent.pid for parent in psutil.Process().parents() if parent.name() == "java"]

    parents.__module__ = "__main__"  # sent whole: executors need not find this file
    return int(spark.sparkContext.parallelize([0], 1).map(parents).collect()[0][0])


# First the tests that start their own sessions: a process has one at a time.


@pytest.mark.long
def test_a_session_that_was_stopped_by_spark_s_own_means_makes_room_for_the_next(cluster: Cluster) -> None:
    spark_session("first", mode="local", quick_start=True, configs={"spark.driver.memory": "600m"}).stop()
    spark = escrowmq.spark_session("second", mode="local", quick_start=True, memory="700m")
    try:
        heap = spark.sparkContext._jvm.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]
        assert heap > 640 << 20, "the second session has a JVM of its own, not the first one's"
    finally:
        stop_session(spark)
        stop_session(spark)  # already ended: nothing to do


def test_a_start_that_takes_too_long_is_given_up_with_nothing_left_behind(cluster: Cluster) -> None:
    children, cpus = java_children(), free_cpus()
    for mode in ("local", "standalone", "raydp"):
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"not start within 0\.3 s"):
            spark_session("hasty", mode=mode, start_timeout_s=0.3)
        assert time.monotonic() - began < 30
        assert java_children() == children
        until(lambda: free_cpus() >= cpus, "the attempt holds CPUs")


ORPHANS = """
import os, psutil, signal, sys
from escrowmq.spark_integration import spark_session
from escrowmq.spark_integration.session import standalone
import ray
spark = spark_session("orphans", mode="standalone", address=sys.argv[1], quick_start=True)
cluster = standalone._running[0]
daemons = ray.get([actor.pid.remote() for actor in (cluster.master, *cluster.workers.values())])
executors = [child.pid for pid in daemons for child in psutil.Process(pid).children(recursive=True)]
driver = [child.pid for child in psutil.Process().children(recursive=True)]
print(*daemons, *executors, *driver, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_nothing_outlives_a_driver_that_is_killed(cluster: Cluster) -> None:
    before = free_cpus()
    command = [sys.executable, "-c", ORPHANS, cluster.address]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr[-3000:]
    pids = [int(word) for word in run.stdout.split()]
    assert len(pids) >= 4, "the Master, a Worker, an executor and the driver's JVM"
    until(lambda: not any(map(psutil.pid_exists, pids)), f"of {pids} some live on")
    until(lambda: free_cpus() >= before, "CPUs are still held")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["standalone", "raydp"])
def test_executors_come_while_tasks_wait_and_go_when_they_are_idle(cluster: Cluster, mode: str) -> None:
    before = free_cpus()
    soon = {"spark.dynamicAllocation.executorIdleTimeout": "3s"}
    spark = spark_session(
        "dynamic", mode=mode, executors=(1, 2), memory="512m", quick_start=True, configs=soon
    )
    try:
        assert executor_count(spark) == 1

        def rest(number: int) -> int:
            time.sleep(1.5)
            return number

        rest.__module__ = "__main__"  # sent whole: executors need not find this file
        tasks = spark.sparkContext.parallelize(range(24), 24).map(rest)
        found: list[int] = []
        job = threading.Thread(target=lambda: found.append(tasks.sum()))
        job.start()
        until(lambda: executor_count(spark) == 2, "no second executor while tasks wait", 60)
        job.join(120)
        assert found == [sum(range(24))]
        until(lambda: executor_count(spark) == 1, "the idle executor stays", 60)
        until(lambda: free_cpus() >= before - 1.0, "its CPU is still held", 60)
    finally:
        stop_session(spark)
    until(lambda: free_cpus() >= before, "stop_session left executors behind")


def test_a_session_reads_what_is_committed(session: SparkSession, numbers: str) -> None:
    assert total(session, numbers) == sum(range(MESSAGES))


@pytest.mark.long
def test_a_killed_executor_is_replaced_and_the_job_ends_well(session: SparkSession, numbers: str) -> None:
    if session.sparkContext.master.startswith("local"):
        assert executor_pid(session) in java_children(), "threads of the driver's own JVM, nothing to replace"
        return
    victim = executor_pid(session)
    found: list[int] = []
    # Four tasks of a second each on one core: the kill comes while the second runs.
    job = threading.Thread(target=lambda: found.append(total(session, numbers, pause_s=1.0)))
    job.start()
    done = session.sparkContext.statusTracker()
    until(
        lambda: any(done.getStageInfo(s).numCompletedTasks for s in done.getActiveStageIds()), "no task ends"
    )
    os.kill(victim, signal.SIGKILL)
    job.join(120)
    assert found == [sum(range(MESSAGES))]
    assert executor_pid(session) != victim


def test_a_second_session_is_refused_while_one_runs(session: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"already has a Spark session \(sessions-"):
        spark_session("second", mode="local")
