"""The supervisor answers commands of its own user on its machine that only read (reading_server.py).

It has joined the cluster, so a command that asks it need not. Where Ray requires its token, it answers only
commands that have the token: those that could join Ray.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled  # there is no public API

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.asking_ray import head_waits
from escrowmq.cluster.ray_token import proof
from escrowmq.cluster.reading_server import ReadingServer
from escrowmq.replication.errors import Closed, ConfigError

log = logging.getLogger(__name__)

Health = dict[str, Any]


class SupervisedCluster:
    """The supervisor's own cluster, as questions see it. Clients begin with the first question."""

    def __init__(self, info: ClusterInfo, address: str, health: Callable[[], Health]) -> None:
        self.info, self.address, self.health = info, address, health
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._closed = False

    @property
    def admin(self) -> Admin:
        """Raises Closed."""
        with self._lock:
            if self._closed:
                raise Closed("the cluster is being stopped")
            if self._admin is None:
                self._admin = Admin(self.info)
            return self._admin

    def head_waits(self, health: Health) -> dict[str, float]:
        """See ``Cluster.head_waits``."""
        return head_waits(self.info.namespace, self.address, health)

    def close(self) -> None:
        """End its clients."""
        with self._lock:
            self._closed = True
            if self._admin is not None:
                self._admin.close()
                self._admin = None


class SupervisorReading:
    """Answers from ``begin`` to ``close``. It is a convenience: without it, commands join the cluster."""

    def __init__(self) -> None:
        self._server: ReadingServer | None = None
        self._cluster: SupervisedCluster | None = None

    def begin(self, info: ClusterInfo, health: Callable[[], Health]) -> None:
        """Begin to answer, if there is a place for the socket, and Ray's token if Ray requires it."""
        needed = proof(info.namespace) if is_token_auth_enabled() else None
        if needed == b"":
            log.info("commands that only read join Ray themselves: this process does not know Ray's token")
            return
        self._cluster = SupervisedCluster(info, str(ray.get_runtime_context().gcs_address), health)
        try:
            self._server = ReadingServer(self._cluster, "supervisor", proof=needed)
        except ConfigError as error:
            log.info("commands that only read join Ray themselves: %s", error)
        else:
            self._server.start()

    def close(self) -> None:
        """Stop answering. Idempotent."""
        if self._server is not None:
            self._server.close()
        if self._cluster is not None:
            self._cluster.close()
