"""Puts the exporter together, for a cluster that this process has joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from escrowmq.actors.client.ray_feedback import RayFeedbackProcesses
from escrowmq.actors.client.router import Router
from escrowmq.cluster.exporter.looking import WAIT_S, Looks
from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.cluster.exporter.watching import EVERY_S, Watching
from escrowmq.cluster.handle import Cluster
from escrowmq.replication.errors import EscrowMQError


class Exporter:
    """Looks at a cluster regularly from ``start`` to ``close``. Close it before the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        every_s: float = EVERY_S,
        *,
        seen: Callable[[Mapping[Key, Value]], None] = lambda series: None,
    ) -> None:
        """``seen`` is called with the series of each look."""

        def supervisor() -> bool:
            try:
                cluster.health()
            except EscrowMQError:
                return False
            return True

        self._router = Router(cluster.info, name="escrowmq-exporter")
        self._feedback = RayFeedbackProcesses(cluster.info.namespace)
        self._looks = Looks(self._router, self._feedback, supervisor, wait_s=min(WAIT_S, every_s))
        self.watching = Watching(self._looks, every_s, seen=seen)

    def start(self) -> None:
        """Start looking."""
        self.watching.start()

    def close(self) -> None:
        """Stop looking."""
        self.watching.close()
        self._looks.close()
        self._feedback.close()
        self._router.close()
