"""Connects a process of Spark (a planner or an executor's worker) to the EscrowMQ cluster.

Spark forks these processes, and they are not connected to Ray. Each one joins by an explicit address, since a
machine may run several Ray clusters. A worker serves many reads and keeps its connection.
"""

from __future__ import annotations

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
