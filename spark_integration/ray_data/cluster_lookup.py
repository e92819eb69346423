"""Finds the cluster that a dataset reads or writes. Its tasks run in the same Ray cluster as its brokers."""

from __future__ import annotations

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.address import AUTO, find_address, join_ray, parse_address
from escrowmq.cluster.config import load_config
from escrowmq.cluster.discovery import discover
from escrowmq.cluster.handle import Cluster
from escrowmq.cluster.ray_use import stay_connected
from escrowmq.replication.errors import Closed, ConfigError


def find_info(cluster: Cluster | None, address: str, namespace: str | None) -> ClusterInfo:
    """The shape of the cluster; this process is connected to its Ray then, and stays so, since datasets are
    executed later. Raises ConfigError, ClusterNotFound, NotAuthorized, Unavailable, Closed."""
    if cluster is None:
        settings = load_config()
        wanted = find_address(settings.ray.address if address == AUTO else address)
        space = namespace or settings.cluster.namespace
        join_ray(wanted, space)
        return discover(space, wanted)
    given: object = cluster
    if not isinstance(given, Cluster):
        raise ConfigError(f"cluster must be what escrowmq.connect or start_local returned, not {given!r}")
    if address != AUTO or namespace is not None:
        raise ConfigError("give a cluster, or an address and a namespace, not both")
    try:
        parse_address(cluster.address)
    except ConfigError:
        raise ConfigError(
            "a cluster in memory has no Ray, so Ray Data cannot use it; start a real one with start_local()"
        ) from None
    if cluster.closed:
        raise Closed("this cluster object was closed; connect again")
    stay_connected()
    return cluster.info
