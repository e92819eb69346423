"""The request for a Spark session: checks its settings and translates them into Spark's.

Pure: everything here is decided before any process is started or asked, so that a mistake is reported at
once. The modules beside this one start sessions, one module for each mode.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from escrowmq.replication.errors import ConfigError, Unavailable

#: Spark refuses smaller executors.
MEMORY_BYTES_MIN = 512 << 20
#: RayDP has been seen to take 50 s on two busy cores; a start that takes longer than this is stuck.
START_TIMEOUT_S = 180.0

#: Reasons: a job of seconds needs no UI and no port for it; the progress bar garbles other output; timestamps
#: are in UTC, as brokers write them.
BASE_CONFIGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}

#: The simple compiler and garbage collector start in half the time but are slower in the long run. Measured
#: on two busy cores: a session in 15 s instead of 24 to 38 s, and first queries in half the time.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_CONFIGS: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ray.raydp_app_master.extraJavaOptions": QUICK_JVM,
}


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The wanted session. ``memory_bytes`` and ``cores`` are per executor.

    ``executors`` are running when the session starts. With ``executors_max``, Spark asks for up to that many
    while tasks wait, and gives back executors that have been idle.
    """

    app_name: str
    executors: int
    cores: int
    memory_bytes: int
    configs: Mapping[str, str] = field(default_factory=dict)
    executors_max: int | None = None
    start_timeout_s: float = START_TIMEOUT_S

    @property
    def most(self) -> int:
        """The maximum number of executors."""
        return self.executors if self.executors_max is None else self.executors_max


def session_request(
    app_name: str,
    *,
    executors: int | tuple[int, int],
    cores: int,
    memory: str,
    quick_start: bool,
    configs: Mapping[str, str],
    start_timeout_s: float,
) -> SessionRequest:
    """Checked settings. Raises ConfigError, which names the wrong one."""
    if not app_name:
        raise ConfigError("app_name must not be empty")
    least, most = _sizes(executors)
    if type(cores) is not int or cores < 1:
        raise ConfigError(f"cores must be a whole number of at least 1, not {cores!r}")
    if not start_timeout_s > 0:
        raise ConfigError(f"start_timeout_s must be above 0, not {start_timeout_s!r}")
    # Spark's default of 200 shuffle partitions is meant for clusters with hundreds of cores.
    shuffle = {"spark.sql.shuffle.partitions": str(max(2, 2 * (most or least) * cores))}
    return SessionRequest(
        app_name,
        least,
        cores,
        memory_bytes(memory),
        {
            **BASE_CONFIGS,
            **shuffle,
            **(QUICK_CONFIGS if quick_start else {}),
            **({} if most is None else _dynamic(least, most)),
            **configs,
        },
        most,
        start_timeout_s,
    )


def memory_bytes(text: str) -> int:
    """``"512m"``, ``"2g"``, ``"1GiB"`` in bytes; at least 512 MiB, since smaller executors do not start."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", str(text).lower())
    if found is None:
        raise ConfigError(f"memory must be a number with k, m, g or t, as in '1g', not {text!r}")
    size: int = int(found.group(1)) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found.group(2)]
    if size < MEMORY_BYTES_MIN:
        raise ConfigError(f"memory must be at least 512m for a Spark executor, not {text!r}")
    return size


def _sizes(executors: int | tuple[int, int]) -> tuple[int, int | None]:
    """(initial number, maximum); the maximum is None for a fixed size."""
    if type(executors) is int and executors >= 1:
        return executors, None
    if isinstance(executors, tuple) and len(executors) == 2:
        least, most = executors
        if type(least) is int and type(most) is int and 1 <= least <= most:
            return least, most
    raise ConfigError(
        "executors must be a whole number of at least 1, or a pair (least, most) of them for a session that "
        f"grows and shrinks, not {executors!r}"
    )


def _dynamic(least: int, most: int) -> dict[str, str]:
    return {
        "spark.dynamicAllocation.enabled": "true",
        # Ray has no shuffle service, so an executor has to stay as long as its shuffle files are needed.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(least),
        "spark.dynamicAllocation.initialExecutors": str(least),
        "spark.dynamicAllocation.maxExecutors": str(most),
    }


# ------------------------------------------------------------------------------------------------------------
# Checks for a session on Ray that its executors fit before anything is started, and waits for them.
#
# Ray itself lets an actor that does not fit wait forever. Every executor has to fit on one node, so free CPUs
# are counted node by node: an executor of two cores does not fit on four nodes with one free CPU each.

Resources = Mapping[str, float]
MIB = 1 << 20
#: The resources of an actor become free about a second after its end.
SETTLE_S = 3.0
#: Interval between questions for the number of executors; each is a call into the JVM.
ASK_EVERY_S = 0.1


def free_by_node() -> list[Resources]:
    """Free resources of every live node. Ray leaves out resources that are used up."""
    from ray._private.state import available_resources_per_node  # there is no public API

    return list(available_resources_per_node().values())  # type: ignore[no-untyped-call]


def total_by_node() -> list[Resources]:
    """All resources of every live node."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def require_room(executors: int, cores: int, held_bytes: int) -> None:
    """:func:`check_room` with the Ray cluster's resources, repeated because Ray's numbers may be old."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        try:
            check_room(executors, cores, held_bytes, free=free_by_node(), total=total_by_node())
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def check_room(
    executors: int, cores: int, held_bytes: int, *, free: Sequence[Resources], total: Sequence[Resources]
) -> None:
    """Raise ConfigError if one executor fits on no node, and Unavailable if not all fit in what is free.

    ``held_bytes``: memory of one executor. ``free`` and ``total``: resources of each node.
    """
    largest = max((node.get("CPU", 0.0) for node in total), default=0.0)
    if cores > largest:
        raise ConfigError(
            f"cores={cores}: the largest Ray node has {largest:g} CPUs; ask for less, or start Ray with more "
            "(ray start --num-cpus=...)"
        )
    roomiest = max((node.get("memory", 0.0) for node in total), default=0.0)
    if held_bytes > roomiest:
        raise ConfigError(
            f"an executor with this memory takes {held_bytes / MIB:.0f} MiB, but the largest Ray node has "
            f"{roomiest / MIB:.0f} MiB; ask for less, or start Ray with more (ray start --memory=...)"
        )
    if sum(_fitting(node, cores, held_bytes) for node in free) >= executors:
        return
    cpus = sum(node.get("CPU", 0.0) for node in free)
    memory = sum(node.get("memory", 0.0) for node in free)
    parts = " + ".join(f"{node.get('CPU', 0.0):g}" for node in free)
    by_node = f" ({parts} on {len(free)} nodes)" if len(free) > 1 else ""
    needed = f"{executors * cores} CPUs and {executors * held_bytes / MIB:.0f} MiB of memory"
    there = f"{cpus:g} CPUs{by_node} and {memory / MIB:.0f} MiB"
    raise Unavailable(
        f"{executors} Spark executors need {needed}, each executor on one node, but the Ray cluster has "
        f"{there} free; ask for fewer or smaller executors, or start Ray with more resources",
        5.0,
    )


def _fitting(node: Resources, cores: int, held_bytes: int) -> int:
    return int(min(node.get("CPU", 0.0) // cores, node.get("memory", 0.0) // held_bytes))


def executor_count(spark: Any) -> int:
    """The number of executors that are registered with the driver now."""
    return (
        int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1
    )  # the driver is counted, too


def wait_for_executors(spark: Any, wanted: int) -> None:
    """Return when ``wanted`` executors are registered.

    Without this, the first query would wait for them, perhaps forever. Call it inside
    ``driver_jvm.bounded_start``, which bounds it: that ends the JVM, which makes this raise.
    """
    while executor_count(spark) < wanted:
        time.sleep(ASK_EVERY_S)
