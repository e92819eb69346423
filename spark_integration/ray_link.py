"""From a process of Spark to the EscrowMQ cluster: planners and executors' workers start with nothing.

They are forked by Spark and know no Ray, so each joins by an explicit address; a machine may run several
Ray clusters. A worker serves many reads and keeps its connection.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import ray

from escrowmq.actors.topology import SUPERVISOR, ClusterInfo
from escrowmq.cluster.address import check_reachable, current_address, join_ray, same_address
from escrowmq.replication.errors import ClusterNotFound

#: The supervisor answers in milliseconds; it may just be restarting.
INFO_TIMEOUT_S = 30.0


def join_from_worker(address: str, namespace: str) -> None:
    """Connect this worker of Spark to the Ray cluster at ``address``, leaving another if need be."""
    if ray.is_initialized() and not same_address(current_address(), address):
        check_reachable(address)
        ray.shutdown()
    join_ray(address, namespace)


def cluster_info(namespace: str, address: str) -> ClusterInfo:
    """The shape of the EscrowMQ cluster in a namespace. Raises ClusterNotFound."""
    try:
        supervisor: Any = ray.get_actor(SUPERVISOR, namespace=namespace)
        answer: Any = ray.get(supervisor.info.remote(), timeout=INFO_TIMEOUT_S)
    except (ValueError, ray.exceptions.RayError) as error:
        raise ClusterNotFound(
            f"no EscrowMQ cluster in namespace {namespace!r} of the Ray cluster at {address!r} ({error}); "
            "start one with 'escrowmq up', or set the option escrowmq.namespace"
        ) from error
    return ClusterInfo(**{field.name: answer[field.name] for field in fields(ClusterInfo)})
