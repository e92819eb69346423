"""``start_local``: a whole cluster started by one program, for experiments, tests, and small services.

Brokers are separate processes on this machine, and their data survive: opening the same directory again
finds every acknowledged message. Nothing else must be left behind: no process after ``stop`` or the
interpreter's end, and no temporary directory. The temporary directory of a program that was killed is removed
at the next start.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from escrowmq.cluster.address import current_address
from escrowmq.cluster.config import Config, load_config, override
from escrowmq.cluster.driver import this_driver
from escrowmq.cluster.embedded_ray import start_ray
from escrowmq.cluster.handle import Cluster, LocalCluster
from escrowmq.cluster.launch import launch, stop_cluster
from escrowmq.cluster.ray_use import (
    changing_ray,
    leave_with_the_last,
    refuse_after_fork,
    touch_ray,
    use_ray,
)
from escrowmq.cluster.secret import given_secret
from escrowmq.cluster.supervisor import SupervisorPlan
from escrowmq.cluster.temporary_dir import TemporaryDir

__all__ = ["Cluster", "LocalCluster", "start_local"]


def start_local(
    groups: int | None = None,
    replicas: int | None = None,
    data_dir: Path | str | None = None,
    *,
    namespace: str | None = None,
    config: Config | Path | str | None = None,
    **sections: Mapping[str, Any],
) -> LocalCluster:
    """Start ``groups`` (1) broker groups of ``replicas`` (3) each on this machine; wait for their leaders.

    Uses the Ray cluster that this process is connected to, or starts one that ends with this cluster, or
    with the last other handle of this process.
    ``data_dir`` None: a temporary directory. ``config``: a Config, or a YAML file. ``sections`` override
    single settings: ``broker={"segment_bytes": 1 << 20}``. The result is a context manager.

    Raises ConfigError (a bad setting; the namespace already has a cluster; ``groups`` or ``replicas`` differ
    from those the directory was founded with), DataDirLocked, DataDirMismatch, UnknownVersion, NotAuthorized,
    Unavailable.
    """
    shape = {"groups": groups, "replicas": replicas, "namespace": namespace}
    changes = {
        **sections,
        "cluster": {**sections.get("cluster", {}), **{k: v for k, v in shape.items() if v is not None}},
    }
    if data_dir is not None:
        changes["storage"] = {**sections.get("storage", {}), "data_dir": Path(data_dir)}
    settings = override(config, changes) if isinstance(config, Config) else load_config(config, changes)
    secret = given_secret(settings.security)

    refuse_after_fork()
    with ExitStack() as undo:
        where = settings.storage.data_dir
        if where is None:
            temporary = TemporaryDir()
            undo.callback(temporary.remove)
            where = temporary.path
        undo.callback(use_ray())
        with changing_ray():
            ours = not ray.is_initialized()
            if ours:
                touch_ray()
                start_ray(settings.ray, settings.cluster.namespace)
                leave_with_the_last(started=True)
        plan = SupervisorPlan(
            shape=settings.cluster,
            data_dir=where.absolute(),
            secret=secret,
            broker=settings.broker,
            settings=settings.supervisor,
            tls=settings.security.tls_files(),
            here_only=True,
            driver=this_driver(ours),
        )
        here = ray.get_runtime_context().get_node_id()
        info = launch(plan, here, wait_s=settings.supervisor.start_timeout_s)

        def on_close() -> None:
            atexit.unregister(cluster.close)
            if ray.is_initialized():
                stop_cluster(info.namespace)

        undo.callback(on_close)
        cluster = LocalCluster(info, current_address(), settings, undo.pop_all().close)
        atexit.register(cluster.close)
        return cluster
