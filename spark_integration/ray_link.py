"""From a process of Spark to the EscrowMQ cluster: planners and executors' workers start with nothing.

They are forked by Spark and know no Ray, so each joins by an explicit address; a machine may run several
Ray clusters. A worker serves many reads and keeps its connection.
"""

from __future__ import annotations

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.address import join_ray
from escrowmq.cluster.launch import cluster_info, find_supervisor


def join_from_worker(address: str, namespace: str) -> None:
    """Connect this worker of Spark to the Ray cluster at ``address``, leaving another if need be.

    Raises ClusterNotFound, NotAuthorized.
    """
    join_ray(address, namespace, leave_other=True)


def find_cluster(address: str, namespace: str) -> ClusterInfo:
    """Join, and the shape of the EscrowMQ cluster there. Raises ClusterNotFound, Unavailable."""
    join_from_worker(address, namespace)
    return cluster_info(find_supervisor(namespace, address))
