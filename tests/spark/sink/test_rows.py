"""Encoding of Arrow batches: the same bytes and partitions as a producer's, piece by piece."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.encoder import Encoder
from escrowmq.actors.producer.encoding.table_rows import packed_column
from escrowmq.replication.errors import InvalidMessage, MessageTooLarge, UnknownTopic
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.packing import PACKED, pack_row
from escrowmq.replication.model import Message
from escrowmq.spark_integration.sink.task import RowEncoder

TOPICS = {"orders": 7, "alerts": 3}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def partitions(topic: str) -> int:
    if topic not in TOPICS:
        raise UnknownTopic(topic)
    return TOPICS[topic]


def encoder(topic: str | None = "orders", **settings: Any) -> RowEncoder:
    chosen = {"message_bytes_max": 1 << 20, "slice_bytes": 1 << 20, **settings}
    return RowEncoder("epoch-7", topic, partitions, **chosen)


def encode(rows: RowEncoder, **columns: pa.Array) -> dict[tuple[str, int], list[Any]]:
    """Decoded rows by topic and partition."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for piece in rows.encode(batch):
        for run in piece:
            assert sum(run.sizes) == len(run.body)
            found[run.topic, run.partition] += decode_rows(run.body, len(run.sizes))
    return found


def test_rows_and_partitions_are_those_of_a_producer() -> None:
    random.seed(5)
    keys = [
        None if i % 5 == 0 else random.randbytes(random.choice([0, 1, 31, 255, 256, 300])) for i in range(400)
    ]
    values = [random.randbytes(random.choice([0, 1, 255, 256, 65_535, 65_536])) for _ in keys]
    headers = [None if i % 3 else [{"key": "näme", "value": b"\0" * i}] for i in range(400)]
    found = encode(
        encoder(), key=pa.array(keys, pa.binary()), value=pa.array(values), headers=pa.array(headers, HEADERS)
    )
    producer = Encoder(ProducerConfig(), partitions, lambda topic, partition: 0)
    expected = defaultdict(list)
    for key, value, pairs in zip(keys, values, headers, strict=True):
        named = {pair["key"]: pair["value"] for pair in pairs or []}
        ((topic, partition, row),), _ = producer.encode([Message("orders", value, key, named)], "epoch-7")
        if key is not None:
            expected[topic, partition] += decode_rows(row, 1)
    keyed = {partition: [row for row in rows if row[0] is not None] for partition, rows in found.items()}
    assert {partition: rows for partition, rows in keyed.items() if rows} == expected
    keyless = [row[1] for rows in found.values() for row in rows if row[0] is None]
    assert sorted(keyless) == sorted(value for key, value in zip(keys, values, strict=True) if key is None)
    assert {row[3] for rows in found.values() for row in rows} == {"epoch-7"}


def test_strings_are_written_as_utf8() -> None:
    found = encode(encoder(), key=pa.array(["ä", "b"]), value=pa.array(["größe", ""]))
    assert sorted(row[:2] for rows in found.values() for row in rows) == [
        (b"b", b""),
        ("ä".encode(), "größe".encode()),
    ]


def test_an_explicit_partition_comes_before_the_key() -> None:
    found = encode(
        encoder(),
        key=pa.array(["a", "a", "a"]),
        value=pa.array(["0", "1", "2"]),
        partition=pa.array([6, None, 2], pa.int32()),
    )
    by_key = encode(encoder(), key=pa.array(["a"]), value=pa.array(["1"]))
    assert {row[1]: partition for partition, rows in found.items() for row in rows} == {
        b"0": ("orders", 6),
        b"1": next(iter(by_key)),
        b"2": ("orders", 2),
    }


def test_a_partition_that_does_not_exist_is_an_error() -> None:
    for wrong in (7, -1):
        with pytest.raises(UnknownTopic, match=f"no partition {wrong}"):
            encode(encoder(), value=pa.array(["x"]), partition=pa.array([wrong], pa.int32()))


def test_a_topic_column_sends_each_row_its_own_way_in_order() -> None:
    names = ["orders", "alerts"] * 50
    found = encode(
        encoder(None),
        value=pa.array([str(i) for i in range(100)]),
        topic=pa.array(names),
        partition=pa.array([0] * 100, pa.int32()),
    )
    assert [int(row[1]) for row in found["alerts", 0]] == list(range(1, 100, 2))
    assert [int(row[1]) for row in found["orders", 0]] == list(range(0, 100, 2))


def test_rows_without_key_go_to_one_partition_per_piece_and_to_all_in_turn() -> None:
    rows = encoder(slice_bytes=2_000)
    batch = pa.RecordBatch.from_arrays([pa.array([b"x" * 90] * 700)], names=["value"])
    used = [[run.partition for run in piece] for piece in rows.encode(batch)]
    assert all(len(piece) == 1 for piece in used) and {piece[0] for piece in used} == set(range(7))


def test_pieces_are_bounded_and_a_large_message_is_a_piece_of_its_own() -> None:
    values = [b"x" * n for n in (10, 900, 5_000, 20, 20, 990)]
    rows = encoder(slice_bytes=1_000)
    batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])
    counts = [[len(run.sizes) for run in piece] for piece in rows.encode(batch)]
    # 14 to 16 bytes around each value: 10 and 900 together, 5,000 alone, 20 and 20, 990 alone.
    assert [len(piece) for piece in counts] == [1] * 4
    assert [piece[0] for piece in counts] == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({"value": pa.array(["a", None])}, InvalidMessage, "column 'value' contains null"),
        (
            {"value": pa.array([b"x" * 2_000])},
            MessageTooLarge,
            "message of 2014 bytes, but the limit is 1000",
        ),
        (
            {"value": pa.array(["a"]), "headers": pa.array([[{"key": "h", "value": b""}] * 2], HEADERS)},
            InvalidMessage,
            "column 'headers' contains the same name twice",
        ),
        (
            {"value": pa.array(["a"]), "headers": pa.array([[{"key": "h", "value": None}]], HEADERS)},
            InvalidMessage,
            "column 'headers' contains null",
        ),
    ],
)
def test_what_cannot_be_a_message_is_told_by_column(
    columns: dict[str, pa.Array], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        encode(encoder(message_bytes_max=1_000), **columns)


def test_a_topic_that_does_not_exist_or_is_null_is_an_error() -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        encode(encoder(None), value=pa.array(["a"]), topic=pa.array(["nowhere"]))
    with pytest.raises(InvalidMessage, match="column 'topic' contains null"):
        encode(encoder(None), value=pa.array(["a"]), topic=pa.array([None], pa.string()))


def test_sliced_and_empty_batches() -> None:
    value = pa.array([str(i) for i in range(10)]).slice(3, 4)
    key = pa.array([None, "k"] * 5).slice(3, 4)
    found = encode(encoder(), key=key, value=value)
    assert sorted(row[1] for rows in found.values() for row in rows) == [b"3", b"4", b"5", b"6"]
    assert encode(encoder(), value=pa.array([], pa.string())) == {}


def test_compressed_rows_are_in_the_same_places_and_smaller() -> None:
    columns = {
        "key": pa.array([b"%d" % (n % 9) for n in range(200)]),
        "value": pa.array([b"teapot " * n for n in range(200)]),
        "headers": pa.array([[{"key": "h", "value": b"1"}]] * 200, HEADERS),
    }
    packing = encoder(
        pack=lambda rows: packed_column(rows, lambda row: pack_row(row, "zstd", None, 500), 500)
    )
    assert encode(packing, **columns) == encode(encoder(), **columns)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    ((*runs,),) = packing.encode(batch)
    assert sum(len(run.body) for run in runs) < batch.nbytes / 4
    assert all(run.body[0] in (0x94, PACKED) for run in runs)
    with pytest.raises(MessageTooLarge):
        encode(encoder(message_bytes_max=1_000, pack=packing.pack), **columns)
