"""Spark on three Ray nodes, of which one is killed, and later another: a batch and a stream end correctly.

The stream copies one topic to another, and the second must have each message once. The nodes are three
raylets on this machine: the brokers and the driver are on the first, and each of the other two has an
executor. It needs its own process, because a process can be connected to only one Ray cluster. Run it with
``make spark-nodes``, or by hand: ``python -m tests.integration.spark_nodes_scenario --mode standalone``.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.cluster_utils import Cluster as RayCluster

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.cluster.ray_use import system_config
from escrowmq.cluster.settings import RaySettings
from escrowmq.spark_integration import provide_java, spark_session, stop_session
from escrowmq.spark_integration.session.request import executor_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGAN = time.monotonic()
PATIENCE_S = 150.0
MESSAGES, PARTITIONS = 600, 6
TOPIC, COPIES = "numbers", "copies"
#: All nodes have the same address here, so a resource that only the head has places RayDP's master with the
#: driver.
ON_THE_HEAD = {"spark.ray.raydp_spark_master.actor.resource.node:__internal_head__": "0.001"}


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.2)


class Nodes:
    """A head that holds the brokers, and workers with room for one executor each."""

    def __init__(self, directory: Path) -> None:
        self.machines = RayCluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "node_name": "head",
                "include_dashboard": False,
                "temp_dir": str(directory / "ray"),
                # Wait longer on a busy machine: a node that is only slow must not be declared dead.
                "_system_config": system_config(RaySettings(health_check_failures=10)),
            },
        )
        self.workers = {name: self.add(name) for name in ("w1", "w2")}

    def add(self, name: str) -> Any:
        return self.machines.add_node(num_cpus=1, node_name=name)

    def kill(self, name: str) -> None:
        self.machines.remove_node(self.workers.pop(name), allow_graceful=False)


def total(spark: SparkSession, pause_s: float = 0.0) -> int:
    rows = spark.read.format("escrowmq").option("subscribe", TOPIC).load().select("value")

    def resting(batches: Iterator[Any]) -> Iterator[Any]:
        time.sleep(pause_s)
        yield from batches

    resting.__module__ = "__main__"  # sent whole: executors need not find this file
    sums = rows.mapInArrow(resting, rows.schema).selectExpr("sum(CAST(CAST(value AS STRING) AS INT)) AS s")
    return int(sums.collect()[0].s)


def send(cluster: Cluster, numbers: range) -> None:
    with cluster.producer(app="numbers") as producer:
        for number in numbers:
            producer.send(Message(TOPIC, b"%d" % number, partition=number % PARTITIONS))


def a_batch_outlives_a_node(spark: SparkSession, nodes: Nodes) -> None:
    found: list[int] = []
    job = threading.Thread(target=lambda: found.append(total(spark, pause_s=3.0)))
    job.start()
    tracker = spark.sparkContext.statusTracker()
    until(
        "a task is done",
        lambda: any(
            info.numCompletedTasks for s in tracker.getActiveStageIds() if (info := tracker.getStageInfo(s))
        ),
    )
    began = time.monotonic()
    nodes.kill("w1")
    say("node w1 is killed in the middle of a batch")
    job.join(PATIENCE_S)
    assert found == [sum(range(MESSAGES))], found
    say(f"the batch ended well, {time.monotonic() - began:.1f} s after the kill")


def a_new_node_gets_an_executor(spark: SparkSession, nodes: Nodes) -> None:
    until("the lost executor is missed", lambda: executor_count(spark) == 1)
    nodes.workers["w3"] = nodes.add("w3")
    began = time.monotonic()
    until("an executor on the new node", lambda: executor_count(spark) == 2)
    say(f"an executor runs on a new node, {time.monotonic() - began:.1f} s after it came")


def a_stream_outlives_a_node(spark: SparkSession, cluster: Cluster, nodes: Nodes, checkpoint: Path) -> None:
    cluster.admin.create_topic(COPIES, partitions=2)
    source = spark.readStream.format("escrowmq").option("subscribe", TOPIC)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", MESSAGES // 10)
    copied = source.load().select("value").writeStream.format("escrowmq").option("topic", COPIES)
    query = copied.option("checkpointLocation", str(checkpoint)).start()
    try:
        until("some epochs are done", lambda: (p := query.lastProgress) and p["batchId"] >= 2)
        began = time.monotonic()
        nodes.kill("w2")
        say(f"node w2 is killed in the middle of a stream, after epoch {query.lastProgress['batchId']}")
        send(cluster, range(MESSAGES, 2 * MESSAGES))
        after = query.lastProgress["batchId"] + 1  # the running epoch may have finished its tasks already
        until("the next epochs", lambda: query.lastProgress["batchId"] > after or not query.isActive)
        say(f"the stream goes on, {time.monotonic() - began:.1f} s after the kill")
        query.processAllAvailable()
    finally:
        query.stop()
    found = (
        spark.read.format("escrowmq").option("subscribe", COPIES).load().selectExpr("CAST(value AS STRING) v")
    )
    numbers = sorted(int(row.v) for row in found.collect())
    assert numbers == list(range(2 * MESSAGES)), (
        f"{len(numbers)} messages, {len(set(numbers))} different ones"
    )
    say(f"{len(numbers)} messages are in the second topic, each once, {time.monotonic() - began:.1f} s after")


def run(mode: str) -> None:
    """The whole story."""
    directory = Path(tempfile.mkdtemp(prefix="emq-", dir="/tmp"))  # sockets allow no long path
    provide_java()  # before Ray's nodes start: RayDP's executors look for it on their PATH
    nodes = Nodes(directory)
    try:
        # Not with escrowmq.connect(): it would use this machine's token, which these raylets do not have.
        ray.init(
            address=nodes.machines.address,
            namespace="escrowmq",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
        with escrowmq.start_local(replicas=1) as cluster:
            cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
            send(cluster, range(MESSAGES))
            say("three nodes and a broker")
            spark = spark_session(
                "nodes", mode=mode, executors=2, memory="512m", quick_start=True, configs=ON_THE_HEAD
            )
            try:
                say(f"a session with {executor_count(spark)} executors")
                assert total(spark) == sum(range(MESSAGES))
                a_batch_outlives_a_node(spark, nodes)
                a_new_node_gets_an_executor(spark, nodes)
                a_stream_outlives_a_node(spark, cluster, nodes, directory / "checkpoint")
            finally:
                stop_session(spark)
        say("all is well")
    finally:
        ray.shutdown()
        nodes.machines.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["standalone", "raydp"], default="standalone")
    run(parser.parse_args().mode)
