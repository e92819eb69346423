"""Errors of transactions that move places of a consumer group. Part of the tree in errors.py."""

from __future__ import annotations

from escrowmq.replication.errors import EscrowMQError

#: Suggested pause: a transaction without a local one is usually decided within milliseconds.
PENDING_RETRY_S = 0.1


class OffsetsMoved(EscrowMQError):
    """The group is no longer where this work began: another member has done it, or somebody has set the
    place. Nothing of this transaction will be read; go on from ``committed`` (-1: no place)."""

    def __init__(self, group: str, topic: str, partition: int, committed: int) -> None:
        super().__init__(group, topic, partition, committed)
        self.group, self.topic, self.partition, self.committed = group, topic, partition, committed

    def __str__(self) -> str:
        return (
            f"group {self.group!r} is at {self.committed} of {self.topic}/{self.partition}, which is not "
            "where this work began: somebody else has done it; poll again, which goes on from there"
        )


class OffsetsPending(EscrowMQError):
    """An open transaction is about to move the group's place. Nothing was done: try again when it is
    settled, after ``retry_after_s`` or so."""

    def __init__(self, group: str, topic: str, partition: int) -> None:
        super().__init__(group, topic, partition)
        self.group, self.topic, self.partition = group, topic, partition
        self.retry_after_s = PENDING_RETRY_S

    def __str__(self) -> str:
        return (
            f"an open transaction holds the place of group {self.group!r} in {self.topic}/{self.partition}; "
            "wait until it is settled ('escrowmq txn list' shows open ones)"
        )
