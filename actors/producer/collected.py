"""What the builders of blocks have in common: the transactions collected so far, and their messages."""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.actors.producer.blocks import Column, Placed


class Collected:
    """Transactions for one block per group: their ids, and their positions in the caller's batch."""

    __slots__ = ("home_topic", "ids", "indexes", "query_ids", "size", "tx_ids")

    def __init__(self, home_topic: str) -> None:
        self.home_topic = home_topic
        self.tx_ids: list[str] = []
        self.query_ids: list[str] = []
        self.indexes: list[int] = []
        self.ids: set[str] = set()  # given ids only: generated ones never repeat
        self.size = 0

    def note(self, tx_id: str, query_id: str, size: int, index: int) -> int:
        """Adds a transaction of ``size`` bytes; returns its position in the block."""
        place = len(self.tx_ids)
        self.tx_ids.append(tx_id)
        self.query_ids.append(query_id)
        self.indexes.append(index)
        self.size += size
        return place


def add_rows(columns: dict[tuple[str, int], Column], place: int, placed: Iterable[Placed]) -> None:
    """Adds the messages of the transaction at ``place`` to the columns of their partitions."""
    for topic, partition, row in placed:
        column = columns.get((topic, partition))
        if column is None:
            column = columns[topic, partition] = ([], [], [])
        column[0].append(place)
        column[1].append(len(row))
        column[2].append(row)
