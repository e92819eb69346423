"""Spark sessions: on Ray through RayDP, local, or by a factory of one's own.

RayDP for Spark 4 exists as development builds only, so nothing but ``_raydp`` knows it; a factory is
any function from a ``SessionRequest`` to a session, and ``mode`` takes one in place of a name.

RayDP waits for ever when its executors do not fit or its nodes lack Java. So both are asked first, and
the answer is an error that says what is missing. Never starts or stops a Ray cluster.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import ray

from escrowmq.cluster.address import current_address, find_address, join_ray
from escrowmq.replication.errors import ClusterNotFound, ConfigError, JavaNotFound, Unavailable
from escrowmq.spark_integration.java import VECTOR_MODULE, probe, provide_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A worker process starts in 1 s, on a machine under load in 10.
PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a session should be. ``memory_bytes`` and ``cores`` are per executor."""

    app_name: str
    executors: int
    cores: int
    memory_bytes: int
    configs: Mapping[str, str] = field(default_factory=dict)


SessionFactory = Callable[[SessionRequest], "SparkSession"]

#: Reasons: the UI and its port are not wanted by a job of seconds; the progress bar fights with other
#: output; 200 shuffle partitions (Spark's default) are for clusters of hundreds of cores.
BASE_CONFIGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


#: The simple compiler and collector start in half the time and are slower in the long run: measured on
#: two busy cores, 15 s instead of 24 to 38 s to a session, and first queries in half the time.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_CONFIGS: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ray.raydp_app_master.extraJavaOptions": QUICK_JVM,
}


def spark_session(
    app_name: str = "escrowmq",
    *,
    mode: str | SessionFactory = "raydp",
    executors: int = 1,
    cores: int = 1,
    memory: str = "1g",
    address: str | None = None,
    namespace: str = "escrowmq",
    quick_start: bool = False,
    configs: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session with the ``escrowmq`` source registered.

    ``mode`` is ``"raydp"`` (executors are Ray actors), ``"local"`` (threads of this machine:
    ``executors * cores`` of them) or a SessionFactory. ``address`` names the Ray cluster as host:port;
    default: the one this process is connected to. ``quick_start`` suits jobs of seconds to a few minutes:
    its JVMs start in half the time. ``configs``: Spark's own settings, which win. End the session with
    :func:`stop_session`. Raises ConfigError, JavaNotFound, ClusterNotFound, and Unavailable when the Ray
    cluster has not room for the executors.
    """
    factory = FACTORIES.get(mode) if isinstance(mode, str) else mode
    if factory is None:
        raise ConfigError(f"mode must be one of {', '.join(FACTORIES)}, or a function, not {mode!r}")
    for name, value in (("executors", executors), ("cores", cores)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
    if not app_name:
        raise ConfigError("app_name must not be empty")
    request = SessionRequest(
        app_name,
        executors,
        cores,
        memory_bytes(memory),
        {
            **BASE_CONFIGS,
            **_shuffle(executors * cores),
            **(QUICK_CONFIGS if quick_start else {}),
            **(configs or {}),
        },
    )
    _require_no_session()
    provide_java()
    # Workers are started with this interpreter, whose packages they need; no Spark option does it.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here = _connect(address, app_name, needed=mode == "raydp")
    from escrowmq.spark_integration.source import register

    spark = factory(request)
    register(spark, address=here, namespace=namespace)
    return spark


def _require_no_session() -> None:
    """One JVM, so one session at a time; a second one would silently get the first one's executors."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        raise ConfigError(
            f"this process runs a Spark session already ({running.sparkContext.appName}): use it with "
            "escrowmq.spark.register(spark, address=...), or end it with escrowmq.spark.stop_session(spark)"
        )


def stop_session(spark: SparkSession) -> None:
    """End a session of any mode, with its executors on Ray. The Ray cluster stays."""
    master = str(spark.conf.get("spark.master", ""))
    if master.startswith("ray://"):
        import raydp

        raydp.stop_spark()
    else:
        spark.stop()


def memory_bytes(text: str) -> int:
    """``"512m"``, ``"2g"``, ``"1GiB"`` to bytes; at least 512 MiB, since smaller executors do not start."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", str(text).lower())
    if found is None:
        raise ConfigError(f"memory must be a number with k, m, g or t, as in '1g', not {text!r}")
    size: int = int(found.group(1)) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found.group(2)]
    if size < 512 << 20:
        raise ConfigError(f"memory must be at least 512m for a Spark executor, not {text!r}")
    return size


def _shuffle(cores: int) -> dict[str, str]:
    return {"spark.sql.shuffle.partitions": str(max(2, 2 * cores))}


def _connect(address: str | None, app_name: str, needed: bool) -> str:
    """Address of the Ray cluster this process is in, joining it if need be; "" if neither was asked for."""
    if address is None and not ray.is_initialized():
        if needed:
            raise ClusterNotFound(
                "no Ray cluster: start one with escrowmq.start_local(), connect with escrowmq.connect(), "
                "or give address='host:port'"
            )
        return ""
    if address is not None:
        # RayDP's actors have fixed names: a namespace of its own for each session keeps them apart.
        join_ray(find_address(address), namespace=f"spark-{app_name}-{uuid.uuid4().hex[:8]}")
    return current_address()


def _local(request: SessionRequest) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{request.executors * request.cores}]").appName(
        request.app_name
    )
    builder = builder.config("spark.driver.memory", f"{request.memory_bytes >> 20}m")
    for name, value in request.configs.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _raydp(request: SessionRequest) -> SparkSession:
    import raydp

    check_room(request, ray.available_resources(), _node_cpus())  # type: ignore[no-untyped-call]
    _check_java_on_ray()
    spark = raydp.init_spark(
        app_name=request.app_name,
        num_executors=request.executors,
        executor_cores=request.cores,
        executor_memory=request.memory_bytes,
        configs=dict(request.configs),
    )
    return cast("SparkSession", spark)


#: The named ways to a session.
FACTORIES: dict[str, SessionFactory] = {"raydp": _raydp, "local": _local}


def check_room(request: SessionRequest, available: Mapping[str, float], node_cpus: list[float]) -> None:
    """Raise Unavailable unless the executors fit into what is free, and ConfigError if one fits no node."""
    if request.cores > max(node_cpus, default=0):
        raise ConfigError(
            f"cores={request.cores}: the largest Ray node has {max(node_cpus, default=0):g} CPUs; ask for "
            "less, or start Ray with more (ray start --num-cpus=...)"
        )
    wanted = {"CPU": request.executors * request.cores, "memory": request.executors * request.memory_bytes}
    for resource, amount in wanted.items():
        free = available.get(resource, 0.0)
        if free < amount:
            unit, scale = ("CPUs", 1) if resource == "CPU" else ("MiB of memory", 1 << 20)
            raise Unavailable(
                f"{request.executors} Spark executors need {amount / scale:g} {unit} and the Ray cluster has "
                f"{free / scale:g} free; ask for fewer or smaller executors, or start Ray with more",
                5.0,
            )


def _node_cpus() -> list[float]:
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [float(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]]


def _check_java_on_ray() -> None:
    """Ray's workers see the PATH that their node was started with; RayDP would wait for ever without Java."""

    def look() -> str:
        import shutil

        program = shutil.which("java")
        return "java is not on PATH" if program is None else probe(Path(program))[1]

    try:
        reason = ray.get(ray.remote(num_cpus=0)(look).remote(), timeout=PROBE_TIMEOUT_S)
    except ray.exceptions.GetTimeoutError as error:
        raise Unavailable("the Ray cluster did not run a small task in time", 5.0) from error
    if reason:
        raise JavaNotFound(
            f"the nodes of the Ray cluster have no suitable Java ({reason}; needed: 17 or newer, with "
            f"{VECTOR_MODULE}). Ray reads PATH when it starts: call escrowmq.spark.provide_java() before Ray "
            "is started by this process, or run on each node: "
            'eval "$(python -m escrowmq.spark_integration.java)" && ray start ...'
        )
