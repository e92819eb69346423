"""The exporter over a cluster that this process has joined: what looks, what keeps, what serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from escrowmq.actors.client.feedback_processes import RayFeedbackProcesses
from escrowmq.actors.client.router import Router
from escrowmq.cluster.exporter.looking import WAIT_S, Looks
from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.cluster.exporter.watching import EVERY_S, Watching
from escrowmq.cluster.handle import Cluster
from escrowmq.replication.errors import EscrowMQError


class Exporter:
    """Looks at a cluster from ``start`` to ``close``, which is to come before the cluster's."""

    def __init__(
        self,
        cluster: Cluster,
        every_s: float = EVERY_S,
        *,
        seen: Callable[[Mapping[Key, Value]], None] = lambda series: None,
    ) -> None:
        """``seen`` is called with what each look found."""

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
        """Look from now on."""
        self.watching.start()

    def close(self) -> None:
        """Look no more."""
        self.watching.close()
        self._looks.close()
        self._feedback.close()
        self._router.close()
