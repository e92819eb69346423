"""The questions of commands that only read, and the type of each answer.

A command joins the cluster and asks, or lets an exporter ask that has joined already (reading_client.py).
The exporter's answer is decoded with these types. No question changes anything, so it may be asked twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from escrowmq.actors.admin.message_types import MessageTrace, StoredMessage
from escrowmq.actors.admin.share_types import DeadLetter
from escrowmq.actors.admin.types import (
    GroupDescription,
    GroupMembers,
    MemberChange,
    NodeStatus,
    ReplicaShift,
    ScheduledMessage,
    TopicDescription,
    TransactionDescription,
)
from escrowmq.cluster.status_snapshot import Asked, StatusSnapshot, take
from escrowmq.replication.carried_settings import prepared
from escrowmq.replication.errors import UnknownGroup
from escrowmq.replication.model import OpenTransaction, TopicInfo


@dataclass(frozen=True, slots=True)
class Read:
    """``ask(cluster, *arguments)`` returns a ``kind``."""

    ask: Callable[..., Any]
    kind: Any


def _group(cluster: Asked, name: str) -> GroupDescription:
    found = cluster.admin.describe_group(name)
    if not found.members and not found.partitions and name not in cluster.admin.groups():
        raise UnknownGroup(name)
    return found


def _transactions(
    cluster: Asked, state: str | None, app: str | None, topic: str | None, limit: int
) -> list[OpenTransaction]:
    found = cluster.admin.list_transactions(state, app, topic, limit)
    if topic is not None and not found:
        cluster.admin.describe_topic(topic)  # raises for an unknown topic, which has no transactions either
    return found


#: All questions, by name.
READS: dict[str, Read] = {
    "status": Read(take, StatusSnapshot),
    "topics": Read(lambda cluster: cluster.admin.topics(), list[TopicInfo]),
    "topic": Read(lambda cluster, name: cluster.admin.describe_topic(name), TopicDescription),
    "groups": Read(
        lambda cluster: cluster.admin.describe_groups(cluster.admin.groups()), list[GroupDescription]
    ),
    "group": Read(_group, GroupDescription),
    "transactions": Read(_transactions, list[OpenTransaction]),
    "scheduled": Read(
        lambda cluster, topic, before, limit: cluster.admin.scheduled(topic, before, limit),
        list[ScheduledMessage],
    ),
    "dead_letters": Read(
        lambda cluster, group, limit, since, reason: cluster.admin.dead_letters(group, limit, since, reason),
        list[DeadLetter],
    ),
    "dead_letter": Read(lambda cluster, group, id: cluster.admin.dead_letter(group, id), DeadLetter),
    "message": Read(
        lambda cluster, topic, partition, offset: cluster.admin.message(topic, partition, offset),
        StoredMessage,
    ),
    "trace": Read(
        lambda cluster, topic, partition, offset: cluster.admin.trace(topic, partition, offset),
        MessageTrace,
    ),
    "transaction": Read(
        lambda cluster, tx_id, app: cluster.admin.show_transaction(tx_id, app), TransactionDescription
    ),
    "settings": Read(lambda cluster: cluster.admin.change_settings(), dict[str, int]),
    "members": Read(lambda cluster: cluster.admin.members(), tuple[GroupMembers, ...]),
    "changes": Read(lambda cluster: cluster.admin.member_changes(), tuple[MemberChange, ...]),
    "nodes": Read(lambda cluster: cluster.admin.nodes(), tuple[NodeStatus, ...]),
    "rebalance": Read(lambda cluster: cluster.admin.plan_rebalance(), tuple[ReplicaShift, ...]),
}
for _read in READS.values():
    prepared(_read.kind)
