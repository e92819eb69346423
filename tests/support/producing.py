"""What the producer tests share, beside the fixtures: names, and reading what anybody could read."""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.format.codec import Row
from escrowmq.replication.model import OpenTransaction, TransactionState
from tests.support.brokers import Brokers
from tests.support.reading import at, everything

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
ProducerOf = Callable[..., Producer]
Unique = Callable[[str], str]


def never() -> None:
    """A local transaction that must not be run."""
    raise AssertionError("the local transaction was run")


def rows(brokers: Brokers, topic: str, partitions: int = 1) -> list[tuple[int, int, Row]]:
    """(partition, offset, row) of everything readable at the leaders."""
    return [
        (partition, offset, row)
        for partition in range(partitions)
        for offset, row in everything(at(brokers.leader_of(topic, partition)), topic, partition)
    ]


def values(brokers: Brokers, topic: str, partitions: int = 1) -> list[bytes]:
    """The readable values, partition by partition."""
    return [row[1] for _, _, row in rows(brokers, topic, partitions)]


def open_transactions(brokers: Brokers, topic: str | None = None) -> list[OpenTransaction]:
    """What is open, by the leaders' tables."""
    found: list[OpenTransaction] = []
    for group in brokers.groups:
        status, answer = group.leader().parts.inspection.transactions(topic=topic)
        assert status == "ok"
        found += answer.rows()
    return found
