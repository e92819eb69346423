"""Checks for a session on Ray that its executors fit before anything is started, and waits for them.

Ray itself lets an actor that does not fit wait forever. Every executor has to fit on one node, so free CPUs
are counted node by node: an executor of two cores does not fit on four nodes with one free CPU each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from escrowmq.replication.errors import ConfigError, Unavailable

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
