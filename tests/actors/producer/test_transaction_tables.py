"""Rows of a table as transactions: what is stored and told is what ``send_transactions`` stores and tells."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import escrowmq
from escrowmq import (
    Closed,
    InvalidDecision,
    InvalidMessage,
    Message,
    MessageTooLarge,
    OutcomeUnknown,
    PreparedTransactions,
    Producer,
    ProducerConfig,
    TooManyOpenTransactions,
    TransactionConflict,
    TransactionResult,
    TransactionResults,
    TransactionRunning,
    TransactionState,
    Unavailable,
)
from escrowmq.actors.producer.bulk.transaction_rows import TransactionRows
from escrowmq.actors.producer.encoding.blocks import PrepareBlock
from escrowmq.actors.producer.transactions.local_transaction import TransactionColumns
from escrowmq.testing import InMemoryCluster
from tests.support.brokers import Brokers
from tests.support.many import PARTITIONS, producer_of_memory, values_of
from tests.support.producing import COMMITTED, ROLLBACK, UNKNOWN, ProducerOf, open_transactions, rows, values

LIMIT = 2_000
#: Ids, some of which are refused: empty, too long, with characters that would break a line.
IDS = (
    st.none()
    | st.sampled_from(["", "a", "a\nb", "\x7f", "\u2028", "\u00ad", "x" * 512, "x" * 513, "\u65e5" * 300])
    | st.text(max_size=8)
)
VALUES = (
    st.none() | st.binary(max_size=20) | st.sampled_from([b"x" * n for n in (LIMIT - 50, LIMIT, LIMIT + 9)])
)


def stored(cluster: InMemoryCluster) -> list[tuple[int, bytes | None, bytes, str | None]]:
    found = []
    with cluster.consumer("reader", ["t"], auto_offset_reset="earliest") as consumer:
        while records := consumer.poll():
            found += [(r.partition, r.key, r.value, r.tx_id) for r in records]
    return sorted(found, key=repr)


def small(cluster: InMemoryCluster, **more: Any) -> Producer:
    return producer_of_memory(cluster, message_bytes_max=LIMIT, request_bytes=700, **more)


# ---------------------------------------------------------------- the same as a list


@settings(max_examples=60, deadline=None)
@given(
    cells=st.lists(st.tuples(VALUES, st.none() | st.binary(max_size=6), IDS, IDS), max_size=25),
    cut=st.integers(0, 25),
    partition=st.none() | st.integers(0, 3),
    local=st.booleans(),
)
def test_a_table_is_what_a_list_is(
    cells: list[tuple[Any, Any, Any, Any]], cut: int, partition: int | None, local: bool
) -> None:
    """Results, errors and stored messages; generated ids differ, so they are left out."""
    told: list[Any] = []
    kinds = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]
    columns = [pa.chunked_array([pa.array([cell[i] for cell in some], kinds[i])
               for some in (cells[:cut], cells[cut:])]) for i in range(4)]  # fmt: skip
    table = pa.table(dict(zip("vkiq", columns, strict=True)))
    own = {cell[2] for cell in cells}

    def told_of(results: Any) -> list[Any]:
        return [
            (r.tx_id if r.tx_id in own else "", r.state, type(r.error), str(r.error)[:40]) for r in results
        ]

    for as_table in (True, False):
        with InMemoryCluster() as made:
            made.admin.create_topic("t", partitions=PARTITIONS)
            producer, seen = small(made), list[Any]()

            def store(prepared: Any, seen: list[Any] = seen) -> list[bool]:
                seen += [(tx.index, tx.query_id if tx.query_id != tx.tx_id else "") for tx in prepared]
                return [tx.index % 3 > 0 for tx in prepared]

            callback: Any = store if local else None
            if as_table:
                results: Any = producer.send_transactions_table(
                    "t", table, callback, value="v", key="k", tx_id="i", query_id="q", partition=partition
                )
            else:
                results = producer.send_transactions(
                    (
                        ([Message("t", value, key, {}, partition)] if value is not None else [None], q, i)
                        for value, key, i, q in cells
                    ),
                    callback,
                )
            found = [
                (p if k is not None or i in own else 0, k, v, i in own and i) for p, k, v, i in stored(made)
            ]
            told.append((told_of(results), sorted(found, key=repr), seen))
    for mine, theirs in zip(told[0][0], told[1][0], strict=True):
        assert mine[:3] == theirs[:3]
    assert told[0][1:] == told[1][1:]


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_are_committed_and_answered_in_their_order(
    brokers: Brokers, producer_of: ProducerOf, unique: Any, keyed: bool
) -> None:
    topic = unique("orders")
    brokers.topic(topic, PARTITIONS)
    table = pa.table({"value": [b"%d" % i for i in range(5_000)], "key": [b"%d" % i for i in range(5_000)]})
    results = producer_of(brokers).send_transactions_table(topic, table, key="key" if keyed else None)
    assert len(results) == results.committed == 5_000 and results.errors == {}
    assert pc.all(pc.equal(results.states, "COMMITTED")).as_py()
    by_tx = {row[3]: row[1] for _, _, row in rows(brokers, topic, PARTITIONS)}
    assert len(by_tx) == 5_000, "each row is a transaction of its own"
    assert [by_tx[tx_id] for tx_id in results.tx_ids.to_pylist()] == table["value"].to_pylist()
    assert results[17] == TransactionResult(results.tx_ids[17].as_py(), COMMITTED)
    assert results[-1] == results[4_999] and results[3:5] == [results[3], results[4]]
    assert not open_transactions(brokers, topic)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_batches_frames_and_nothing(cluster: InMemoryCluster, rows: int) -> None:
    producer = producer_of_memory(cluster)
    frame = pd.DataFrame({"value": [f"{i}" for i in range(rows)], "n": [f"q{i}" for i in range(rows)]})
    frame = frame.astype("string")
    batch = pa.RecordBatch.from_pandas(frame)
    seen: list[PreparedTransactions] = []
    for table in (frame, batch):
        results = producer.send_transactions_table("t", table, seen.append, query_id="n")
        assert len(results) == results.committed == rows
    assert [prepared.query_ids.to_pylist() for prepared in seen] == [list(frame["n"])] * 2 * bool(rows)
    assert len(values_of(cluster)) == 2 * rows


def test_an_event_loop_waits_and_runs_the_callback(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)

    async def main() -> TransactionResults:
        loop = asyncio.get_running_loop()

        async def store(prepared: PreparedTransactions) -> pa.Array:
            assert asyncio.get_running_loop() is loop and len(prepared) == 4
            await asyncio.sleep(0)
            return pc.less(prepared.indexes, 2)

        table = pa.table({"value": ["a", "b", "c", "d"]})
        return await producer.aio.send_transactions_table("t", table, store)

    results = asyncio.run(main())
    assert [r.state for r in results] == [COMMITTED, COMMITTED, ROLLBACK, ROLLBACK]
    assert sorted(values_of(cluster)) == [b"a", b"b"]


# ---------------------------------------------------------------- deciding


def test_one_database_transaction_for_all(cluster: InMemoryCluster) -> None:
    producer = small(cluster)
    orders = pa.table({"value": [b"v%d" % i for i in range(300)], "number": [f"n{i}" for i in range(300)]})
    kept: list[pa.Table] = []

    def store(prepared: PreparedTransactions) -> None:
        assert values_of(cluster) == []
        kept.append(orders.take(prepared.indexes))
        assert prepared.query_ids.to_pylist() == orders["number"].to_pylist()
        assert prepared[7].query_id == "n7" and prepared[7].index == 7
        assert prepared[7].tx_id == prepared.tx_ids[7].as_py() and len(prepared[2:4]) == 2

    results = producer.send_transactions_table("t", orders, store, query_id="number")
    assert results.committed == 300 and kept[0].equals(orders)


STATES = ["COMMITTED", "ROLLBACK", "UNKNOWN"]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, [COMMITTED] * 3),
        (False, [ROLLBACK] * 3),
        (UNKNOWN, [UNKNOWN] * 3),
        ([True, False, UNKNOWN], [COMMITTED, ROLLBACK, UNKNOWN]),
        (np.array([True, False, True]), [COMMITTED, ROLLBACK, COMMITTED]),
        (np.array([COMMITTED, UNKNOWN, ROLLBACK]), [COMMITTED, UNKNOWN, ROLLBACK]),
        (pa.array([False, True, True]), [ROLLBACK, COMMITTED, COMMITTED]),
        (pa.array(STATES), [COMMITTED, ROLLBACK, UNKNOWN]),
        (pa.array(STATES).dictionary_encode(), [COMMITTED, ROLLBACK, UNKNOWN]),
        (pa.chunked_array([[True], [False, False]]), [COMMITTED, ROLLBACK, ROLLBACK]),
        (pd.Series([True, False, True]), [COMMITTED, ROLLBACK, COMMITTED]),
        (pd.Series(STATES, dtype="category"), [COMMITTED, ROLLBACK, UNKNOWN]),
    ],
)
def test_a_callback_decides_for_all_or_for_each(
    cluster: InMemoryCluster, returned: Any, expected: list[TransactionState]
) -> None:
    producer = small(cluster)
    results = producer.send_transactions_table(
        "t", pa.table({"value": list("abc")}), lambda prepared: returned
    )
    assert [result.state for result in results] == expected
    assert results.states.to_pylist() == [state.value for state in expected]
    kept = [b"%c" % (97 + i) for i, state in enumerate(expected) if state is COMMITTED]
    assert sorted(values_of(cluster)) == kept and results.committed == len(kept)
    assert len(cluster.admin.list_transactions(topic="t")) == expected.count(UNKNOWN)


@pytest.mark.parametrize(
    "returned",
    [
        "fine",
        [True],
        [True, True, "x"],
        np.array([True]),
        np.array(5),
        np.bool_(True),
        pa.array([True, None, True]),
        pa.array(["COMMITTED", "PREPARE", "COMMITTED"]),
        pa.array([1, 1, 1]),
        pa.array([[1], [1], [1]]),
        pd.Series([True, None, True]),
    ],
)
def test_what_is_no_decision_leaves_all_of_them_to_the_check(cluster: InMemoryCluster, returned: Any) -> None:
    producer = small(cluster)
    with pytest.raises(InvalidDecision, match="the check decides"):
        producer.send_transactions_table("t", pa.table({"value": list("abc")}), lambda prepared: returned)
    assert len(cluster.admin.list_transactions(topic="t")) == 3 and values_of(cluster) == []
    assert not producer.core.running


def test_an_exception_rolls_all_of_them_back(cluster: InMemoryCluster) -> None:
    producer, table = small(cluster), pa.table({"value": list("abc"), "id": list("xyz")})
    with pytest.raises(ZeroDivisionError):
        producer.send_transactions_table("t", table, lambda prepared: 1 / 0, tx_id="id")
    assert cluster.admin.list_transactions(topic="t") == [] and values_of(cluster) == []
    assert not producer.core.running, "the ids may be used again"


def test_a_callback_that_can_return_no_decision_is_refused_at_once(cluster: InMemoryCluster) -> None:
    def wrong(prepared: PreparedTransactions) -> str:
        raise AssertionError

    def column(prepared: PreparedTransactions) -> pa.Array:
        return pa.array([True] * len(prepared))

    def numbers(prepared: PreparedTransactions) -> np.ndarray[Any, Any]:
        return np.ones(len(prepared), np.bool_)

    producer, table = small(cluster), pa.table({"value": ["a"]})
    with pytest.raises(InvalidMessage, match="not a decision"):
        producer.send_transactions_table("t", table, wrong)
    with pytest.raises(InvalidMessage, match="must be callable"):
        producer.send_transactions_table("t", table, "value")  # type: ignore[arg-type]
    for callback in (column, numbers):
        assert producer.send_transactions_table("t", table, callback).committed == 1


# ---------------------------------------------------------------- ids


def test_repeated_ids_have_one_effect_also_within_a_table(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    ids = [f"id-{i % 50}" for i in range(100)]
    table = pa.table({"value": [b"%d" % (i % 50) for i in range(100)], "id": ids})
    results = producer.send_transactions_table("t", table, tx_id="id")
    assert results.committed == 100 and results.tx_ids.to_pylist() == ids
    again = producer.send_transactions_table("t", table, tx_id="id")
    assert again.committed == 100 and len(values_of(cluster)) == 50
    other = producer.send_transactions_table("t", pa.table({"value": ["x"], "id": ["id-7"]}), tx_id="id")
    assert isinstance(other.errors[0], TransactionConflict) and other.states.to_pylist() == ["ROLLBACK"]


def test_with_a_callback_an_id_runs_once(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    table = pa.table({"value": ["a", "b", "a"], "id": ["one", None, "one"]})
    inner: list[TransactionResults] = []

    def store(prepared: PreparedTransactions) -> None:
        assert prepared.indexes.to_pylist() == [0, 1] and prepared.tx_ids[0].as_py() == "one"
        inner.append(producer.send_transactions_table("t", table, tx_id="id"))

    results = producer.send_transactions_table("t", table, store, tx_id="id")
    assert [type(error) for error in results.errors.values()] == [TransactionRunning] and 2 in results.errors
    assert list(inner[0].errors) == [0, 2], "another call must not take an id that is running"
    assert results.states.to_pylist() == ["COMMITTED", "COMMITTED", "UNKNOWN"]
    assert producer.send_transactions_table("t", table, tx_id="id").errors == {}


# ---------------------------------------------------------------- refusals


NO_UNICODE = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
)
BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (pa.table({"v": ["a"]}), {}, InvalidMessage, "needs one column 'value'"),
    (pa.table({"value": [1]}), {}, InvalidMessage, "has type int64"),
    (pa.table({"value": ["a"], "id": [1]}), {"tx_id": "id"}, InvalidMessage, "int64; make it string"),
    (pa.table({"value": ["a"], "id": [b"1"]}), {"query_id": "id"}, InvalidMessage, "binary; make it string"),
    (pa.table({"value": ["a"]}), {"tx_id": "id"}, InvalidMessage, "needs one column 'id'"),
    (pa.table({"value": ["a"]}), {"partition": 9}, escrowmq.UnknownTopic, "no partition 9"),
    (pa.table({"value": ["a"]}), {"partition": True}, InvalidMessage, "partition must be"),
    ([("a",)], {}, InvalidMessage, "not list"),
    (
        pa.table({"value": ["a"], "id": NO_UNICODE}),
        {"tx_id": "id"},
        InvalidMessage,
        "'id' is not valid Unicode",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("table", "options", "error", "text"), BAD)
def test_a_wrong_table_is_refused_as_a_whole(
    cluster: InMemoryCluster, table: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    producer = producer_of_memory(cluster)
    with pytest.raises(error, match=text):
        producer.send_transactions_table("t", table, **options)
    with pytest.raises(escrowmq.UnknownTopic):
        producer.send_transactions_table("nowhere", pa.table({"value": ["a"]}))
    assert values_of(cluster) == [] and not producer.core.running
    producer.close()
    with pytest.raises(Closed):
        producer.send_transactions_table("t", pa.table({"value": ["a"]}))


def test_a_wrong_row_is_told_for_that_row(cluster: InMemoryCluster) -> None:
    producer = small(cluster)
    long = [b"a", None, b"x" * LIMIT, b"b", b"c"]
    table = pa.table({"value": long, "id": ["1", "2", "3", "4\n", "5"]})
    results = producer.send_transactions_table("t", table, tx_id="id")
    assert {row: type(error) for row, error in results.errors.items()} == {
        1: InvalidMessage, 2: MessageTooLarge, 3: InvalidMessage,
    }  # fmt: skip
    assert results.states.to_pylist() == ["COMMITTED", *["ROLLBACK"] * 3, "COMMITTED"]
    assert results.tx_ids.to_pylist() == ["1", "2", "3", "", "5"]
    assert sorted(values_of(cluster)) == [b"a", b"c"] and "2 of 5" in repr(results)


def test_a_lost_answer_is_unknown_for_its_rows(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    table = pa.table({"value": ["a", "b"], "id": ["1", "2"]})
    cluster.fail_next("commit", OutcomeUnknown)
    results = producer.send_transactions_table("t", table, tx_id="id")
    assert results.states.to_pylist() == ["UNKNOWN"] * 2
    assert {type(error) for error in results.errors.values()} == {OutcomeUnknown}
    cluster.fail_next("prepare", Unavailable)
    other = pa.table({"value": ["a", "b"]})
    results = producer.send_transactions_table("t", other)
    assert results.states.to_pylist() == ["ROLLBACK"] * 2 and isinstance(results.errors[1], Unavailable)


# ---------------------------------------------------------------- sizes, limits, groups


def test_no_object_per_row_that_the_collector_knows(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    cells = [b"%d" % i for i in range(10_000)]
    table = pa.table({"value": cells, "key": cells, "id": [f"{i}" for i in range(10_000)]})
    producer.send_transactions_table("t", table[:10])
    gc.collect()
    # Another test's producer may still hold results of its own: only new ones count.
    held = {id(result): result for result in results_alive()}
    before = len(gc.get_objects())
    names = TransactionColumns("value", "key", "id", None)
    made = TransactionRows(ProducerConfig(), "t", PARTITIONS, None, table, names, None, 0)
    blocks = [block for chunk in made.chunks() for block in made.blocks(chunk, iter(()))]
    assert len(gc.get_objects()) - before < 500 and len(blocks) > 5
    results = producer.send_transactions_table("t", table, key="key")
    assert results.committed == 10_000
    assert [found for found in results_alive() if id(found) not in held] == []


def results_alive() -> list[TransactionResult]:
    return [found for found in gc.get_objects() if type(found) is TransactionResult]


def test_blocks_that_are_taken_apart_keep_their_rows(tmp_path: Path, producer_of: ProducerOf) -> None:
    """Each block is refused as a whole at first: there is room for ten open transactions."""
    narrow = Brokers(tmp_path, replicas=1, open_transactions_max=10)
    try:
        narrow.topic("room", 3)
        producer = producer_of(narrow)
        table = pa.table({"value": [f"{i}" for i in range(55)]})
        assert producer.send_transactions_table("room", table).committed == 55
        assert sorted(int(v) for v in values(narrow, "room", 3)) == list(range(55))
        results = producer.send_transactions_table("room", table[:25], lambda prepared: None)
        refused = results.errors
        assert len(refused) == 15 and results.committed == 10
        assert all(isinstance(error, TooManyOpenTransactions) for error in refused.values())
    finally:
        narrow.close()


def test_a_large_row_and_small_ones(brokers: Brokers, producer_of: ProducerOf, unique: Any) -> None:
    topic = unique("large")
    brokers.topic(topic, 2)
    producer = producer_of(brokers, part_bytes=1_000, request_bytes=2_000, buffer_bytes=20_000,
                           message_bytes_max=9_000, transaction_bytes_max=9_000)  # fmt: skip
    sent = [b"%d" % i + b"x" * (8_000 if i % 9 == 0 else 30) for i in range(200)]
    results = producer.send_transactions_table(topic, pa.table({"value": sent}))
    assert results.committed == 200 and sorted(values(brokers, topic, 2)) == sorted(sent)
    assert producer.core.buffered == 0


def test_rows_of_several_groups(tmp_path: Path, producer_of: ProducerOf) -> None:
    three = Brokers(tmp_path, groups=3, replicas=1)
    try:
        three.topic("spread", 6)
        producer = producer_of(three, request_bytes=2_000)
        sent = [b"%d" % i for i in range(2_000)]
        results = producer.send_transactions_table(
            "spread", pa.table({"value": sent, "key": sent}), key="key"
        )
        assert results.committed == 2_000
        assert sorted(values(three, "spread", 6)) == sorted(sent) and not open_transactions(three)
        rolled = producer.send_transactions_table("spread", pa.table({"value": sent}), lambda prepared: False)
        assert rolled.states.to_pylist() == ["ROLLBACK"] * 2_000 and not open_transactions(three)
    finally:
        three.close()


def test_a_block_holds_about_a_request(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_of_memory(cluster, request_bytes=3_000)
    core, blocks = producer.core, list[PrepareBlock]()
    enqueue = core.enqueue

    def watch(gid: int, block: Any) -> None:
        if isinstance(block, PrepareBlock):
            blocks.append(block)
        enqueue(gid, block)

    monkeypatch.setattr(core, "enqueue", watch)
    assert producer.send_transactions_table("t", pa.table({"value": ["x" * 30] * 500})).committed == 500
    sizes = [block.size + 64 * len(block.tx_ids) for block in blocks]
    assert sum(len(block.tx_ids) for block in blocks) == 500
    assert max(sizes) < 3_400 and len(blocks) < 40


def test_without_the_libraries_it_says_what_to_install(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    producer = producer_of_memory(cluster)
    monkeypatch.setitem(sys.modules, "escrowmq.actors.producer.bulk.bulk_tables", None)
    with pytest.raises(escrowmq.NotSupported, match="pyarrow and numpy"):
        producer.send_transactions_table("t", None)


def test_settings_are_those_of_the_producer(cluster: InMemoryCluster) -> None:
    producer = cluster.producer("shop", config=ProducerConfig())
    table = pa.table({"value": ["a"]})
    producer.send_transactions_table("t", table, lambda prepared: UNKNOWN, transaction_timeout_s=77)
    (opened,) = cluster.admin.list_transactions(topic="t")
    assert opened.timeout_ms == 77_000
