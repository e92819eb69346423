"""Tags: which messages a consumer with ``tags`` returns, in every way to read, and what it commits."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import ConfigError, InvalidMessage, Message, NotDeserializable, Producer
from escrowmq.actors.consumer.record_drain import PASSED_MAX
from escrowmq.testing import InMemoryCluster

TOPIC = "orders"


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic(TOPIC)
        yield made


@pytest.fixture
def producer(cluster: InMemoryCluster) -> Iterator[Producer]:
    with cluster.producer("shop") as made:
        yield made


def send(producer: Producer, *tags: str | None) -> None:
    """One message for each, whose value is its number."""
    for number, tag in enumerate(tags):
        producer.send(Message(TOPIC, b"%d" % number, tag=tag)).result(0)


def test_a_tag_is_a_header_and_shows_at_the_record(cluster: InMemoryCluster, producer: Producer) -> None:
    message = Message(TOPIC, b"x", headers={"h": b"1"}, tag="größer", reply_to="shop")
    assert (message.tag, message.reply_to) == ("größer", "shop")
    producer.send(message).result(0)
    with producer.transaction() as tx:
        tx.send(Message(TOPIC, b"in a transaction", tag="small"))
    producer.send(Message(TOPIC, b"without")).result(0)
    with cluster.consumer("all", [TOPIC], auto_offset_reset="earliest") as consumer:
        records = consumer.poll()
    assert [record.tag for record in records] == ["größer", "small", None]
    assert [record.reply_to for record in records] == ["shop", None, None]
    assert records[0].headers["h"] == b"1"
    assert records[2].headers == {}


def test_a_message_keeps_its_tag_when_it_is_copied() -> None:
    message = Message(TOPIC, b"x", tag="big", reply_to="shop")
    assert dataclasses.replace(message, value=b"y").tag == "big"
    assert copy.copy(message) == message
    given = {"h": b"1"}
    assert Message(TOPIC, headers=given, tag="big").tag == "big"
    assert given == {"h": b"1"}, "the caller's headers are not changed"


@pytest.mark.parametrize("tag", ["", "x" * 256, "ö" * 128, b"big", 7, "\ud800"])
def test_a_bad_tag_is_refused_where_it_is_written(tag: Any, cluster: InMemoryCluster) -> None:
    with pytest.raises(InvalidMessage, match="tag"):
        Message(TOPIC, tag=tag)
    with pytest.raises(ConfigError, match="tag"):
        cluster.consumer("g", [TOPIC], tags=[tag])


@pytest.mark.parametrize("app", ["", "a b", "x" * 181, b"shop", "größe", "a/b"])
def test_a_bad_reply_address_is_refused_where_it_is_written(app: Any) -> None:
    with pytest.raises(InvalidMessage, match="reply_to"):
        Message(TOPIC, reply_to=app)


@pytest.mark.parametrize("tags", ["big", [], b"big", 7, [str(n) for n in range(1001)]])
def test_tags_are_a_list(tags: Any, cluster: InMemoryCluster) -> None:
    with pytest.raises(ConfigError, match="tags"):
        cluster.consumer("g", [TOPIC], tags=tags)


def test_only_messages_with_a_wanted_tag_are_returned_and_all_are_committed(
    cluster: InMemoryCluster, producer: Producer
) -> None:
    send(producer, "big", None, "small", "huge", "big", None)
    with cluster.consumer("g", [TOPIC], auto_offset_reset="earliest", tags=["big", "huge"]) as consumer:
        assert [record.offset for record in consumer.poll()] == [0, 3, 4]
        assert consumer.position(TOPIC, 0) == 6
        consumer.commit()
        assert consumer.committed(TOPIC, 0) == 6
        assert consumer.statistics().records == 3


def others_before(producer: Producer, *tags: str) -> int:
    """More messages than are passed over in one turn, without a tag; and then these."""
    count = 2 * PASSED_MAX + 100
    producer.send_many(TOPIC, [b""] * count, partition=0).result(0)
    send(producer, *tags)
    return count


def test_poll_passes_over_any_number_of_others(cluster: InMemoryCluster, producer: Producer) -> None:
    others = others_before(producer, "big", "big")
    with cluster.consumer("g", [TOPIC], auto_offset_reset="earliest", tags=["big"]) as consumer:
        assert [record.offset for record in consumer.poll(1)] == [others]
        assert [record.offset for record in consumer.poll(1)] == [others + 1]
        assert consumer.poll(1, timeout_s=0.1) == []


def test_the_asyncio_consumer_does_the_same(cluster: InMemoryCluster, producer: Producer) -> None:
    others = others_before(producer, "big")

    async def offsets() -> list[int]:
        consumer = cluster.consumer("g", [TOPIC], auto_offset_reset="earliest", tags=["big"])
        async with consumer.aio as reading:
            return [record.offset for record in await reading.poll(1)]

    assert asyncio.run(offsets()) == [others]


def test_arrow_tables_have_the_same_messages(cluster: InMemoryCluster, producer: Producer) -> None:
    send(producer, "big", None, "small", "big", None, None, "big", "small")
    with cluster.consumer("g", [TOPIC], auto_offset_reset="earliest", tags=["big"]) as consumer:
        assert consumer.poll_arrow(4)["offset"].to_pylist() == [0, 3]
        assert consumer.poll_arrow(2)["offset"].to_pylist() == [6]
        assert consumer.poll_arrow(timeout_s=0.1).num_rows == 0
        assert consumer.position(TOPIC, 0) == 8


def test_values_of_other_tags_are_not_decoded(cluster: InMemoryCluster, producer: Producer) -> None:
    for value, tag in ((b"{", None), (b"[1]", "json"), (b"}", "other"), (b"]", "json")):
        producer.send(Message(TOPIC, value, tag=tag)).result(0)
    with cluster.consumer(
        "g", [TOPIC], auto_offset_reset="earliest", tags=["json"], value_deserializer=json.loads
    ) as consumer:
        assert [record.value for record in consumer.poll()] == [[1]]
        with pytest.raises(NotDeserializable, match="3"):
            consumer.poll()
        consumer.seek(TOPIC, 0, 4)
        assert consumer.poll(timeout_s=0.1) == []


def test_compressed_values_are_filtered_as_well(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop", compression="zstd") as producer:
        for number in range(20):
            tag = "big" if number % 5 == 0 else None
            producer.send(Message(TOPIC, b"%d" % number * 1000, tag=tag)).result(0)
    for way in ("records", "arrow"):
        with cluster.consumer(way, [TOPIC], auto_offset_reset="earliest", tags=["big"]) as consumer:
            if way == "records":
                found = [record.offset for record in consumer.poll()]
            else:
                found = consumer.poll_arrow()["offset"].to_pylist()
        assert found == [0, 5, 10, 15]
