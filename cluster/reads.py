"""The questions of commands that only read, and the type of each answer.

A command joins the cluster and asks, or lets an exporter ask that has joined already (reading_client.py).
The exporter's answer is decoded with these types. No question changes anything, so it may be asked twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from escrowmq.actors.admin.types import GroupDescription, TopicDescription, TransactionDescription
from escrowmq.cluster.look import Look, take
from escrowmq.replication.errors import UnknownGroup
from escrowmq.replication.model import OpenTransaction, TopicInfo

if TYPE_CHECKING:
    from escrowmq.cluster.handle import Cluster


@dataclass(frozen=True, slots=True)
class Read:
    """``ask(cluster, *arguments)`` returns a ``kind``."""

    ask: Callable[..., Any]
    kind: Any


def _group(cluster: Cluster, name: str) -> GroupDescription:
    found = cluster.admin.describe_group(name)
    if not found.members and not found.partitions and name not in cluster.admin.groups():
        raise UnknownGroup(name)
    return found


def _transactions(
    cluster: Cluster, state: str | None, app: str | None, topic: str | None, limit: int
) -> list[OpenTransaction]:
    found = cluster.admin.list_transactions(state, app, topic, limit)
    if topic is not None and not found:
        cluster.admin.describe_topic(topic)  # raises for an unknown topic, which has no transactions either
    return found


#: All questions, by name.
READS: dict[str, Read] = {
    "status": Read(take, Look),
    "topics": Read(lambda cluster: cluster.admin.topics(), list[TopicInfo]),
    "topic": Read(lambda cluster, name: cluster.admin.describe_topic(name), TopicDescription),
    "groups": Read(
        lambda cluster: cluster.admin.describe_groups(cluster.admin.groups()), list[GroupDescription]
    ),
    "group": Read(_group, GroupDescription),
    "transactions": Read(_transactions, list[OpenTransaction]),
    "transaction": Read(
        lambda cluster, tx_id, app: cluster.admin.show_transaction(tx_id, app), TransactionDescription
    ),
}
