"""Tables with values that a producer compresses: the same messages and ids, and no work for other rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from escrowmq import Message, Producer
from escrowmq.actors.producer.encoding.value_packer import ValuePacker
from escrowmq.testing import InMemoryCluster
from tests.support.packed import LONG, is_packed, stored

Send = Callable[[Producer, pa.Table], Any]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the rows that a producer has looked at."""
    sizes: list[int] = []
    pack = ValuePacker.pack

    def counted(self: ValuePacker, row: bytes) -> bytes:
        sizes.append(len(row))
        return pack(self, row)

    monkeypatch.setattr(ValuePacker, "pack", counted)
    return sizes


def messages(producer: Producer, table: pa.Table) -> None:
    assert producer.send_table("orders", table, key="key").result(0).failed == 0


def transactions(producer: Producer, table: pa.Table) -> None:
    assert producer.send_transactions_table("orders", table, key="key").committed == len(table)


def table_of(values: list[bytes]) -> pa.Table:
    return pa.table({"value": values, "key": [b"%d" % (n % 5) for n in range(len(values))]})


@pytest.mark.parametrize("send", [messages, transactions])
def test_long_values_among_short_ones_are_compressed_and_nothing_else_is_looked_at(
    cluster: InMemoryCluster, packed: list[int], send: Send
) -> None:
    values = [LONG + b"%d" % n if n % 100 == 7 else b"%d" % n for n in range(1_000)]
    with cluster.producer("shop", compression="lz4") as producer:
        send(producer, table_of(values))
        assert producer.statistics().values_compressed == len(packed) == 10
    assert min(packed) > len(LONG)
    assert sum(map(is_packed, stored(cluster, "orders"))) == 10
    with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
        found = [record for _ in range(3) for record in consumer.poll()]
    assert [record.value for record in found] == values, "their order is kept"
    assert [record.key for record in found] == [b"%d" % (n % 5) for n in range(1_000)]


def test_a_repeated_row_is_the_same_transaction_however_its_value_is_compressed(
    cluster: InMemoryCluster,
) -> None:
    values = [LONG + b"%d" % n for n in range(300)]
    ids = [f"tx-{n}" for n in range(300)]
    table = pa.table({"value": values, "id": ids})

    def run(**settings: Any) -> None:
        with cluster.producer("shop", **settings) as producer:
            results = producer.send_transactions_table("orders", table, tx_id="id")
        assert (results.committed, results.errors) == (300, {})

    run(compression="zstd")
    run()
    run(compression="lz4", compress_from=1)
    with cluster.producer("shop") as producer:
        items = [(Message("orders", value), None, tx_id) for value, tx_id in zip(values, ids, strict=True)]
        assert {result.error for result in producer.send_transactions(items)} == {None}
    assert [is_packed(row) for row in stored(cluster, "orders")] == [True] * 300


def test_blocks_of_transactions_are_cut_by_what_is_sent(cluster: InMemoryCluster) -> None:
    requests = []
    for compression in (None, "zstd"):
        with cluster.producer("shop", compression=compression) as producer:
            transactions(producer, table_of([LONG] * 400))
            requests.append(producer.statistics().requests)
    assert requests[1] < requests[0] / 2
