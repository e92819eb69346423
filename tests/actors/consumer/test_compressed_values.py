"""Compressed values at readers: what was sent, or an error that names the offset; and bounded memory."""

from __future__ import annotations

import asyncio
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from google_crc32c import value as crc32c

from escrowmq import ConfigError, Consumer, ConsumerRecord, CorruptLog, DamagedValue, NotSupported
from escrowmq.actors.consumer.reader import Stretch
from escrowmq.replication.format import packing
from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.format.packing import METHODS, UNPACKED_BYTES, VALUE_BYTES_MAX, pack_row
from escrowmq.spark_integration.decode.records import COLUMNS, RowFormat, record_batches
from escrowmq.testing import InMemoryCluster
from tests.support.packed import bomb, forged_row, packed_row, store

#: Virtual time; a consumer in memory may wait that long before it fetches again what was damaged.
WAIT_S = 60.0
TEXT = b"teapots and kettles, " * 40


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


def zstd(value: bytes) -> bytes:
    return pa.Codec("zstd").compress(value, asbytes=True)


def lz4(value: bytes) -> bytes:
    return pa.Codec("lz4_raw").compress(value, asbytes=True)


#: Name -> a row that no producer makes, and what is said of it.
DAMAGED: dict[str, tuple[bytes, str]] = {
    "a flipped bit": (
        forged_row(zstd(TEXT)[:-1] + b"!", 1, len(TEXT), crc32c(TEXT)),
        "is damaged|cannot|checksum",
    ),
    "another value": (forged_row(lz4(TEXT[::-1]), 2, len(TEXT), crc32c(TEXT)), "its checksum is wrong"),
    "cut short": (forged_row(zstd(TEXT)[:20], 1, len(TEXT), crc32c(TEXT)), "cannot be unpacked"),
    "no compressed value": (forged_row(TEXT, 1, len(TEXT), crc32c(TEXT)), "cannot be unpacked"),
    "fewer bytes than announced": (
        forged_row(lz4(TEXT), 2, len(TEXT) + 9, crc32c(TEXT)),
        "checksum is wrong",
    ),
    "more bytes than announced": (
        forged_row(lz4(TEXT), 2, len(TEXT) - 9, crc32c(TEXT)),
        "cannot be unpacked",
    ),
    "bomb that announces little": (bomb(1_000), "cannot be unpacked"),
    "bomb that announces all": (bomb(16 << 20), f"announces {16 << 20} bytes; a compressed value has 1 to"),
    "bomb at the limit": (bomb(VALUE_BYTES_MAX), "cannot be unpacked"),
    "nothing announced": (forged_row(zstd(b""), 1, 0, 0), "announces 0 bytes"),
    "less than nothing": (forged_row(zstd(TEXT), 1, -1, 0), "announces -1 bytes"),
    "a method of the future": (forged_row(zstd(TEXT), 3, len(TEXT), crc32c(TEXT)), "compressed by method 3"),
}


def records(consumer: Consumer) -> list[Any]:
    return [(record.offset, record.value) for record in consumer.poll(timeout_s=WAIT_S)]


def rows_of_arrow(consumer: Consumer) -> list[Any]:
    table = consumer.poll_arrow(timeout_s=WAIT_S)
    table.validate(full=True)
    return list(zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True))


@pytest.mark.parametrize("ask", [records, rows_of_arrow])
@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_reported_with_its_offset_after_everything_before_it(
    cluster: InMemoryCluster, damage: str, ask: Callable[[Consumer], list[Any]]
) -> None:
    row, told = DAMAGED[damage]
    store(
        cluster, "orders", [packed_row(TEXT), encode_row(None, b"plain", None, None), row, packed_row(TEXT)]
    )
    with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
        assert ask(consumer) == [(0, TEXT), (1, b"plain")]
        for _ in range(3):
            with pytest.raises(DamagedValue, match=told) as raised:
                ask(consumer)
            error = raised.value
            assert (error.topic, error.partition, error.offset) == ("orders", 0, 2)
            assert "orders/0, offset 2" in str(error) and "seek('orders', 0, 3)" in str(error)
            assert consumer.position("orders", 0) == 2, "nothing is passed over silently"
        consumer.seek("orders", 0, 3)
        assert ask(consumer) == [(3, TEXT)]


def test_asyncio_gets_the_same_errors(cluster: InMemoryCluster) -> None:
    store(cluster, "orders", [packed_row(TEXT), DAMAGED["another value"][0]])

    async def read() -> None:
        with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
            assert [record.value for record in await consumer.aio.poll()] == [TEXT]
            with pytest.raises(DamagedValue, match="orders/0, offset 1"):
                await consumer.aio.poll()

    asyncio.run(read())


@pytest.mark.parametrize("damage", DAMAGED)
def test_tools_that_decode_all_rows_refuse_damage_too(damage: str) -> None:
    row, told = DAMAGED[damage]
    with pytest.raises(CorruptLog, match=f"row 1: .*{told}"):
        decode_rows(packed_row(TEXT) + row, 2)


@pytest.mark.parametrize(
    "row",
    [
        forged_row(zstd(TEXT)),
        forged_row(zstd(TEXT), 1, len(TEXT)),
        forged_row(zstd(TEXT), 1, len(TEXT), crc32c(TEXT), 1),
        forged_row(zstd(TEXT), "zstd", len(TEXT), crc32c(TEXT)),
        forged_row(None, 1, len(TEXT), crc32c(TEXT)),
        b"\x95" + encode_row(None, b"", None, None)[1:] + b"\xc0",
        b"\x96" + packed_row(TEXT)[1:] + b"\xc0",
    ],
)
def test_rows_of_another_shape_are_refused(row: bytes) -> None:
    for blob, count in ((row, 1), (packed_row(TEXT) + row, 2), (encode_row(None, b"", None, None) + row, 2)):
        with pytest.raises(CorruptLog, match="cannot be decoded"):
            decode_rows(blob, count)


def test_a_method_that_is_not_installed_is_named_and_nothing_is_lost(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(cluster, "orders", [encode_row(None, b"plain", None, None)])
    store(cluster, "orders", [packed_row(TEXT)])
    with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "pyarrow", None)
            for _ in range(2):
                with pytest.raises(NotSupported, match="compressed values need pyarrow"):
                    consumer.poll()
        assert records(consumer) == [(0, b"plain"), (1, TEXT)]


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize("ask", [records, rows_of_arrow])
def test_a_chunk_that_unpacks_to_gigabytes_is_handed_out_in_pieces(
    cluster: InMemoryCluster, ask: Callable[[Consumer], list[Any]]
) -> None:
    size = 1 << 20
    row = packed_row(bytes(size))
    assert len(row) < 200
    store(cluster, "orders", [row] * 2_000)
    with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
        most, offsets = 0, list[int]()
        tracemalloc.start()
        try:
            for _ in range(10):
                found = ask(consumer)
                most = max(most, len(found))
                offsets += [offset for offset, _ in found]
                del found
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most == UNPACKED_BYTES // size and offsets == list(range(10 * most))
    assert peak < 4 * UNPACKED_BYTES


def test_a_task_of_spark_makes_batches_of_the_unpacked_size() -> None:
    row = packed_row(bytes(1 << 20))
    stretch = Stretch([(5, 40, 1, 40 * len(row)), (45, 10, 2, 10 * len(row))], memoryview(row * 50))
    batches = list(record_batches("t", 1, [stretch], RowFormat(COLUMNS)))
    assert max(batch.nbytes for batch in batches) < 5 << 20
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [*range(5, 55)]
    times = [at.timestamp() for batch in batches for at in batch.column("timestamp").to_pylist()]
    assert times == [0.001] * 40 + [0.002] * 10
    assert {len(value) for batch in batches for value in batch.column("value").to_pylist()} == {1 << 20}


def test_a_task_of_spark_that_wants_no_values_unpacks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> bytes:
        raise AssertionError("a value was unpacked")

    rows = [packed_row(TEXT, key=b"k"), encode_row(None, b"v", None, "tx")]
    stretch = Stretch([(5, 2, 1, sum(map(len, rows)))], memoryview(b"".join(rows)))
    monkeypatch.setattr(packing, "unpack_value", never)
    (batch,) = record_batches("t", 1, [stretch], RowFormat(("key", "offset", "tx_id")))
    assert batch.to_pylist() == [
        {"key": b"k", "offset": 5, "tx_id": None},
        {"key": None, "offset": 6, "tx_id": "tx"},
    ]


def test_a_task_of_spark_names_the_offset_of_damage() -> None:
    rows = [packed_row(TEXT), DAMAGED["another value"][0]]
    stretch = Stretch([(5, 2, 1, sum(map(len, rows)))], memoryview(b"".join(rows)))
    found = record_batches("t", 1, [stretch], RowFormat())
    assert next(found).column("value").to_pylist() == [TEXT]
    with pytest.raises(DamagedValue, match="t/1, offset 6"):
        next(found)


# ------------------------------------------------------------------ what is mixed


def test_any_mixture_is_read_in_any_way(cluster: InMemoryCluster) -> None:
    rng = random.Random(11)
    values = [rng.randbytes(rng.randrange(60)) * rng.choice((0, 1, 30)) for _ in range(400)]
    for start in range(0, 400, 50):
        rows = [encode_row(None, value, {"h": b"1"}, None) for value in values[start : start + 50]]
        method, share = rng.choice(tuple(METHODS)), rng.choice((0.0, 0.5, 1.0))
        packed = [pack_row(row, method, None, 1) if rng.random() < share else row for row in rows]
        store(cluster, "orders", packed)
    for seed in range(4):
        rng = random.Random(seed)
        with cluster.consumer(f"readers-{seed}", ["orders"], auto_offset_reset="earliest") as consumer:
            found: list[bytes] = []
            again: list[ConsumerRecord] = []
            while len(found) < len(values):
                most = rng.choice((1, 7, 100))
                if rng.random() < 0.5:
                    found += consumer.poll_arrow(most).column("value").to_pylist()
                else:
                    records_found = consumer.poll(most)
                    found += [record.value for record in records_found]
                    again = records_found or again
            assert found == values
            if again:
                consumer.nack(again[-1], 1.0)
                cluster.clock.advance(1.0)
                assert [r.value for r in consumer.poll()] == [again[-1].value]


def test_poll_arrow_needs_a_consumer_that_keeps_bytes(cluster: InMemoryCluster) -> None:
    with (
        cluster.consumer("readers", ["orders"], value_deserializer="json") as consumer,
        pytest.raises(ConfigError, match="use a consumer without value_deserializer"),
    ):
        consumer.poll_arrow()
