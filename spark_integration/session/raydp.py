"""Sessions with RayDP: every executor is a Ray actor in Java, and Ray restarts it when it dies.

RayDP for Spark 4 exists only as development builds, so only this module uses it. RayDP waits forever if its
executors do not fit or a node lacks Java; both are checked first, and its start has a time limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.replication.errors import JavaNotFound, Unavailable
from escrowmq.spark_integration.java import VECTOR_MODULE, probe
from escrowmq.spark_integration.session.driver_jvm import bounded_start
from escrowmq.spark_integration.session.request import SessionRequest, require_room, wait_for_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A worker process starts in 1 s, on a machine under load in 10 s.
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
            pass  # it was not created yet

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
        raise Unavailable(f"RayDP's actor ended before the session was ready: {_LOOK_AT}", 5.0) from error
    return cast("SparkSession", spark)


def _master_beside_the_driver() -> dict[str, str]:
    """Place RayDP's master on the driver's node: elsewhere, the loss of that node would end the session."""
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    prefix = "spark.ray.raydp_spark_master.actor.resource."
    return {f"{prefix}CPU": "0", f"{prefix}node:{address}": "0.001"}


def stop() -> None:
    """End the session, if there is one, and its executors."""
    import raydp

    raydp.stop_spark()


def check_java_on_nodes() -> None:
    """Check for Java on each node, on the PATH with which Ray was started there.

    Without Java RayDP would wait forever. Raises JavaNotFound, Unavailable.
    """

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
