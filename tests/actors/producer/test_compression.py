"""Values that a producer compresses: which of them, and who notices (nobody)."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from escrowmq import ConfigError, Message, MessageTooLarge, NotSupported, Producer
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding import value_packer
from escrowmq.replication.format.packing import METHODS, VALUE_BYTES_MAX
from escrowmq.testing import InMemoryCluster
from tests.support.packed import LONG, is_packed, stored
from tests.support.producing import COMMITTED

RNG = random.Random(7)
#: Becomes smaller; would become larger; is too short to try.
NOISE = RNG.randbytes(4_000)
SHORT = b"x" * 1_023
VALUES = [LONG, NOISE, SHORT, LONG + b"2"]


def _send(producer: Producer, _: Any) -> None:
    for value in VALUES:
        producer.send(Message("orders", value)).result(0)


def _send_many(producer: Producer, _: Any) -> None:
    assert producer.send_many("orders", VALUES).result(0).failed == 0


def _send_keyed(producer: Producer, _: Any) -> None:
    producer.send_many("orders", VALUES, keys=[b"k"] * 4, headers={"h": b"1"}).result(0)


def _send_table(producer: Producer, _: Any) -> None:
    producer.send_table("orders", pa.table({"value": VALUES, "key": ["k"] * 4}), key="key").result(0)


def _transactions_table(producer: Producer, _: Any) -> None:
    table = pa.table({"value": VALUES, "key": ["k", None, "k", None], "id": [None, "a", "b", None]})
    results = producer.send_transactions_table("orders", table, key="key", tx_id="id")
    assert results.committed == len(VALUES)


def _transaction(producer: Producer, _: Any) -> None:
    with producer.transaction(tx_id="mine") as tx:
        tx.send(*(Message("orders", value) for value in VALUES))


def _callback(producer: Producer, _: Any) -> None:
    messages = [Message("orders", value) for value in VALUES]
    assert producer.send_message_in_transaction(messages, lambda: None).state is COMMITTED


def _bulk(producer: Producer, _: Any) -> None:
    results = producer.send_transactions([Message("orders", value) for value in VALUES])
    assert {result.state for result in results} == {COMMITTED}


def _asynchronous(producer: Producer, _: Any) -> None:
    async def send() -> None:
        for value in VALUES[:2]:
            await producer.aio.send(Message("orders", value))
        async with producer.aio.transaction() as tx:
            await tx.send(*(Message("orders", value) for value in VALUES[2:]))

    asyncio.run(send())


WAYS = [
    _send, _send_many, _send_keyed, _send_table, _transactions_table,
    _transaction, _callback, _bulk, _asynchronous,
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_send_compresses_what_becomes_smaller(
    cluster: InMemoryCluster, way: Callable[..., None], method: str
) -> None:
    with cluster.producer("shop", compression=method) as producer:
        way(producer, cluster)
        told = producer.statistics()
    rows = stored(cluster, "orders")
    assert sorted(len(row.value) for row in rows if not is_packed(row)) == sorted([len(NOISE), len(SHORT)])
    assert all(len(row.value) < len(LONG) / 2 for row in rows if is_packed(row))
    assert told.values_compressed == 2 and told.bytes_saved > len(LONG)
    with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
        assert sorted(record.value for record in consumer.poll()) == sorted(VALUES)
        consumer.seek_to_beginning()
        assert sorted(consumer.poll_arrow().column("value").to_pylist()) == sorted(VALUES)


def test_a_level_and_a_least_size_can_be_chosen(cluster: InMemoryCluster) -> None:
    sizes = []
    for level in (1, 19):
        with cluster.producer("shop", compression="zstd", compression_level=level) as producer:
            producer.send(Message("orders", LONG)).result(0)
        sizes.append(len(stored(cluster, "orders")[-1].value))
    assert sizes[1] < sizes[0]
    with cluster.producer("shop", compression="lz4", compress_from=100) as producer:
        producer.send_many("orders", [b"y" * 99, b"y" * 100]).result(0)
    assert [is_packed(row) for row in stored(cluster, "orders")[-2:]] == [False, True]


def test_without_the_setting_rows_are_what_they_always_were(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer:
        for way in WAYS:
            way(producer, cluster)
        assert producer.statistics().values_compressed == 0
    assert not any(is_packed(row) for row in stored(cluster, "orders"))


def test_limits_are_those_of_the_uncompressed_message(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop", compression="zstd", message_bytes_max=10_000) as producer:
        for send in (
            lambda: producer.send(Message("orders", bytes(10_001))),
            lambda: producer.send_many("orders", [bytes(10_001)]),
            lambda: producer.send_table("orders", pa.table({"value": [bytes(10_001)]})),
            lambda: producer.transaction().send(Message("orders", bytes(10_001))),
        ):
            with pytest.raises(MessageTooLarge):
                send()
    assert not stored(cluster, "orders")
    huge = {"message_bytes_max": 12 << 20, "transaction_bytes_max": 16 << 20}
    with cluster.producer("shop", compression="zstd", **huge) as producer:
        producer.send(Message("orders", bytes(VALUE_BYTES_MAX))).result(0)
    assert is_packed(stored(cluster, "orders")[0]), "the largest that readers unpack"


def test_larger_values_than_readers_unpack_are_left_alone() -> None:
    row = (
        b"\x94\xc0\xc6" + (VALUE_BYTES_MAX + 1).to_bytes(4, "big") + bytes(VALUE_BYTES_MAX + 1) + b"\xc0\xc0"
    )
    assert value_packer.pack_row(row, "zstd", None, 1) is row


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"compression": "gzip"}, "compression must be 'zstd', 'lz4' or None, not 'gzip'"),
        ({"compression": "lz4", "compression_level": 3}, "for compression='zstd' only"),
        ({"compression_level": 3}, "for compression='zstd' only"),
        ({"compression": "zstd", "compression_level": 0}, "must be 1 to 22, not 0"),
        ({"compression": "zstd", "compression_level": 23}, "must be 1 to 22, not 23"),
        ({"compress_from": 0}, "compress_from must be a number above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_where_they_are_written(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        ProducerConfig(**settings)


def test_without_pyarrow_the_producer_says_what_to_install(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotSupported, match=r"need pyarrow; install it.*escrowmq\[compression\]"):
        cluster.producer("shop", compression="zstd")


# ------------------------------------------------------------------ ids


@pytest.mark.parametrize("count", [1, 3, 400])
def test_a_repeated_transaction_is_the_same_one_however_its_values_are_compressed(
    cluster: InMemoryCluster, count: int
) -> None:
    """400 values are prepared in several parts."""
    messages = [Message("orders", LONG + b"%d" % n, key=b"k") for n in range(count)]

    def run(tx_id: str, **settings: Any) -> None:
        with cluster.producer("shop", part_bytes=100_000, **settings) as producer:
            with producer.transaction(tx_id=tx_id) as tx:
                tx.send(*messages)
            assert tx.state is COMMITTED
            (result,) = producer.send_transactions([(messages, None, tx_id)])
            assert (result.state, result.error) == (COMMITTED, None)

    run("a")
    before = len(stored(cluster, "orders"))
    run("a", compression="zstd")
    run("a", compression="lz4", compress_from=1)
    assert len(stored(cluster, "orders")) == before == count
    run("b", compression="zstd")
    run("b")
    assert len(stored(cluster, "orders")) == 2 * count
