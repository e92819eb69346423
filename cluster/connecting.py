"""``connect``: attach to a cluster that runs already, from any process that can reach its Ray."""

from __future__ import annotations

from pathlib import Path

import ray

from escrowmq.cluster.address import AUTO, find_address, join_ray
from escrowmq.cluster.config import Config, load_config
from escrowmq.cluster.embedded_ray import quiet_ray
from escrowmq.cluster.handle import Cluster
from escrowmq.cluster.launch import cluster_info, find_supervisor


def connect(
    address: str = AUTO, namespace: str | None = None, *, config: Config | Path | str | None = None
) -> Cluster:
    """The cluster in ``namespace`` ("escrowmq") of the Ray cluster at ``address`` (host:port).

    "auto": the Ray that this process is connected to, else RAY_ADDRESS, else the only one on this
    machine. Answers within seconds, also where nothing listens. Raises ClusterNotFound, NotAuthorized,
    ConfigError, Unavailable; a connection made here is then undone.
    """
    settings = config if isinstance(config, Config) else load_config(config)
    wanted = find_address(settings.ray.address if address == AUTO else address)
    space = namespace or settings.cluster.namespace
    joined = join_ray(wanted, space)

    def disconnect() -> None:
        if joined and ray.is_initialized():
            with quiet_ray():
                ray.shutdown()

    try:
        info = cluster_info(find_supervisor(space, wanted))
    except BaseException:
        disconnect()
        raise
    return Cluster(info, wanted, settings, disconnect)
