"""Sessions on a Spark standalone cluster inside Ray actors, for any version of Spark and of Ray.

One actor runs the Master, on the driver's node, whose loss would end the session anyway. For each executor,
one actor runs a Worker of exactly its size and reserves its CPUs and memory in Ray; these actors are spread
over the nodes. Spark replaces a lost executor, the actor replaces a lost Worker, and Ray restarts an actor
whose node was lost on another node with room. All actors belong to this driver: Ray ends them when the driver
ends, however that happens. The Master accepts applications that know the secret, a new one for every session.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.replication.errors import Unavailable
from escrowmq.spark_integration.session.driver_jvm import bounded_start
from escrowmq.spark_integration.session.request import SessionRequest, require_room, wait_for_executors
from escrowmq.spark_integration.session.standalone_daemon import STOP_TIMEOUT_S, DaemonSpec, SparkDaemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ------------------------------------------------------------------------------------------------------------
# Starts and ends Workers as Spark wants executors, so that unused resources are free in Ray.
#
# Spark's dynamic allocation decides how many executors it wants and gives back idle ones. It asks the Master,
# which can only use existing Workers. A thread in the driver follows the wanted number: it starts an actor
# for every wanted executor, and ends Workers without executors. An actor for which Ray has no room waits; the
# session continues with the executors that it has.

log = logging.getLogger(__name__)

#: Spark itself adjusts the number once per second (spark.dynamicAllocation.schedulerBacklogTimeout).
LOOK_EVERY_S = 1.0
#: A Worker without an executor may be about to get one, so it is ended only after this many such looks.
IDLE_LOOKS = 3
#: Number of looks that may fail in a row before scaling ends.
FAILURES_MAX = 10


class Workers(Protocol):
    """The set of Workers that is scaled."""

    def executors_by_worker(self) -> dict[str, int | None]:
        """The number of executors of each Worker; None for one that has not started or does not answer."""

    def add_worker(self) -> None:
        """Ask Ray for one more Worker."""

    def remove_worker(self, worker: str) -> None:
        """End one Worker."""


class Scaler:
    """Decides which Workers to add and to remove. :meth:`look` must be called regularly."""

    def __init__(self, workers: Workers, least: int, most: int) -> None:
        self._workers, self._least, self._most = workers, least, most
        self._idle_looks: dict[str, int] = {}

    def look(self, target: int) -> None:
        """Adjust the Workers. ``target``: the number of executors that Spark wants now."""
        running = self._workers.executors_by_worker()
        wanted = min(max(target, self._least), self._most)
        for _ in range(wanted - len(running)):
            self._workers.add_worker()
        self._idle_looks = {
            worker: self._idle_looks.get(worker, 0) + 1 for worker, count in running.items() if not count
        }
        spare = [worker for worker, looks in self._idle_looks.items() if looks >= IDLE_LOOKS]
        for worker in _waiting_first(spare, running)[: max(0, len(running) - wanted)]:
            self._workers.remove_worker(worker)
            del self._idle_looks[worker]


def _waiting_first(spare: Sequence[str], running: dict[str, int | None]) -> list[str]:
    """The Workers in the order of removal: those that have not even started come first."""
    return sorted(spare, key=lambda worker: running[worker] is not None)


class ScalingThread:
    """Calls the scaler once per second, until it is stopped or the session has ended."""

    def __init__(self, scaler: Scaler, target: Callable[[], int]) -> None:
        self._scaler, self._target = scaler, target
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-scaling", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop scaling; no further change is made after this returns."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                self._scaler.look(self._target())
                failures = 0
            except Exception as error:  # Ray or Spark may be busy for a moment; the next look tries again
                failures += 1
                log.debug("a look at Spark's executors failed: %r", error)
                if failures == FAILURES_MAX:  # the session or Ray has ended
                    log.info("Spark's executors are no longer scaled: %r", error)
                    return


def executors_wanted(spark: Any) -> int:
    """The number of executors that Spark's dynamic allocation wants, from its own gauge."""
    manager = spark.sparkContext._jsc.sc().executorAllocationManager().get()
    gauges = manager.executorAllocationManagerSource().metricRegistry().getGauges()
    return int(gauges.get("executors.numberTargetExecutors").getValue())


_LOOK_AT = (
    "`ray status` shows actors that wait for resources; Spark's logs are on each node in Ray's session "
    "(by default /tmp/ray/session_latest/escrowmq-spark)"
)
#: Memory of a JVM and its Python workers besides the heap, by Spark's rule for containers.
OVERHEAD_BYTES_MIN, OVERHEAD_SHARE = 384 << 20, 0.1

#: Time for the Workers' actors to report their executors; an actor that waits for room does not answer.
ANSWER_TIMEOUT_S = 1.0

_SECRET = "_SPARK_AUTH_SECRET"
_running: list[StandaloneCluster] = []  # at most one, since a process has one session


def held_bytes(memory_bytes: int) -> int:
    """Memory in bytes that an executor with this heap reserves in Ray."""
    return memory_bytes + max(OVERHEAD_BYTES_MIN, int(memory_bytes * OVERHEAD_SHARE))


def start(request: SessionRequest) -> SparkSession:
    """Start a session with its own standalone cluster. Raises ConfigError, JavaNotFound, Unavailable."""
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
    """The actors of one session. Each Worker has a unique name."""

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
                max_concurrency=2,  # so that stop() can run while ready() waits
                scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
            )
            .remote(DaemonSpec(*self._spec))
        )

    def start(self) -> None:
        """Start the Master, then the initial number of Workers. Raises as :func:`start`."""
        (self.url,) = self._ready([self.master], "the Master")
        for _ in range(self.request.executors):
            self.add_worker()
        self._ready(list(self.workers.values()), "the Workers")

    def scale(self, spark: SparkSession) -> None:
        """Follow the number of executors that Spark wants, if it is variable."""
        if self.request.executors_max is not None:
            scaler = Scaler(self, self.request.executors, self.request.executors_max)
            self.scaling = ScalingThread(scaler, lambda: executors_wanted(spark))

    def add_worker(self) -> None:
        """Start one more Worker; Ray spreads them over the nodes."""
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
        """The number of executors of each Worker; None for a Worker that does not answer (yet)."""
        asked = {actor.executors.remote(): worker for worker, actor in self.workers.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_TIMEOUT_S)
        counts: dict[str, int | None] = dict.fromkeys(self.workers)
        for answer in answered:
            try:
                counts[asked[answer]] = ray.get(answer)
            except ray.exceptions.RayActorError:  # its node was lost; Ray restarts it elsewhere
                continue
        return counts

    def remove_worker(self, worker: str) -> None:
        """End one Worker and free its CPUs."""
        _stop_actors([self.workers.pop(worker)])

    def stop(self) -> None:
        """End all actors and the scaling thread."""
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
    """Stop actors; one that does not answer is killed, which ends its JVM as well."""
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
        # Spark requires this setting, but uses the secret from the environment.
        "spark.authenticate.secret": f"in {_SECRET}",
        **request.configs,
    }
    builder = SparkSession.builder.master(cluster.url).appName(request.app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def _secret_in_environment(secret: str) -> Iterator[None]:
    """Set the secret in the environment while the driver's JVM starts, which inherits it."""
    os.environ[_SECRET] = secret
    try:
        yield
    finally:
        del os.environ[_SECRET]
