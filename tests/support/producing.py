"""What the producer tests share, beside the fixtures: names, and reading what anybody could read."""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.format.codec import Row, decode_rows
from escrowmq.replication.model import OpenTransaction, TransactionState, group_of
from tests.support.brokers import Brokers

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
ProducerOf = Callable[..., Producer]
Unique = Callable[[str], str]


def never() -> None:
    """A local transaction that must not be run."""
    raise AssertionError("the local transaction was run")


def rows(brokers: Brokers, topic: str, partitions: int = 1) -> list[tuple[int, int, Row]]:
    """(partition, offset, row) of everything readable at the leaders."""
    found: list[tuple[int, int, Row]] = []
    for partition in range(partitions):
        service = brokers.groups[group_of(topic, partition, brokers.info.groups)].leader()
        offset = 0
        while True:
            ((_, _, code, _, end, runs, blob),) = service.fetch([(topic, partition, offset)], 1 << 20, 0.0)
            assert code == 0, code
            at = 0
            for base, count, _, size in runs:
                for i, row in enumerate(decode_rows(bytes(blob)[at : at + size], count)):
                    if base + i >= offset:
                        found.append((partition, base + i, row))
                at += size
                offset = base + count
            if offset >= end:
                break
    return found


def values(brokers: Brokers, topic: str, partitions: int = 1) -> list[bytes]:
    """The readable values, partition by partition."""
    return [row[1] for _, _, row in rows(brokers, topic, partitions)]


def open_transactions(brokers: Brokers, topic: str | None = None) -> list[OpenTransaction]:
    """What is open, by the leaders' tables."""
    found: list[OpenTransaction] = []
    for group in brokers.groups:
        status, answer = group.leader().transactions(topic=topic)
        assert status == "ok"
        found += [OpenTransaction(*fields) for fields in answer]
    return found
