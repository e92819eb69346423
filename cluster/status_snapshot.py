"""The state of a cluster as ``escrowmq status`` shows it: what the replicas and the supervisor report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from escrowmq.actors.admin.types import ClusterStatus

if TYPE_CHECKING:
    from escrowmq.actors.admin.admin import Admin
    from escrowmq.actors.client.topology import ClusterInfo


class Asked(Protocol):
    """What questions need of a cluster: that of a client, or the one that a supervisor supervises."""

    @property
    def info(self) -> ClusterInfo: ...

    @property
    def address(self) -> str: ...

    @property
    def admin(self) -> Admin: ...

    def health(self) -> dict[str, Any]: ...

    def head_waits(self, health: dict[str, Any]) -> dict[str, float]: ...


@dataclass(frozen=True)
class StatusSnapshot:
    """The cluster at one moment. ``health``: the supervisor's answer; ``away``: its error if it gave none."""

    found: ClusterStatus
    health: Mapping[str, Any]
    head: str | None
    away: str | None
    address: str
    namespace: str

    @property
    def well(self) -> bool:
        """Whether all replicas are healthy and the supervisor answers."""
        return self.found.healthy and not self.away


def take(cluster: Asked) -> StatusSnapshot:
    """Ask all replicas and the supervisor."""
    from escrowmq.cluster.head import Head, head_in_words
    from escrowmq.replication.errors import ClusterNotFound, Unavailable

    health: Mapping[str, Any] = {"nodes": [], "replicas": []}
    away = head = None
    found = cluster.admin.status()
    try:
        health = cluster.health()
        if health.get("head"):  # the supervisor of an embedded cluster reports no head
            head = head_in_words(Head(**health["head"]), cluster.head_waits(health))
    except (ClusterNotFound, Unavailable) as error:  # it was lost with Ray's head; the replicas did answer
        away = str(error)
    return StatusSnapshot(found, health, head, away, cluster.address, cluster.info.namespace)
