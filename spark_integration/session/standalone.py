"""Sessions on a Spark standalone cluster that lives inside Ray actors: any Spark, on any Ray.

One actor runs the Master, on the driver's node: without that node there is no session anyway. One actor for
each executor runs a Worker of exactly its size and holds its CPUs and memory in Ray, spread over the nodes.
Spark replaces a lost executor, the actor a lost Worker, and Ray an actor whose node was lost, where
there is room. Everything belongs to this driver: Ray ends it when the driver ends, however that ends.

The Master takes applications from whoever knows the secret, which is made anew for every session.
"""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.replication.errors import Unavailable
from escrowmq.spark_integration.session.driver_jvm import bounded_start
from escrowmq.spark_integration.session.executors import require_room, wait_for_executors
from escrowmq.spark_integration.session.request import SessionRequest
from escrowmq.spark_integration.session.standalone_daemon import STOP_TIMEOUT_S, DaemonSpec, SparkDaemon
from escrowmq.spark_integration.session.standalone_scaling import Scaler, ScalingThread, executors_wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_AT = (
    "`ray status` shows actors that wait for resources; Spark's logs are on each node in Ray's session "
    "(by default /tmp/ray/session_latest/escrowmq-spark)"
)
#: What a JVM and its Python workers take beside the heap, by the rule that Spark has for containers.
OVERHEAD_BYTES_MIN, OVERHEAD_SHARE = 384 << 20, 0.1

#: For a count from all Workers' actors; one that waits for room does not answer.
ANSWER_TIMEOUT_S = 1.0

_SECRET = "_SPARK_AUTH_SECRET"
_running: list[StandaloneCluster] = []  # at most one: a process has one session


def held_bytes(memory_bytes: int) -> int:
    """Memory that an executor of this heap holds in Ray."""
    return memory_bytes + max(OVERHEAD_BYTES_MIN, int(memory_bytes * OVERHEAD_SHARE))


def start(request: SessionRequest) -> SparkSession:
    """A session with its own cluster. Raises ConfigError, JavaNotFound, Unavailable."""
    require_room(request.executors, request.cores, held_bytes(request.memory_bytes))
    cluster = StandaloneCluster(request)
    try:
        cluster.start()
        left_s = max(1.0, cluster.deadline - time.monotonic())
        with bounded_start(left_s, _LOOK_AT), _secret_in_environment(cluster.secret):
            spark = _connect(cluster)
            wait_for_executors(spark, request.executors)
        cluster.scale(spark)
    except BaseException:
        cluster.stop()
        raise
    _running.append(cluster)
    return spark


def stop_cluster() -> None:
    """End the cluster of a session that has ended, if there is one."""
    while _running:
        _running.pop().stop()


class StandaloneCluster:
    """The actors of one session; a Worker is known by a name of its own."""

    def __init__(self, request: SessionRequest) -> None:
        import pyspark

        self.request = request
        self.secret = secrets.token_hex(32)
        self.deadline = time.monotonic() + request.start_timeout_s
        self.url = ""
        self.workers: dict[str, Any] = {}
        self.scaling: ScalingThread | None = None
        self._spec = (f"{request.app_name}-{uuid.uuid4().hex[:8]}", pyspark.__version__, self.secret)
        here = ray.get_runtime_context().get_node_id()
        self.master: Any = (
            ray.remote(SparkDaemon)
            .options(
                num_cpus=0,
                max_concurrency=2,  # stop() while ready() waits
                scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
            )
            .remote(DaemonSpec(*self._spec))
        )

    def start(self) -> None:
        """The Master, then as many Workers as are wanted at the start. Raises as :func:`start`."""
        (self.url,) = self._ready([self.master], "the Master")
        for _ in range(self.request.executors):
            self.add_worker()
        self._ready(list(self.workers.values()), "the Workers")

    def scale(self, spark: SparkSession) -> None:
        """Follow the number of executors that Spark wants, if that changes."""
        if self.request.executors_max is not None:
            scaler = Scaler(self, self.request.executors, self.request.executors_max)
            self.scaling = ScalingThread(scaler, lambda: executors_wanted(spark))

    def add_worker(self) -> None:
        """One more Worker, on the node with the fewest."""
        request = self.request
        spec = DaemonSpec(*self._spec, self.url, request.cores, request.memory_bytes >> 20)
        actor = ray.remote(SparkDaemon).options(
            num_cpus=request.cores,
            memory=held_bytes(request.memory_bytes),
            max_concurrency=2,
            max_restarts=-1,  # on another node if its own is lost
            scheduling_strategy="SPREAD",
        )
        self.workers[uuid.uuid4().hex] = actor.remote(spec)

    def executors_by_worker(self) -> dict[str, int | None]:
        """How many executors each Worker runs; None for one that does not answer, or not yet."""
        asked = {actor.executors.remote(): worker for worker, actor in self.workers.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_TIMEOUT_S)
        counts: dict[str, int | None] = dict.fromkeys(self.workers)
        for answer in answered:
            try:
                counts[asked[answer]] = ray.get(answer)
            except ray.exceptions.RayActorError:  # its node went; Ray starts it again elsewhere
                continue
        return counts

    def remove_worker(self, worker: str) -> None:
        """End one Worker and give its CPUs back."""
        _stop_actors([self.workers.pop(worker)])

    def stop(self) -> None:
        """End everything."""
        if self.scaling is not None:
            self.scaling.stop()
        _stop_actors([*self.workers.values(), self.master])

    def _ready(self, actors: list[Any], what: str) -> list[str]:
        left_s = max(1.0, self.deadline - time.monotonic())
        try:
            urls: list[str] = ray.get([actor.ready.remote(left_s) for actor in actors], timeout=left_s)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
            limit = self.request.start_timeout_s
            raise Unavailable(f"{what} of Spark did not start within {limit:g} s: {_LOOK_AT}", 5.0) from error
        return urls


def _stop_actors(actors: list[Any]) -> None:
    """Whoever does not answer is killed, and its JVM with it."""
    stopping = [actor.stop.remote() for actor in actors]
    ray.wait(stopping, num_returns=len(stopping), timeout=2 * STOP_TIMEOUT_S)
    for actor in actors:
        ray.kill(actor)


def _connect(cluster: StandaloneCluster) -> SparkSession:
    from pyspark.sql import SparkSession

    request, host = cluster.request, str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    settings = {
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.executor.cores": str(request.cores),
        "spark.executor.memory": f"{request.memory_bytes >> 20}m",
        "spark.cores.max": str(request.most * request.cores),
        "spark.authenticate": "true",
        # Spark wants it to be there and takes the one in the environment.
        "spark.authenticate.secret": f"in {_SECRET}",
        **request.configs,
    }
    builder = SparkSession.builder.master(cluster.url).appName(request.app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def _secret_in_environment(secret: str) -> Iterator[None]:
    """For the driver's JVM alone, which takes it with it."""
    os.environ[_SECRET] = secret
    try:
        yield
    finally:
        del os.environ[_SECRET]
