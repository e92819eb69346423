"""The shape of a cluster and the names of its actors.

Clients need no more than this to find every replica, so it is a plain value that any process can be
given. It must never hold handles, addresses or leaders: those change, and are looked up.
"""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.feedback.names import SUPERVISOR, broker_name, feedback_name
from escrowmq.replication.carried_settings import by_name

__all__ = ["SUPERVISOR", "ClusterInfo", "broker_name", "feedback_name"]


@by_name("cluster_id", "namespace", "groups", "replicas")
@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster: ``groups`` broker groups of ``replicas`` replicas each, in one Ray namespace."""

    cluster_id: str
    namespace: str
    groups: int
    replicas: int
    #: Log format of the cluster's own processes (``broker.log_format``). The feedback processes use it, too,
    #: although producers start them.
    log_format: str = "text"
