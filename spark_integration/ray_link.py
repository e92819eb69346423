"""Connects a process of Spark (a planner or an executor's worker) to the EscrowMQ cluster.

Spark forks these processes, and they are not connected to Ray. Each one joins by an explicit address, since a
machine may run several Ray clusters. A worker serves many reads and keeps its connection.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.address import join_ray
from escrowmq.cluster.launch import cluster_info, find_supervisor


def join_from_worker(address: str, namespace: str) -> None:
    """Connect this worker of Spark to the Ray cluster at ``address``; disconnect from another one first.

    Raises ClusterNotFound, NotAuthorized.
    """
    join_ray(address, namespace, leave_other=True)


def find_cluster(address: str, namespace: str) -> ClusterInfo:
    """Join Ray and return the shape of its EscrowMQ cluster. Raises ClusterNotFound, Unavailable."""
    join_from_worker(address, namespace)
    return cluster_info(find_supervisor(namespace, address))


# ------------------------------------------------------------------------------------------------------------
# Pauses Python's garbage collector in Spark's workers while a task creates many thousands of objects.

_frozen = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable garbage collection in this process, and exclude from it for good all objects that exist now.

    A task creates tens of thousands of rows, which are tuples without cycles. They trigger the collector all
    the time, and each collection traversed everything that Spark and Ray have imported; this took a third of
    a task's CPU time. Spark also collects after every task of a worker that it reuses, which is why the
    existing objects are excluded.
    """
    global _frozen
    was = gc.isenabled()
    gc.disable()
    if not _frozen:  # only once: objects that user code leaves behind later are collected as usual
        gc.freeze()
        _frozen = True
    try:
        yield
    finally:
        if was:
            gc.enable()
