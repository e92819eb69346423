"""The shape of a cluster and the names of its actors.

Clients need no more than this to find every replica, so it is a plain value that any process can be
given. It must never hold handles, addresses or leaders: those change, and are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from escrowmq.feedback.states import SUPERVISOR, broker_name, feedback_name
from escrowmq.replication.carried_settings import by_name

__all__ = ["SUPERVISOR", "ClusterInfo", "broker_name", "feedback_name"]


@by_name
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


# ------------------------------------------------------------------------------------------------------------
# How long a process of a Ray cluster waits for Ray's lost head, before Ray ends it.
#
# Ray reads it from the environment in which a process was started, with a default of a minute. It must be the
# same on all nodes and in the applications: the process that waits least ends first. Nothing here asks Ray.

#: Read by Ray in raylets, workers and drivers. Raylets have no other way to set it.
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
#: Ray's default.
RECONNECT_S = 60.0


def reconnect_s(environment: Mapping[str, str]) -> float:
    """How long a process with this environment waits for a lost control store before Ray ends it."""
    try:
        return float(environment[RECONNECT_VARIABLE])
    except (KeyError, ValueError):  # then Ray uses its default too
        return RECONNECT_S
