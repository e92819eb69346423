"""What operators may want of replicas and nodes, checked against what is known when they say so. Pure.

What is refused here could never come about, or would take away what works. What can come about later (a node
that is away and comes back) is taken, and waited for by the steps.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

from escrowmq.cluster.cluster_dir import ClusterRecord
from escrowmq.cluster.member_steps import Group
from escrowmq.cluster.wishes import Move, Wishes
from escrowmq.replication.errors import ConfigError, Unavailable

SIZES = (1, 3, 5, 7)


class NodeUse(enum.StrEnum):
    """What a node is to be used for."""

    OPEN = "open"  # it may get replicas, and lead
    MAINTAINED = "maintained"  # it is about to be away: its replicas stay there, and do not lead
    DRAINED = "drained"  # its replicas go elsewhere


def wanted_size(record: ClusterRecord, gid: int, replicas: int) -> Wishes:
    """Group ``gid`` is to have so many voters. Raises ConfigError."""
    _check_group(record, gid)
    if type(replicas) is not int or replicas not in SIZES:
        raise ConfigError(
            f"replicas must be 1, 3, 5 or 7, not {replicas!r}: an even number needs a larger majority and "
            "survives no more losses"
        )
    return record.wishes.with_size(gid, replicas)


def wanted_move(
    record: ClusterRecord, groups: Sequence[Group], nodes: Collection[str], gid: int, rid: int, node: str
) -> Wishes:
    """In the place of a voter another one is to be on ``node``. Raises ConfigError, Unavailable."""
    _check_group(record, gid)
    group, wishes = groups[gid], record.wishes
    if wishes.moves_of(gid).get(rid) == node:
        return wishes
    if group.members is None:
        raise Unavailable(f"group {gid} has no leader, who would tell its members", 1.0)
    if rid not in group.members.voters:
        raise ConfigError(
            f"replica {rid!r} is no voter of group {gid}, which has {sorted(group.members.voters)}; "
            "'escrowmq members' shows them"
        )
    if node not in nodes:
        raise ConfigError(f"there is no node {node!r} now; there are {', '.join(sorted(nodes))}")
    if node in (*wishes.drained, *wishes.maintained):
        raise ConfigError(f"node {node!r} is closed; 'escrowmq node open {node}' opens it")
    if node in (*(seat.node for seat in group.seats.values()), *wishes.moves_of(gid).values()):
        raise ConfigError(f"node {node!r} has a replica of group {gid} already, or is about to")
    return wishes.with_moves([Move(gid, rid, node)])


def wanted_node(
    record: ClusterRecord,
    groups: Sequence[Group],
    nodes: Collection[str],
    node: str,
    use: NodeUse,
    *,
    force: bool = False,
) -> Wishes:
    """The node is to be used so. Raises ConfigError for a node that nobody knows, and, without ``force``, for
    maintenance of one without which a group would have no majority."""
    known = {*nodes, *record.wishes.drained, *record.wishes.maintained}
    known |= {seat.node for seat in (*record.seats.values(), *record.retired)}
    if node not in known:
        raise ConfigError(f"there is no node {node!r}; there are {', '.join(sorted(known))}")
    if use is NodeUse.MAINTAINED and not force:
        stuck = [
            group.gid for group in groups if not stands_without(group, {node, *record.wishes.maintained})
        ]
        if stuck:
            raise ConfigError(
                f"without node {node!r} groups {stuck} have no running majority and stand still; bring the "
                "others up, move a replica away ('escrowmq members move'), or say --force"
            )
    return record.wishes.with_node(node, drained=use is NodeUse.DRAINED, maintained=use is NodeUse.MAINTAINED)


def stands_without(group: Group, nodes: Collection[str]) -> bool:
    """Whether a majority of the voters runs elsewhere."""
    voters: Collection[int] = group.seats if group.members is None else group.members.voters
    left = [
        rid
        for rid in voters
        if rid in group.running and rid in group.seats and group.seats[rid].node not in nodes
    ]
    return 2 * len(left) > len(voters)


def uses(wishes: Wishes, nodes: Collection[str]) -> Mapping[str, NodeUse]:
    """Of each node that is there or of which something was said."""
    found = dict.fromkeys(sorted({*nodes, *wishes.drained, *wishes.maintained}), NodeUse.OPEN)
    found |= dict.fromkeys(wishes.maintained, NodeUse.MAINTAINED)
    return found | dict.fromkeys(wishes.drained, NodeUse.DRAINED)


def _check_group(record: ClusterRecord, gid: int) -> None:
    if type(gid) is not int or not 0 <= gid < record.groups:
        raise ConfigError(f"there is no broker group {gid!r}; there are 0 to {record.groups - 1}")
