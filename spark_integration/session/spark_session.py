"""Starts Spark sessions: on Ray with RayDP or a standalone cluster in actors, local, or by a given factory.

Each kind of session is a function from a ``SessionRequest`` to a session; ``mode`` accepts such a function in
place of a name. Where Spark, RayDP or Ray would wait without a limit, the condition is checked beforehand or
the wait is bounded, and an error says what is missing. This module never starts or stops a Ray cluster.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from escrowmq.cluster.address import current_address, find_address, join_ray
from escrowmq.cluster.ray_use import stay_connected
from escrowmq.replication.errors import ClusterNotFound, ConfigError
from escrowmq.spark_integration.java import provide_java
from escrowmq.spark_integration.session.request import START_TIMEOUT_S, SessionRequest, session_request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ------------------------------------------------------------------------------------------------------------
# Finds out which packages for Spark are installed, and which kind of session works with them.
#
# RayDP waits forever with a version of Spark that it has no build for, so its files are checked first: a
# build for Spark 4.2 is a jar named ``raydp-shims-spark420-...``.

#: The versions that were tested together and that the extra ``spark`` installs.
PINS = "pyspark==4.2.1 with raydp==1.7.0b20260911.dev0"
#: The first version whose Python data sources support read limits and Arrow sinks.
SPARK_MIN = (4, 2)
_INSTALL = "pip install 'escrowmq[spark]'"


def pick_mode(mode: str, spark: str | None, raydp_builds: Iterable[str] | None) -> str:
    """``mode`` if it works with the installed packages; "auto" is replaced by a mode. Raises ConfigError.

    ``spark``: version of pyspark, None if it is not installed. ``raydp_builds``: the versions of Spark, such
    as "4.2", that RayDP has builds for; None if it is not installed.
    """
    if spark is None:
        raise ConfigError(f"Spark needs the package pyspark, which is not installed: {_INSTALL}")
    short = _major_minor(spark)
    if short < SPARK_MIN:
        least = ".".join(map(str, SPARK_MIN))
        raise ConfigError(
            f"pyspark {spark} is installed, but {least} or newer is needed: {_INSTALL} ({PINS})"
        )
    builds = set(raydp_builds or ())
    fits = ".".join(map(str, short)) in builds
    if mode == "auto":
        return "raydp" if fits else "standalone"
    if mode != "raydp" or fits:
        return mode
    if raydp_builds is None:
        raise ConfigError(
            f'mode="raydp" needs the package raydp, which is not installed: {_INSTALL}; or use '
            'mode="standalone", which does not need it'
        )
    raise ConfigError(
        f"the installed RayDP has no build for pyspark {spark} (only for {', '.join(sorted(builds))}) and "
        f'would hang; install {PINS}, or use mode="standalone", which works with any Spark'
    )


def installed_spark() -> str | None:
    """The installed version of pyspark; None if it is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        return None
    import pyspark

    return str(pyspark.__version__)


def installed_raydp_builds() -> list[str] | None:
    """The versions of Spark, such as "4.2", for which the installed RayDP has a build; None without RayDP."""
    spec = importlib.util.find_spec("raydp")
    if spec is None or not spec.submodule_search_locations:
        return None
    return raydp_builds(path.name for path in Path(spec.submodule_search_locations[0], "jars").glob("*.jar"))


def raydp_builds(jars: Iterable[str]) -> list[str]:
    """``raydp-shims-spark420-1.7.0.jar`` -> "4.2"; other names are ignored."""
    found = (re.match(r"raydp-shims-spark(\d)(\d+)\d-", name) for name in jars)
    return [f"{match.group(1)}.{match.group(2)}" for match in found if match]


def _major_minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ConfigError(f"pyspark has an unreadable version: {version!r}")
    return int(found.group(1)), int(found.group(2))


SessionFactory = Callable[[SessionRequest], "SparkSession"]
#: Spark masters that run as threads of this process.
_LOCAL = re.compile(r"local(\[ *(\*|\d+) *(, *\d+ *)?\])?")
MODES = ("auto", "raydp", "standalone", "local")


def spark_session(
    app_name: str = "escrowmq",
    *,
    mode: str | SessionFactory = "auto",
    executors: int | tuple[int, int] = 1,
    cores: int = 1,
    memory: str = "1g",
    address: str | None = None,
    namespace: str = "escrowmq",
    quick_start: bool = False,
    start_timeout_s: float = START_TIMEOUT_S,
    configs: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session with the ``escrowmq`` source and sink registered.

    ``mode`` is ``"raydp"`` (executors are Ray actors), ``"standalone"`` (a Spark standalone cluster inside
    Ray actors), ``"auto"`` (RayDP if it has a build for the installed Spark, else standalone), ``"local"``
    (``executors * cores`` threads of this process) or a SessionFactory. ``executors``: their number, or
    (least, most): then Spark asks for more while tasks wait and gives back idle ones. ``cores`` and
    ``memory``: for one executor. ``address``: host:port of the Ray cluster; default: the one that this
    process is connected to. ``quick_start`` suits jobs of seconds to a few minutes: JVMs start in half the
    time. ``configs``: Spark's own settings, which override all others. End the session with
    :func:`stop_session`. Raises ConfigError (a setting or a version), JavaNotFound, ClusterNotFound, and
    Unavailable if the Ray cluster has no room for the executors or the start takes longer than
    ``start_timeout_s``.
    """
    if isinstance(mode, str) and mode not in MODES:
        raise ConfigError(f"mode must be one of {', '.join(MODES)}, or a function, not {mode!r}")
    master = (configs or {}).get("spark.master")
    if master is not None and isinstance(mode, str) and not (mode == "local" and _LOCAL.fullmatch(master)):
        raise ConfigError(
            f"configs must not contain 'spark.master' ({master!r}): mode={mode!r} says where Spark runs "
            '(only with "local", a master like local[2,4] is allowed); for another master, give as mode= a '
            "function that makes the session"
        )
    request = session_request(
        app_name,
        executors=executors,
        cores=cores,
        memory=memory,
        quick_start=quick_start,
        configs=configs or {},
        start_timeout_s=start_timeout_s,
    )
    if mode == "local" and request.executors_max is not None:
        raise ConfigError('executors must be one number with mode="local": its threads are always running')
    if isinstance(mode, str):
        mode = pick_mode(mode, installed_spark(), installed_raydp_builds())
    from escrowmq.spark_integration.session.driver_jvm import require_no_jvm

    require_no_jvm()
    _forget_ended_sessions()
    provide_java()
    # Workers need this interpreter, for its packages; no Spark option sets it.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here = _connect(address, app_name, needed=mode in ("raydp", "standalone"))
    from escrowmq.spark_integration.data_source import register

    spark = _factory(mode)(request)
    register(spark, address=here, namespace=namespace)
    return spark


def stop_session(spark: SparkSession) -> None:
    """End a session of any mode, its executors on Ray, and its JVM in this process. Ray keeps running.

    Stopping a session a second time does nothing.
    """
    from escrowmq.spark_integration.session import driver_jvm, standalone
    from escrowmq.spark_integration.session import raydp as raydp_session

    if driver_jvm.jvm_is_gone(spark):
        return
    if str(spark.conf.get("spark.master", "")).startswith("ray://"):
        raydp_session.stop()
    else:
        spark.stop()
    driver_jvm.end_jvm()
    standalone.stop_cluster()


def _forget_ended_sessions() -> None:
    """Clean up after a session ended by ``spark.stop()``, which leaves executors and RayDP's state."""
    from escrowmq.spark_integration.session import raydp as raydp_session
    from escrowmq.spark_integration.session import standalone

    standalone.stop_cluster()
    if "raydp" in sys.modules:
        raydp_session.stop()


def _factory(mode: str | SessionFactory) -> SessionFactory:
    if not isinstance(mode, str):
        return mode
    from escrowmq.spark_integration.session import raydp as raydp_session
    from escrowmq.spark_integration.session import standalone

    return {"raydp": raydp_session.start, "standalone": standalone.start, "local": _local}[mode]


def _connect(address: str | None, app_name: str, needed: bool) -> str:
    """The address of this process's Ray cluster, which it joins if necessary; "" if there is none and none is
    needed."""
    if address is None and not ray.is_initialized():
        if needed:
            raise ClusterNotFound(
                "no Ray cluster: start one with escrowmq.start_local(), connect with escrowmq.connect(), "
                "or give address='host:port'"
            )
        return ""
    if address is not None:
        # RayDP's actors have fixed names, so each session gets a new namespace.
        join_ray(find_address(address), namespace=f"spark-{app_name}-{uuid.uuid4().hex[:8]}")
    stay_connected()  # the session lives longer than the handle that may have joined Ray
    return current_address()


def _local(request: SessionRequest) -> SparkSession:
    from pyspark.sql import SparkSession

    from escrowmq.spark_integration.session.driver_jvm import bounded_start

    builder = SparkSession.builder.master(f"local[{request.executors * request.cores}]").appName(
        request.app_name
    )
    builder = builder.config("spark.driver.memory", f"{request.memory_bytes >> 20}m")
    for name, value in request.configs.items():
        builder = builder.config(name, value)
    with bounded_start(request.start_timeout_s, "the JVM's messages on standard error"):
        return builder.getOrCreate()
