"""The leader of a real cluster's group: a look at a busy machine may find no replica that answers in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from escrowmq import Cluster
    from escrowmq.actors.admin.types import GroupStatus, ReplicaStatus

PATIENCE_S = 20.0


def led_group(cluster: Cluster) -> GroupStatus:
    """The status of a cluster's only group, in which one replica leads and answers."""

    def look() -> GroupStatus | None:
        (group,) = cluster.admin.status().groups
        leads = group.leader is not None and group.replicas[group.leader].reachable
        return group if leads else None

    group = wait_until(look, PATIENCE_S, "a leader that answers", 0.1)
    assert group is not None
    return group


def leader_of(cluster: Cluster) -> ReplicaStatus:
    """Which replica leads the cluster's only group; ``details["pid"]`` is its process."""
    group = led_group(cluster)
    assert group.leader is not None
    return group.replicas[group.leader]
