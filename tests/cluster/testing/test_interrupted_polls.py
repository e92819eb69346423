"""A poll that ends in an error which is not the broker's hands out nothing: all of it is polled again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import Consumer, ConsumerRecord, Message
from escrowmq.actors.consumer import arrow_batches
from escrowmq.testing import InMemoryCluster


class Panic(BaseException):
    """As extensions raise it that are written in Rust."""


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    """With two messages in each of two partitions."""
    with InMemoryCluster() as made:
        made.admin.create_topic("orders", partitions=2)
        with made.producer("shop") as producer:
            for value in (b"00", b"01", b"10", b"11"):
                producer.send(Message("orders", value, partition=int(value[:1]))).result(0)
        yield made


class Fails:
    """A deserializer that fails for one value, until that is mended."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.value = error, b"10"

    def __call__(self, value: bytes) -> bytes:
        if value == self.value:
            raise self.error
        return value


def found(records: list[ConsumerRecord]) -> list[bytes]:
    return sorted(record.value for record in records)


def consumer_of(cluster: InMemoryCluster, **options: Any) -> Consumer:
    return cluster.consumer("mail", ["orders"], auto_offset_reset="earliest", **options)


@pytest.mark.parametrize("error", [Panic("panicked"), SystemExit(1), KeyboardInterrupt()])
def test_what_was_taken_before_comes_again(cluster: InMemoryCluster, error: BaseException) -> None:
    fails = Fails(error)
    consumer = consumer_of(cluster, value_deserializer=fails)
    for _ in range(3):
        with pytest.raises(type(error)):
            consumer.poll(timeout_s=2.0)
    consumer.commit()
    assert [consumer.committed("orders", partition) for partition in (0, 1)] == [0, 0]
    fails.value = b"none"
    assert found(consumer.poll(timeout_s=2.0)) == [b"00", b"01", b"10", b"11"]


def test_a_nacked_record_comes_again_too(cluster: InMemoryCluster) -> None:
    fails = Fails(Panic("panicked"))
    fails.value = b"none"
    consumer = consumer_of(cluster, value_deserializer=fails)
    (nacked,) = [record for record in consumer.poll(timeout_s=2.0) if record.value == b"01"]
    consumer.nack(nacked, delay_s=1.0)
    consumer.seek("orders", 1, 0)
    cluster.clock.advance(2.0)
    fails.value = b"10"
    with pytest.raises(Panic):
        consumer.poll(timeout_s=2.0)
    consumer.commit()
    assert consumer.committed("orders", 0) == 1, "the nacked record is not passed"
    fails.value = b"none"
    assert found(consumer.poll(timeout_s=2.0)) == [b"01", b"10", b"11"]


def test_no_memory_for_a_table(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever catches that and polls again has lost nothing."""
    consumer = consumer_of(cluster)
    whole, calls = arrow_batches.take_batch, list[int]()

    def take(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return whole(*arguments)

    monkeypatch.setattr(arrow_batches, "take_batch", take)
    with pytest.raises(MemoryError):
        consumer.poll_arrow(timeout_s=2.0)
    table = consumer.poll_arrow(timeout_s=2.0)
    assert sorted(table.column("value").to_pylist()) == [b"00", b"01", b"10", b"11"]
