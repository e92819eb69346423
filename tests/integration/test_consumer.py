"""Consumers on a real cluster: transactions, jobs, asyncio, a killed member, killed brokers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.errors import OffsetOutOfRange, UnknownTopic
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.model import ConsumerRecord, Message
from tests.support.leaders import led_group
from tests.support.polling import read, settle, values

if TYPE_CHECKING:
    from escrowmq import Cluster, Consumer

Unique = Callable[[str], str]


def send(cluster: Cluster, topic: str, payloads: Sequence[bytes], partition: int | None = None) -> None:
    with cluster.producer("sender") as producer:
        futures = [producer.send(Message(topic, value, partition=partition)) for value in payloads]
        for future in futures:
            future.result(30)


def member(cluster: Cluster, group: str, topic: str, **options: object) -> Consumer:
    return cluster.consumer(group, [topic], auto_offset_reset="earliest", **options)


def test_only_committed_messages_with_their_transaction_and_headers(face: Cluster, unique: Unique) -> None:
    topic = unique("orders")
    face.admin.create_topic(topic, partitions=2)
    with face.producer(unique("shop")) as producer, member(face, unique("g"), topic) as consumer:
        with producer.transaction(tx_id="kept") as kept:
            kept.send(Message(topic, b"one", key=b"k", headers={"h": b"v"}, partition=0))
            kept.send(Message(topic, b"two", partition=1))
            kept.prepare()
            assert consumer.poll(timeout_s=1.0) == []
        with pytest.raises(ZeroDivisionError), producer.transaction() as dropped:
            dropped.send(Message(topic, b"never", partition=0))
            dropped.prepare()
            raise ZeroDivisionError
        records = sorted(read(consumer, 2), key=lambda record: record.value)
        assert consumer.poll(timeout_s=0.3) == []
    assert [(r.value, r.offset, r.key, r.tx_id) for r in records] == [
        (b"one", 0, b"k", "kept"),
        (b"two", 0, None, "kept"),
    ]
    assert records[0].headers == {"h": b"v"}
    assert isinstance(records[0], ConsumerRecord)


def test_a_key_keeps_its_order_and_time_can_be_sought(face: Cluster, unique: Unique) -> None:
    topic = unique("keyed")
    face.admin.create_topic(topic, partitions=3)
    with face.producer("sender") as producer:
        sent = [producer.send(Message(topic, b"%d" % i, key=b"k%d" % (i % 7))) for i in range(700)]
        stored = [future.result(30) for future in sent]
    with face.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, p) for p in range(3)])
        by_key: dict[bytes | None, list[int]] = {}
        for record in read(consumer, 700):
            by_key.setdefault(record.key, []).append(int(record.value))
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
        assert len(by_key) == 7
        last = stored[-1]
        found = consumer.seek_to_time(topic, last.partition, last.timestamp)
        assert found <= last.offset
        assert consumer.seek_to_time(topic, last.partition, last.timestamp + 60_000) == last.offset + 1


@pytest.mark.ray
def test_a_killed_members_partitions_move_on(cluster: Cluster, unique: Unique) -> None:
    topic, group = unique("orders"), unique("g")
    cluster.admin.create_topic(topic, partitions=2)
    send(cluster, topic, [b"a", b"b"], partition=0)
    command = [sys.executable, "-m", "tests.integration.member"]
    namespace = cluster.info.namespace
    with subprocess.Popen(
        [*command, cluster.address, namespace, group, topic], stdout=subprocess.PIPE, text=True
    ) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "a\n"
            with member(cluster, group, topic) as survivor:
                settle([survivor], lambda: len(survivor.assignment()) == 1)
                os.kill(victim.pid, signal.SIGKILL)
                started = time.monotonic()
                records = settle([survivor], lambda: len(survivor.assignment()) == 2)
                assert time.monotonic() - started < 4.0
                records += survivor.poll(timeout_s=5.0)
                while len(records) < 2:
                    records += read(survivor, 1)
                assert sorted(values(records)) == [b"a", b"b"], "it had not committed: all comes again"
        finally:
            victim.kill()


def test_asyncio(face: Cluster, unique: Unique) -> None:
    topic = unique("orders")
    face.admin.create_topic(topic)

    async def main() -> None:
        async with member(face, unique("g"), topic).aio as consumer:
            polling = asyncio.create_task(consumer.poll(timeout_s=20.0))
            await asyncio.to_thread(send, face, topic, [b"x"])
            assert values(await polling) == [b"x"]
            await consumer.commit()
            assert await consumer.committed(topic, 0) == 1

    asyncio.run(main())


@pytest.mark.ray
def test_large_blobs_for_jobs(cluster: Cluster, unique: Unique) -> None:
    topic = unique("bulk")
    cluster.admin.create_topic(topic)
    payloads = [b"%06d" % i + b"." * 1_000 for i in range(6_000)]
    send(cluster, topic, payloads)
    with PartitionReader(cluster.info, topic, 0, 100, 5_900, fetch_bytes=2 << 20) as reader:
        blocks = list(reader)
    found = [row[1] for block in blocks for row in decode_rows(block.rows, block.messages)]
    assert found == payloads[100:5_900]
    with pytest.raises(OffsetOutOfRange):
        list(PartitionReader(cluster.info, topic, 0, 0, 6_001, lag_patience_s=0.5))


def test_bad_input(face: Cluster, unique: Unique) -> None:
    with pytest.raises(UnknownTopic, match="create_topic"):
        member(face, unique("g"), unique("nowhere"))
    topic = unique("orders")
    face.admin.create_topic(topic)
    with face.consumer() as consumer, pytest.raises(UnknownTopic, match="no partition 7"):
        consumer.assign([(topic, 7)])


@pytest.mark.ray
@pytest.mark.slow
def test_reading_and_committing_through_the_death_of_every_kind_of_replica(
    cluster: Cluster, unique: Unique, healthy_again: None
) -> None:
    """A follower and the leader are killed while a group reads."""
    topic, name = unique("orders"), unique("g")
    cluster.admin.create_topic(topic, partitions=3)
    consumer = member(cluster, name, topic, heartbeat_interval_s=0.2)
    send(cluster, topic, [b"%d" % i for i in range(300)])
    read(consumer, 300)
    consumer.commit()
    before = consumer.assignment()
    group = led_group(cluster)
    leader = group.leader
    assert leader is not None
    seen = 300
    for rid in ((leader + 1) % 3, leader):
        killed = time.monotonic()
        os.kill(group.replicas[rid].details["pid"], signal.SIGKILL)
        (shown,) = cluster.admin.status(wait_s=0.5).groups
        assert time.monotonic() - killed < 1.5, "status waits for nobody"
        assert not shown.replicas[rid].reachable
        send(cluster, topic, [b"%d" % i for i in range(seen, seen + 300)])
        read(consumer, 300)
        consumer.commit()
        seen += 300
        # Both replicas must be back before the next one dies, or there is no majority.
        deadline = time.monotonic() + 30
        while not cluster.admin.status().healthy:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert consumer.assignment() == before
    described = cluster.admin.describe_group(name)
    assert described.lag == 0
    assert sum(place.committed or 0 for place in described.partitions) == seen
