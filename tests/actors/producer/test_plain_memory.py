"""Plain messages leave nothing to Python's garbage collector: counted on a cluster in memory, held still."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import google_crc32c
import pytest

from escrowmq import Message, Producer, ProducerConfig, RecordMetadata
from escrowmq.actors.producer.plain.record_batch import RecordBatch
from escrowmq.testing import InMemoryCluster

COUNT = 10_000
#: Far below one per message, far above the parcels, batches and requests that there are.
FEW = COUNT // 50


def producer_of(cluster: InMemoryCluster, **settings: Any) -> Producer:
    producer = cluster.producer("shop", config=ProducerConfig(**settings))
    producer.send(Message("t", b"warm")).result(1.0)
    return producer


@contextmanager
def held(cluster: InMemoryCluster) -> Iterator[None]:
    """Nothing but the caller runs: its messages stay in the inbox."""
    cluster.stage.held.depth += 1
    try:
        yield
    finally:
        cluster.stage.held.depth -= 1


def messages(keyed: bool) -> list[Message]:
    return [Message("t", b"%d" % i, b"%d" % i if keyed else None, {"h": b"1"}) for i in range(COUNT)]


@pytest.mark.parametrize("keyed", [True, False])
def test_no_object_per_message_that_the_collector_knows(cluster: InMemoryCluster, keyed: bool) -> None:
    producer, sent = producer_of(cluster), messages(keyed)
    gc.collect()
    before = len(gc.get_objects())
    with held(cluster):
        futures = [producer.send(message) for message in sent]
        assert not any(map(gc.is_tracked, futures))
        assert len(gc.get_objects()) - before < FEW, "in the inbox"
    assert producer.flush(10.0)
    assert len(gc.get_objects()) - before < 2 * FEW, "after the answers, with what the broker has stored"
    assert all(future.done() for future in futures)
    offsets: dict[int, int] = {}
    for message, future in zip(sent, futures, strict=True):
        metadata = future.result(0)
        if message.key is not None:
            assert metadata.partition == google_crc32c.value(message.key) % 4
        earlier = offsets.get(metadata.partition)
        assert earlier is None or metadata.offset == earlier + 1
        offsets[metadata.partition] = metadata.offset


def test_sending_starts_no_collection(cluster: InMemoryCluster) -> None:
    producer, sent, started = producer_of(cluster), messages(True), list[str]()

    def note(phase: str, info: dict[str, int]) -> None:
        started.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        with held(cluster):
            futures = [producer.send(message) for message in sent]
    finally:
        gc.callbacks.remove(note)
    assert len(started) <= 2 and len(futures) == COUNT, "half of it is the collector's visits otherwise"


def test_what_nobody_keeps_is_freed_and_what_somebody_keeps_stays(cluster: InMemoryCluster) -> None:
    producer = producer_of(cluster, request_bytes=4_000)
    others = _parcels()  # what tests before this one have kept
    with held(cluster):
        kept = [producer.send(message) for message in messages(True)][:: COUNT // 10]
    assert producer.flush(10.0)
    parcels = {id(future._parcel): future._parcel for future in kept}  # type: ignore[attr-defined]
    alive = [found for found in _parcels() if not any(found is other for other in others)]
    assert len(alive) == len(parcels) <= 10
    assert all(not parcel.rows and not parcel.askers for parcel in alive), "their messages are not kept"
    assert all(isinstance(future.result(0), RecordMetadata) for future in kept)
    del parcels, alive, kept
    assert len(_parcels()) <= len(others)


def _parcels() -> list[RecordBatch]:
    return [found for found in gc.get_objects() if type(found) is RecordBatch]


def test_with_and_without_a_partition_they_keep_the_order_in_which_they_were_sent(
    cluster: InMemoryCluster,
) -> None:
    seed = 5
    producer, rng = producer_of(cluster), random.Random(seed)
    with held(cluster):
        futures = [
            producer.send(Message("t", b"%d" % i, partition=rng.choice((None, None, 0, 1))))
            for i in range(500)
        ]
    assert producer.flush(10.0)
    for partition in range(4):
        offsets = [f.result(0).offset for f in futures if f.result(0).partition == partition]
        assert offsets == sorted(offsets), seed


def test_an_event_loop_is_told_of_many_messages_at_once(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_of(cluster)

    async def main() -> list[RecordMetadata]:
        calls, loop = list[Any](), asyncio.get_running_loop()
        call_soon = loop.call_soon_threadsafe

        def counted(*args: Any) -> Any:
            calls.append(args)
            return call_soon(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        with held(cluster):
            futures = [await producer.aio.send_nowait(Message("t", b"x", b"k")) for _ in range(500)]
            gave_up = futures.pop(7)
            gave_up.cancel()
        await producer.aio.flush(10.0)
        sent = list(await asyncio.gather(*futures))
        assert len(calls) <= 20
        return sent

    sent = asyncio.run(main())
    assert [metadata.offset - sent[0].offset for metadata in sent] == [n for n in range(500) if n != 7]
