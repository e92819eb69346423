"""Rows with compressed values: sound ones, and ones that no producer makes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
from google_crc32c import value as crc32c

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.packing import METHODS, Packing, StoredRow, decode_stored, pack_row
from escrowmq.replication.replica.replica import Replica
from escrowmq.testing import InMemoryCluster
from tests.support.requests import ROWS

METHOD_NAMES = tuple(METHODS)
#: A value that compression makes smaller, and that is long enough to be tried.
LONG = json.dumps([{"id": n, "name": "teapot"} for n in range(120)]).encode()


def packed_row(
    value: bytes, method: str = "zstd", key: bytes | None = None, tx_id: str | None = None
) -> bytes:
    """A row whose value is compressed, although it may be short; it must become smaller."""
    plain = encode_row(key, value, None, tx_id)
    row = pack_row(plain, method, None, 1)
    assert len(row) < len(plain), "it does not become smaller"
    return row


def forged_row(packed: Any, *about: Any, key: bytes | None = None) -> bytes:
    """A row of five elements, whatever they are."""
    return msgspec.msgpack.encode((key, packed, None, None, about))


def bomb(announced: int, size: int = 16 << 20) -> bytes:
    """A row of a few kilobytes that unpacks to ``size`` bytes, and announces another size."""
    value = bytes(size)
    return forged_row(
        pa.Codec("zstd").compress(value, asbytes=True), METHODS["zstd"], announced, crc32c(value)
    )


#: Rows of every shape, with and without a compressed value.
PACKED_ROWS = [
    packed_row(b"value" * 50, "zstd", b"key", "tx"),
    ROWS[0],
    pack_row(encode_row(None, b"x" * 300, {"h": b"1", "i": b""}, None), "lz4", None, 1),
]


def stored(cluster: InMemoryCluster, topic: str, partition: int = 0) -> list[StoredRow]:
    """The rows of a partition as they are in the log of a cluster in memory."""
    parts = cluster.network.brokers[0].parts
    assert parts is not None
    return stored_at(parts.running.replica, topic, partition)


def stored_at(replica: Replica, topic: str, partition: int = 0) -> list[StoredRow]:
    """The rows of a partition as they are in the log of a replica."""
    ((*_, runs, blob),) = replica.fetch([(topic, partition, 0)], 1 << 30)
    count = sum(run[1] for run in runs)
    return decode_stored(b"\xdd" + count.to_bytes(4, "big") + bytes(blob))


def is_packed(row: StoredRow) -> bool:
    return isinstance(row.packing, Packing)


def store(cluster: InMemoryCluster, topic: str, rows: Sequence[bytes], partition: int = 0) -> None:
    """Stores rows as some producer might send them, whatever they are: brokers do not look into them."""
    answer = cluster.network.brokers[0].submit(ops.message(topic, partition, "other", 0, -1, rows))
    assert answer[0] == "ok" and answer[1][0][0] == 0, answer
