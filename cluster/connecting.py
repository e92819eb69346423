"""``connect``: attaches to a running cluster from any process that can reach its Ray cluster."""

from __future__ import annotations

import os
from pathlib import Path

import ray

from escrowmq.actors.client.head_patience import reconnect_s
from escrowmq.cluster.address import AUTO, check_reachable, find_address, join_ray
from escrowmq.cluster.config import Config, load_config
from escrowmq.cluster.discovery import discover
from escrowmq.cluster.embedded_ray import as_guest
from escrowmq.cluster.handle import Cluster
from escrowmq.cluster.head_watch import HeadWatch
from escrowmq.replication.errors import ClusterNotFound


def connect(
    address: str = AUTO, namespace: str | None = None, *, config: Config | Path | str | None = None
) -> Cluster:
    """The cluster in ``namespace`` ("escrowmq") of the Ray cluster at ``address`` (host:port).

    "auto": the Ray cluster that this process is connected to, else RAY_ADDRESS, else the only one on this
    machine. Returns or raises within seconds, even if nothing listens at the address. While the supervisor
    is away, the cluster is found through a broker. Raises ClusterNotFound, NotAuthorized, ConfigError,
    Unavailable; a connection to Ray made here is then closed again.
    """
    settings = config if isinstance(config, Config) else load_config(config)
    wanted = find_address(settings.ray.address if address == AUTO else address)
    space = namespace or settings.cluster.namespace
    joined = join_ray(wanted, space)

    def head_is_there() -> bool:
        try:
            check_reachable(wanted)
        except ClusterNotFound:
            return False
        return True

    watch = HeadWatch(wanted, reconnect_s(os.environ), head_is_there)

    def disconnect() -> None:
        watch.close()
        if joined and ray.is_initialized():
            with as_guest():
                ray.shutdown()

    try:
        info = discover(space, wanted)
    except BaseException:
        disconnect()
        raise
    return Cluster(info, wanted, settings, disconnect)
