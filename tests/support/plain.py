"""Plain messages without a producer: parcels of rows, as callers leave them in the inbox."""

from __future__ import annotations

from typing import Any

from escrowmq.actors.producer.plain.partition_stream import PartitionStream
from escrowmq.actors.producer.plain.record_batch import Ending, RecordBatch, SendFuture
from escrowmq.replication.errors import EscrowMQError


def parcel_of(*rows: bytes, topic: str = "t", partition: int = 0) -> tuple[RecordBatch, list[Any]]:
    """A parcel, and the future of each row: a SendFuture, which callers take for one of the standard
    library."""
    parcel = RecordBatch(topic, partition)
    parcel.rows, parcel.size = list(rows), sum(map(len, rows))
    return parcel, [SendFuture(parcel, number) for number in range(len(rows))]


def queued(stream: PartitionStream, *rows: bytes, now: float = 0.0) -> list[SendFuture]:
    """Queues the rows as one parcel; their futures."""
    parcel, futures = parcel_of(*rows, topic=stream.topic, partition=stream.partition)
    stream.add(parcel, now)
    return futures


def store(parcel: RecordBatch, base: int = 0, start: int = 0, end: int = 1, timestamp: int = 1) -> None:
    """Its messages from ``start`` up to ``end`` are stored."""
    parcel.end(Ending(parcel, start, end).stored(base, timestamp))


def fail(parcel: RecordBatch, error: EscrowMQError, start: int = 0, end: int = 1) -> None:
    """Its messages from ``start`` up to ``end`` are not stored."""
    parcel.end(Ending(parcel, start, end).failed(error))
