"""Checks operators' requests about replicas and nodes against what is known at that time. Pure.

A request is refused if it could never be fulfilled, or if it would break what works. A request that can be
fulfilled later (when a node comes back) is accepted, and the steps wait for it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

from escrowmq.cluster.supervisor.cluster_dir import ClusterRecord
from escrowmq.cluster.supervisor.desired_state import DesiredState, Move
from escrowmq.cluster.supervisor.member_steps import Group
from escrowmq.replication.errors import ConfigError, Unavailable

SIZES = (1, 3, 5, 7)


class NodeUse(enum.StrEnum):
    """The wanted use of a node."""

    OPEN = "open"  # it may get replicas and leaders
    MAINTAINED = "maintained"  # it is about to be away: its replicas stay there, but do not lead
    DRAINED = "drained"  # its replicas are replaced by new ones on other nodes


def wanted_size(record: ClusterRecord, gid: int, replicas: int) -> DesiredState:
    """The wishes with this number of voters for group ``gid``. Raises ConfigError."""
    _check_group(record, gid)
    if type(replicas) is not int or replicas not in SIZES:
        raise ConfigError(
            f"replicas must be 1, 3, 5 or 7, not {replicas!r}: an even number needs a larger majority "
            "without surviving more losses"
        )
    return record.wishes.with_size(gid, replicas)


def wanted_move(
    record: ClusterRecord, groups: Sequence[Group], nodes: Collection[str], gid: int, rid: int, node: str
) -> DesiredState:
    """The wishes with the replacement of voter ``rid`` by a new replica on ``node``.

    Raises ConfigError, Unavailable.
    """
    _check_group(record, gid)
    group, wishes = groups[gid], record.wishes
    if wishes.moves_of(gid).get(rid) == node:
        return wishes
    if group.members is None:
        raise Unavailable(f"group {gid} has no leader that could report its members", 1.0)
    if rid not in group.members.voters:
        raise ConfigError(
            f"replica {rid!r} is not a voter of group {gid}, whose voters are "
            f"{sorted(group.members.voters)}; 'escrowmq members' shows them"
        )
    if node not in nodes:
        raise ConfigError(f"node {node!r} is not up; the nodes are {', '.join(sorted(nodes))}")
    if node in (*wishes.drained, *wishes.maintained):
        raise ConfigError(
            f"node {node!r} is drained or in maintenance; 'escrowmq node open {node}' puts it back in use"
        )
    if node in (*(seat.node for seat in group.seats.values()), *wishes.moves_of(gid).values()):
        raise ConfigError(f"node {node!r} has a replica of group {gid} already, or will get one")
    return wishes.with_moves([Move(gid, rid, node)])


def wanted_node(
    record: ClusterRecord,
    groups: Sequence[Group],
    nodes: Collection[str],
    node: str,
    use: NodeUse,
    *,
    force: bool = False,
) -> DesiredState:
    """The wishes with this use of the node.

    Raises ConfigError for an unknown node and, without ``force``, for the maintenance of a node without which
    a group would have no majority.
    """
    known = {*nodes, *record.wishes.drained, *record.wishes.maintained}
    known |= {seat.node for seat in (*record.seats.values(), *record.retired)}
    if node not in known:
        raise ConfigError(f"unknown node {node!r}; the known nodes are {', '.join(sorted(known))}")
    if use is NodeUse.MAINTAINED and not force:
        stuck = [
            group.gid for group in groups if not stands_without(group, {node, *record.wishes.maintained})
        ]
        if stuck:
            raise ConfigError(
                f"without node {node!r}, groups {stuck} have no running majority and stop; bring up the "
                "others, move a replica away ('escrowmq members move'), or use --force"
            )
    return record.wishes.with_node(node, drained=use is NodeUse.DRAINED, maintained=use is NodeUse.MAINTAINED)


def stands_without(group: Group, nodes: Collection[str]) -> bool:
    """Whether a majority of the group's voters runs on other nodes."""
    voters: Collection[int] = group.seats if group.members is None else group.members.voters
    left = [
        rid
        for rid in voters
        if rid in group.running and rid in group.seats and group.seats[rid].node not in nodes
    ]
    return 2 * len(left) > len(voters)


def uses(wishes: DesiredState, nodes: Collection[str]) -> Mapping[str, NodeUse]:
    """The use of each node that is up or has a wish."""
    found = dict.fromkeys(sorted({*nodes, *wishes.drained, *wishes.maintained}), NodeUse.OPEN)
    found |= dict.fromkeys(wishes.maintained, NodeUse.MAINTAINED)
    return found | dict.fromkeys(wishes.drained, NodeUse.DRAINED)


def _check_group(record: ClusterRecord, gid: int) -> None:
    if type(gid) is not int or not 0 <= gid < record.groups:
        raise ConfigError(f"there is no broker group {gid!r}; groups are numbered 0 to {record.groups - 1}")
