"""Where topics lie that were created without a first group."""

from __future__ import annotations

from escrowmq.replication.model import BY_NAME, TopicInfo, first_group, group_of


def by_name(topic: str, partition: int, groups: int) -> int:
    """The broker group of a partition."""
    return group_of(first_group(info(topic)), partition, groups)


def info(name: str, partitions: int = 1, first: int = BY_NAME) -> TopicInfo:
    """A topic with the defaults of the log's format."""
    return TopicInfo(name, partitions, "hold", 15, 6000, 604_800_000, -1, first)
