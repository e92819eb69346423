"""``value_serializer``, ``value_deserializer``: objects come back; errors name the value and lose nothing."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from escrowmq import (
    AsyncConsumer,
    Cluster,
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    Message,
    NotDeserializable,
    NotSerializable,
)
from escrowmq.actors.client.values import deserializer_of, serializer_of
from escrowmq.testing import InMemoryCluster
from tests.support.packed import stored
from tests.support.producing import COMMITTED, ROLLBACK

ORDER = {"id": 42, "items": ["teapot", "kettle"], "paid": True, "note": None, "price": 1.5}


@dataclass
class Order:
    id: int
    day: date


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


def read(cluster: Cluster, deserializer: Any) -> list[Any]:
    with cluster.consumer(
        "readers", ["orders"], auto_offset_reset="earliest", value_deserializer=deserializer
    ) as consumer:
        return [record.value for record in consumer.poll()]


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_objects_come_back_whichever_way_they_are_sent(
    cluster: InMemoryCluster, name: str, compression: str | None
) -> None:
    def order(number: int) -> dict[str, Any]:
        return {**ORDER, "id": number, "note": "n" * 2_000}

    with cluster.producer("shop", value_serializer=name, compression=compression) as producer:
        producer.send(Message("orders", order(0), key=b"k", headers={"h": b"1"})).result(0)
        producer.send_many("orders", map(order, (1, 2))).result(0)
        with producer.transaction() as tx:
            tx.send(Message("orders", order(3)), Message("orders", order(4)))
        results = producer.send_transactions([Message("orders", order(5)), [Message("orders", order(6))]])
        assert {result.state for result in results} == {COMMITTED}
        called = producer.send_message_in_transaction(Message("orders", order(7)), lambda: None)
        assert called.state is COMMITTED

        async def send() -> None:
            await producer.aio.send(Message("orders", order(8)))
            await (await producer.aio.send_nowait(Message("orders", order(9))))
            async with producer.aio.transaction() as tx:
                await tx.send(Message("orders", order(10)))

        asyncio.run(send())
    assert read(cluster, name) == [order(number) for number in range(11)]
    assert [len(row.value) < 500 for row in stored(cluster, "orders")] == [compression is not None] * 11


def test_json_and_msgpack_take_what_msgspec_takes(cluster: InMemoryCluster) -> None:
    values = [Order(1, date(2026, 1, 31)), datetime(2026, 1, 31, tzinfo=UTC), None, "text", 3, [1, "ü"]]
    with cluster.producer("shop", value_serializer="json") as producer:
        producer.send_many("orders", values).result(0)
    first = {"id": 1, "day": "2026-01-31"}
    assert read(cluster, "json") == [first, "2026-01-31T00:00:00Z", None, "text", 3, [1, "ü"]]


def test_arrow_values_are_streams_that_every_arrow_reads(cluster: InMemoryCluster) -> None:
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})
    with cluster.producer("shop", value_serializer="arrow") as producer:
        producer.send(Message("orders", table)).result(0)
        producer.send_many("orders", [table.to_batches()[0], table.slice(0, 0)]).result(0)
    assert read(cluster, "arrow") == [table, table, table.slice(0, 0)]
    assert pa.ipc.open_stream(stored(cluster, "orders")[0].value).read_all() == table


def test_a_function_of_ones_own(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop", value_serializer=pickle.dumps) as producer:
        producer.send(Message("orders", Order(1, date(2026, 1, 31)))).result(0)
        producer.send(Message("orders", b"bytes too")).result(0)
    assert read(cluster, pickle.loads) == [Order(1, date(2026, 1, 31)), b"bytes too"]
    assert read(cluster, None) == [pickle.dumps(Order(1, date(2026, 1, 31))), pickle.dumps(b"bytes too")]


def test_without_one_values_are_bytes(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer:
        for send in (
            lambda: producer.send(Message("orders", "text")),
            lambda: producer.transaction().send(Message("orders", "text")),
            lambda: producer.send_many("orders", ["text"]),
        ):
            with pytest.raises(InvalidMessage, match=r"value must be bytes, not str; encode it first"):
                send()
        (result,) = producer.send_transactions([Message("orders", 3)])
        assert result.state is ROLLBACK and isinstance(result.error, InvalidMessage)
    assert not stored(cluster, "orders")


#: A serializer, a value that it cannot serialize, and what is said.
REFUSED: list[tuple[Any, Any, str]] = [
    ("json", object(), "cannot make bytes of a object: TypeError"),
    ("json", {"a": {1, object()}}, "cannot make bytes of a dict"),
    ("json", b"bytes", "JSON has no bytes: send the object itself"),
    ("msgpack", 1 << 70, "cannot make bytes of a int"),
    ("arrow", {"a": [1]}, "expected a pyarrow Table or RecordBatch, not dict"),
    (str.encode, 3, "cannot make bytes of a int: TypeError"),
    (lambda value: "text", 3, "value_serializer must return bytes, not str"),
]


@pytest.mark.parametrize(("serializer", "value", "told"), REFUSED)
def test_nothing_is_sent_of_what_cannot_be_serialized(
    cluster: InMemoryCluster, serializer: Any, value: Any, told: str
) -> None:
    good = pa.table({"a": [1]}) if serializer == "arrow" else "good"
    with cluster.producer("shop", value_serializer=serializer) as producer:
        for send in (
            lambda: producer.send(Message("orders", value)),
            lambda: producer.transaction().send(Message("orders", value)),
            lambda: producer.send_message_in_transaction(Message("orders", value), pytest.fail),
            lambda: asyncio.run(producer.aio.send(Message("orders", value))),
            lambda: asyncio.run(producer.aio.transaction().send(Message("orders", value))),
        ):
            with pytest.raises(NotSerializable, match=told):
                send()
        if not callable(serializer) or serializer is str.encode:
            with pytest.raises(NotSerializable, match=f"row 1: .*{told}"):
                producer.send_many("orders", [good, value, good])
            results = producer.send_transactions([Message("orders", value), Message("orders", good)])
            assert [result.state for result in results] == [ROLLBACK, COMMITTED]
            assert isinstance(results[0].error, NotSerializable)
            assert len(stored(cluster, "orders")) == 1
        else:
            assert not stored(cluster, "orders")


@pytest.mark.parametrize("name", ["json", "msgpack", "arrow"])
def test_a_value_that_cannot_be_read_is_named_after_everything_before_it(
    cluster: InMemoryCluster, name: str
) -> None:
    made = serializer_of(name)
    assert made is not None
    good = made(pa.table({"a": [1]}) if name == "arrow" else ORDER)
    with cluster.producer("shop") as producer:
        producer.send_many("orders", [good, good, b"\xc1 neither", good]).result(0)
    with cluster.consumer(
        "readers", ["orders"], auto_offset_reset="earliest", value_deserializer=name
    ) as consumer:
        assert [record.offset for record in consumer.poll()] == [0, 1]
        consumer.commit()
        for _ in range(3):
            with pytest.raises(NotDeserializable, match=r"orders/0, offset 2, cannot be read") as raised:
                consumer.poll()
            assert raised.value.offset == 2 and "seek('orders', 0, 3)" in str(raised.value)
            assert consumer.position("orders", 0) == 2
        consumer.seek("orders", 0, 3)
        assert [record.offset for record in consumer.poll()] == [3]
        error = pickle.loads(pickle.dumps(raised.value))  # noqa: S301
        assert (error.topic, error.partition, error.offset) == ("orders", 0, 2) and str(error)


def test_a_record_that_comes_again_keeps_its_object(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop", value_serializer="json") as producer:
        producer.send(Message("orders", ORDER)).result(0)
    with cluster.consumer(
        "readers", ["orders"], auto_offset_reset="earliest", value_deserializer="json"
    ) as consumer:
        (record,) = consumer.poll()
        consumer.nack(record, 1.0)
        cluster.clock.advance(1.0)
        assert consumer.poll() == [record] and record.value == ORDER


def test_asyncio_consumers_get_objects(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop", value_serializer="json") as producer:
        producer.send(Message("orders", ORDER)).result(0)

    async def poll() -> list[Any]:
        with cluster.consumer(
            "readers", ["orders"], auto_offset_reset="earliest", value_deserializer="json"
        ) as consumer:
            return [record.value for record in await consumer.aio.poll()]

    assert asyncio.run(poll()) == [ORDER]
    assert "value_deserializer" in AsyncConsumer.create.__annotations__


@pytest.mark.parametrize("wrong", ["avro", "JSON", 3, b"json", ["json"]])
def test_anything_else_is_refused_where_it_is_given(cluster: InMemoryCluster, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="must be a function, or one of 'json', 'msgpack', 'arrow', not"):
        cluster.producer("shop", value_serializer=wrong)
    with pytest.raises(ConfigError, match="value_deserializer must be a function"):
        cluster.consumer("readers", ["orders"], value_deserializer=wrong)


def test_without_pyarrow_arrow_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for make in (serializer_of, deserializer_of):
        with pytest.raises(ConfigError, match=r"'arrow' needs pyarrow: pip install 'escrowmq\[arrow\]'"):
            make("arrow")
        assert make("json") is not None and make(None) is None


def test_an_error_of_ours_passes_through() -> None:
    def refuse(value: Any) -> bytes:
        raise EscrowMQError("mine")

    made = serializer_of(refuse)
    assert made is not None
    with pytest.raises(EscrowMQError, match=r"^mine$"):
        made(1)
