"""What the tests of the sink share: a link to in-process brokers, and reading what anybody could read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.router import Router
from escrowmq.spark_integration.sink.intents import Attempt, app_of, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink
from escrowmq.spark_integration.sink.task import attempt_name, write_batches
from tests.support.brokers import Brokers, ClientCalls
from tests.support.producing import open_transactions, rows

PARTITIONS = 4
ROWS = [f"row-{i}" for i in range(40)]


def effect(rows: list[str], epoch_id: str) -> list[tuple[str, str]]:
    """What :func:`readable` gives for these rows of an epoch."""
    return sorted((row, epoch_id) for row in rows)


@contextmanager
def linked(brokers: Brokers, query: str, patience_s: float = 20.0) -> Iterator[SinkLink]:
    """The link of a process of its own."""
    router = Router(brokers.info, calls=ClientCalls(brokers), name="sink-test")
    try:
        yield SinkLink(router, app_of(query), patience_s=patience_s, call_s=5.0)
    finally:
        router.close()


def batch(*values: str) -> pa.RecordBatch:
    keys = pa.array([value.encode() for value in values])
    return pa.RecordBatch.from_arrays([keys, pa.array(list(values))], names=["key", "value"])


def prepare(
    link: SinkLink,
    query: str,
    epoch: int,
    topic: str,
    batches: Iterable[pa.RecordBatch],
    *,
    task: int = 0,
    attempt: int = 0,
    home: int | None = None,
) -> tuple[Attempt, dict[int, int]]:
    """What one task does."""
    return write_batches(
        batches,
        lambda: (link, TopicCatalog(link.router).partitions),
        epoch_id=epoch_id_of(query, epoch),
        attempt=attempt_name(task, attempt),
        topic=topic,
        message_bytes_max=1 << 20,
        timeout_ms=60_000,
        home_of=None if home is None else lambda _: home,
    )


def readable(brokers: Brokers, topic: str) -> list[tuple[str, str | None]]:
    """(value, tx_id) of all that a reader gets, sorted."""
    return sorted((row[1].decode(), row[3]) for _, _, row in rows(brokers, topic, PARTITIONS))


def still_open(brokers: Brokers, query: str) -> int:
    """Open transactions of a query in all groups."""
    return sum(opened.app == app_of(query) for opened in open_transactions(brokers))
