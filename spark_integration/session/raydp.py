"""Sessions by RayDP: every executor is a Ray actor in Java, and Ray starts it again when it dies.

RayDP for Spark 4 exists as development builds only, so nothing but this module knows it. It waits for ever
when its executors do not fit or a node lacks Java; both are asked first, and its start has a limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.replication.errors import JavaNotFound, Unavailable
from escrowmq.spark_integration.java import VECTOR_MODULE, probe
from escrowmq.spark_integration.session.driver_jvm import bounded_start
from escrowmq.spark_integration.session.executors import require_room, wait_for_executors
from escrowmq.spark_integration.session.request import SessionRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A worker process starts in 1 s, on a machine under load in 10.
PROBE_TIMEOUT_S = 60.0
_LOOK_AT = (
    "the logs of the Ray session (by default /tmp/ray/session_latest/logs: files named java-worker and "
    'raydp), and `ray status` for actors that wait for resources; or take mode="standalone"'
)


def start(request: SessionRequest) -> SparkSession:
    """A session with ``request.executors`` executors. Raises ConfigError, JavaNotFound, Unavailable."""
    import raydp

    require_room(request.executors, request.cores, request.memory_bytes)
    check_java_on_nodes()

    def give_up() -> None:
        try:
            ray.kill(ray.get_actor(f"{request.app_name}_SPARK_MASTER"))
        except ValueError:
            pass  # it has not come that far

    try:
        with bounded_start(request.start_timeout_s, _LOOK_AT, give_up):
            spark = raydp.init_spark(
                app_name=request.app_name,
                num_executors=request.executors,
                executor_cores=request.cores,
                executor_memory=request.memory_bytes,
                configs={**_master_beside_the_driver(), **request.configs},
            )
            wait_for_executors(spark, request.executors)
    except ray.exceptions.RayActorError as error:
        raise Unavailable(f"RayDP's actor ended before the session was there: {_LOOK_AT}", 5.0) from error
    return cast("SparkSession", spark)


def _master_beside_the_driver() -> dict[str, str]:
    """RayDP's master on the node of the driver: on another one, the session would be lost with that node."""
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    prefix = "spark.ray.raydp_spark_master.actor.resource."
    return {f"{prefix}CPU": "0", f"{prefix}node:{address}": "0.001"}


def stop() -> None:
    """End the session, if there is one, and its executors."""
    import raydp

    raydp.stop_spark()


def check_java_on_nodes() -> None:
    """Ray's workers see the PATH that their node was started with; RayDP would wait for ever without Java."""

    def look() -> str:
        import shutil

        program = shutil.which("java")
        return "java is not on PATH" if program is None else probe(Path(program))[1]

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    ]
    try:
        reasons = dict(zip(nodes, ray.get(asked, timeout=PROBE_TIMEOUT_S), strict=True))
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise Unavailable("the Ray cluster did not run a small task on each node in time", 5.0) from error
    for node, reason in reasons.items():
        if reason:
            raise JavaNotFound(
                f"node {node[:8]} of the Ray cluster has no suitable Java ({reason}; needed: 17 or newer, "
                f"with {VECTOR_MODULE}). Ray reads PATH when it starts: call escrowmq.spark.provide_java() "
                "before Ray is started by this process, or run on each node: "
                'eval "$(python -m escrowmq.spark_integration.java)" && ray start ...'
            )
