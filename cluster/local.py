"""``start_local``: a whole cluster started by one program, for experiments, tests, and small services.

Brokers are separate processes on this machine, and their data survive: opening the same directory again
finds every acknowledged message. Nothing else must be left behind: no process after ``stop`` or the
interpreter's end, and no temporary directory. The temporary directory of a program that was killed is removed
at the next start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from escrowmq.cluster.address import current_address
from escrowmq.cluster.config import Config, load_config, override
from escrowmq.cluster.driver import this_driver
from escrowmq.cluster.handle import Cluster, LocalCluster
from escrowmq.cluster.launch import launch, stop_cluster
from escrowmq.cluster.ray_use import (
    changing_ray,
    leave_with_the_last,
    refuse_after_fork,
    start_ray,
    touch_ray,
    use_ray,
)
from escrowmq.cluster.supervisor.cluster_dir import given_secret
from escrowmq.cluster.supervisor.supervisor import SupervisorPlan
from escrowmq.replication.errors import DataDirLocked
from escrowmq.replication.log.datadir import take_lock

# ------------------------------------------------------------------------------------------------------------
# Temporary data directories: removed at the end, or at the next start if their program was killed.
#
# A directory is marked by a lock file, which its program keeps locked as long as it lives, and which contains
# the program's pid once it is locked. A program that starts later removes the marked directories of its own
# user that no process holds: neither their program nor a broker that outlives it for a while. A directory
# without the mark belongs to somebody else, whatever its name, and is never touched.

PREFIX = "escrowmq-"
MARK = "temporary.lock"
#: Locks of other processes that may use a data directory: the supervisor and each replica.
_OTHER_LOCKS = ("*.lock", "*/lock")


class TemporaryDir:
    """A new directory at ``path``. Directories that killed programs left behind are removed first."""

    def __init__(self, parent: Path | None = None) -> None:
        where = Path(tempfile.gettempdir()) if parent is None else parent
        sweep(where)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
        self._lock = take_lock(self.path / MARK, 0o600, lambda holder: f"process {holder} holds {self.path}")

    def remove(self) -> None:
        """Remove the directory and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(parent: Path) -> None:
    """Remove the directories that killed programs of this user left in ``parent``.

    A directory that is in use or cannot be removed stays until the next time.
    """
    for path in parent.glob(f"{PREFIX}*/{MARK}"):
        with contextlib.suppress(OSError, DataDirLocked), _held(path.parent):
            shutil.rmtree(path.parent)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold all locks of a directory. Raises DataDirLocked, also if it is another user's or incomplete."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not (path / MARK).read_bytes():
        raise DataDirLocked(f"{path} is not left over")
    with contextlib.ExitStack() as locks:
        for pattern in _OTHER_LOCKS:
            for lock in path.glob(pattern):
                number = take_lock(lock, 0o644, lambda holder: f"process {holder} is in {path}")
                locks.callback(os.close, number)
        yield


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
