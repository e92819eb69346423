"""Share consumers with tags: what they hand out, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import ConfigError, Message, ShareConsumer, ShareRecord
from escrowmq.testing import InMemoryCluster

TOPIC = "orders"


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic(TOPIC)
        yield made


def queue_of(cluster: InMemoryCluster, tags: Any, group: str = "mail", **options: Any) -> ShareConsumer:
    return cluster.share_consumer(group, [TOPIC], auto_offset_reset="earliest", tags=tags, **options)


def send(cluster: InMemoryCluster, *tags: str | None, value: str = "%d", **settings: Any) -> None:
    """One message for each, whose value is its number."""
    with cluster.producer("shop", **settings) as producer:
        for number, tag in enumerate(tags):
            producer.send(Message(TOPIC, (value % number).encode(), tag=tag)).result(0)


def everything(queue: ShareConsumer) -> list[ShareRecord]:
    found: list[ShareRecord] = []
    while records := queue.poll(timeout_s=0.1):
        found += records
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"compression": "zstd", "compress_from": 1}], ids=["plain", "packed"]
)
@pytest.mark.parametrize("at_a_time", [1, 100])
def test_only_messages_with_a_tag_are_handed_out_and_the_others_are_final(
    cluster: InMemoryCluster, settings: dict[str, Any], at_a_time: int
) -> None:
    send(cluster, "paid", None, "refunded", "sent", "paid", value="%d" + " " * 2_000, **settings)
    with queue_of(cluster, ["paid", "refunded"]) as queue:
        found: list[ShareRecord] = []
        while records := queue.poll(at_a_time, timeout_s=0.1):
            found += records
        assert [(record.offset, record.tag) for record in found] == [
            (0, "paid"),
            (2, "refunded"),
            (4, "paid"),
        ]
        queue.flush()
        assert queue.statistics().passed_over == queue.statistics().acked == 2
        for record in found:
            queue.ack(record)
        queue.flush()
        counted = queue.statistics()
        assert (counted.records, counted.acked, counted.passed_over, counted.held) == (3, 5, 2, 0)
    share = cluster.admin.describe_group("mail").share
    assert share is not None and (share.partitions[0].start, share.lag, share.leased) == (5, 0, 0)
    with queue_of(cluster, None) as queue:
        assert everything(queue) == [], "they are final for the whole group"


def test_a_poll_waits_on_when_all_that_came_has_other_tags(cluster: InMemoryCluster) -> None:
    with queue_of(cluster, ["rare"], prefetch_records=0) as queue:
        send(cluster, *["usual"] * 50, "rare", *["usual"] * 20)
        (record,) = queue.poll(1, timeout_s=5)
        assert record.offset == 50


def test_a_retry_keeps_its_tag_and_ends_as_a_dead_letter(cluster: InMemoryCluster) -> None:
    send(cluster, "paid", "sent")
    cluster.admin.set_group("mail", max_attempts=2)
    with queue_of(cluster, ["paid"]) as queue:
        (record,) = everything(queue)
        queue.nack(record, delay_s=1, reason="not now")
        cluster.clock.advance(2)
        (record,) = everything(queue)
        assert (record.attempt, record.tag, record.origin.topic) == (2, "paid", TOPIC)
        queue.nack(record, reason="never")
    (letter,) = cluster.admin.dead_letters("mail")
    assert letter.value == b"0"


def test_values_with_other_tags_are_not_read(cluster: InMemoryCluster) -> None:
    send(cluster, "paid", "sent", "paid", "sent", value="not json %d")
    with queue_of(cluster, ["other"], value_deserializer="json") as queue:
        assert everything(queue) == []
        assert (queue.statistics().passed_over, queue.statistics().nacked) == (4, 0)
    with queue_of(cluster, ["paid"], "other", value_deserializer="json") as queue:
        assert everything(queue) == []
        assert (queue.statistics().passed_over, queue.statistics().nacked) == (2, 2)


def test_asyncio_and_run_hand_out_the_same(cluster: InMemoryCluster) -> None:
    send(cluster, "paid", "sent", "paid")

    async def poll(queue: ShareConsumer) -> list[int]:
        async with queue.aio as reading:
            records = await reading.poll(timeout_s=1)
            for record in records:
                reading.ack(record)
        return [record.offset for record in records]

    assert asyncio.run(poll(queue_of(cluster, ["paid"], "one"))) == [0, 2]
    stop, seen = threading.Event(), []

    def handle(record: ShareRecord) -> None:
        seen.append(record.offset)
        if len(seen) == 2:
            stop.set()

    with queue_of(cluster, ["paid"], "two") as queue:
        queue.run(handle, threads=1, stop=stop)
        assert seen == [0, 2]
        queue.flush()
        assert queue.statistics().acked == 3


@pytest.mark.parametrize("tags", [[], "paid", [""], [1], ["x" * 256]])
def test_wrong_tags_are_refused_before_the_group_begins(cluster: InMemoryCluster, tags: Any) -> None:
    with pytest.raises(ConfigError, match="tag"):
        queue_of(cluster, tags)
    assert cluster.admin.describe_group("mail").kind == ""
