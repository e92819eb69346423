"""``connect``: attaches to a running cluster from any process that can reach its Ray cluster."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from escrowmq.actors.client.head_patience import reconnect_s
from escrowmq.cluster.address import AUTO, check_reachable, find_address, join_ray
from escrowmq.cluster.config import Config, load_config
from escrowmq.cluster.discovery import discover
from escrowmq.cluster.handle import Cluster
from escrowmq.cluster.head_watch import HeadWatch
from escrowmq.cluster.ray_use import use_ray
from escrowmq.replication.errors import ClusterNotFound


def connect(
    address: str = AUTO, namespace: str | None = None, *, config: Config | Path | str | None = None
) -> Cluster:
    """The cluster in ``namespace`` ("escrowmq") of the Ray cluster at ``address`` (host:port).

    "auto": the Ray cluster that this process is connected to, else RAY_ADDRESS, else the only one on this
    machine. Returns or raises within seconds, even if nothing listens at the address. While the supervisor
    is away, the cluster is found through a broker. Raises ClusterNotFound, NotAuthorized, ConfigError,
    Unavailable. All handles of a process share its connection to Ray; the last one that is closed leaves it,
    unless your program joined Ray itself.
    """
    settings = config if isinstance(config, Config) else load_config(config)
    with ExitStack() as undo:
        undo.callback(use_ray())
        wanted = find_address(settings.ray.address if address == AUTO else address)
        space = namespace or settings.cluster.namespace
        join_ray(wanted, space, for_handle=True)

        def head_is_there() -> bool:
            try:
                check_reachable(wanted)
            except ClusterNotFound:
                return False
            return True

        undo.callback(HeadWatch(wanted, reconnect_s(os.environ), head_is_there).close)
        info = discover(space, wanted)
        return Cluster(info, wanted, settings, undo.pop_all().close)
