"""Requests as clients send them, and what every home of replicas offers to send them by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import NO_EXTRA, PrepareExtra
from escrowmq.replication.model import BY_NAME, NO_ID

#: What ``prepare`` and ``commit`` speak for unless a test says otherwise.
APP, TOPIC = "app", "t"
#: Of a client that has heard of a time far ahead: no PREPARE of it is refused as STALE.
UP_TO_DATE = PrepareExtra(heard_ms=1 << 50)
#: Rows of every shape: with and without a key, headers, a value, a transaction.
ROWS = [
    encode_row(b"key", b"value" * 10, {"h": b"1", "i": b""}, "tx"),
    encode_row(None, b"", None, None),
    encode_row(None, b"x" * 300, None, None),
]


def message(
    topic: str, partition: int, values: Sequence[bytes], *, tx_id: str | None = None, seq: int = -1
) -> bytes:
    """Messages that are readable at once. ``seq``: of producer "test"; -1: without a number."""
    rows = [encode_row(None, value, None, tx_id) for value in values]
    return ops.message(topic, partition, "test", 0, seq, rows)


def prepare(
    tx_ids: Sequence[str],
    size: int = 20,
    topic: str = TOPIC,
    *,
    app: str = APP,
    partition: int = 0,
    query_ids: Sequence[str] | None = None,
    timeout_ms: int = 0,
    home_group: int = -1,
    extra: PrepareExtra | None = None,
) -> bytes:
    """One message of ``size`` bytes in each transaction; its value begins with the transaction's id."""
    rows = [encode_row(None, tx.encode().ljust(size, b"."), None, tx) for tx in tx_ids]
    return ops.prepare(
        app, topic, tx_ids, query_ids, timeout_ms, 0, [1] * len(tx_ids), home_group, 1, extra or NO_EXTRA
    ) + ops.pre_message(topic, partition, list(range(len(tx_ids))), [len(row) for row in rows], rows)


class Submitting(ABC):
    """Whatever home it is: the same verbs."""

    @abstractmethod
    def submit(self, *frames: bytes) -> list[Any]:
        """One request, done for sure; its results, one for each operation."""

    def topic(
        self,
        name: str = TOPIC,
        partitions: int = 1,
        first: int = BY_NAME,
        topic_id: int = NO_ID,
        **settings: Any,
    ) -> int:
        """A topic; one that is there already stays. ``first``: where it begins, else where its name says.
        ``topic_id``: as group 0 has told it to the others. Returns its id."""
        request = ops.create_topic(name, topic_settings(partitions, **settings), first, topic_id)
        (result,) = self.submit(request)
        assert result[0] in (0, 2), result
        return int(result[1])

    def publish(self, *tx_ids: str, size: int = 20, topic: str = TOPIC) -> None:
        """Prepare and commit them: one readable message each."""
        assert self.submit(prepare(tx_ids, size, topic, extra=UP_TO_DATE)) == [[0]]
        assert self.submit(ops.commit(APP, tx_ids)) == [[0]]
