"""Where things are: the shape of a cluster and the names of its actors.

Clients need no more than this to find every replica, so it is a plain value that any process can be
given. It must never hold handles, addresses or leaders: those change, and are looked up.
"""

from __future__ import annotations

from dataclasses import dataclass

SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster: ``groups`` broker groups of ``replicas`` replicas each, in one Ray namespace."""

    cluster_id: str
    namespace: str
    groups: int
    replicas: int


def broker_name(gid: int, rid: int) -> str:
    """Ray name of replica ``rid`` of group ``gid``."""
    return f"broker-g{gid}-r{rid}"


def feedback_name(app: str, topic: str) -> str:
    """Ray name of the feedback actor that asks ``app`` about its transactions of ``topic``."""
    return f"feedback-{app}-{topic}"
