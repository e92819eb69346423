"""Many messages of one call are those of as many single sends, byte for byte; wrong ones send nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq import (
    InvalidMessage,
    Message,
    Overloaded,
    ProducerConfig,
    RecordMetadata,
    SentMany,
    Unavailable,
)
from escrowmq.actors.producer.bulk import sent_many
from escrowmq.actors.producer.encoding.encoder import Encoder
from escrowmq.actors.producer.encoding.many import Columns, Piece
from escrowmq.actors.producer.encoding.table_rows import TableRows, row_sizes
from escrowmq.replication.format.codec import decode_rows
from escrowmq.testing import InMemoryCluster
from tests.support.brokers import Brokers, ClientCalls
from tests.support.many import PARTITIONS, producer_of_memory, values_of
from tests.support.plain import fail, parcel_of, store
from tests.support.producing import ProducerOf, rows

#: Where messages without a key gather, beside others with keys.
GATHERS = 2
SMALL = ProducerConfig(
    request_bytes=300, buffer_bytes=4_000, message_bytes_max=2_000, transaction_bytes_max=2_000
)
VALUES = st.binary(max_size=40) | st.integers(200, 320).map(bytes)
KEYS = st.none() | st.binary(max_size=10)
HEADERS = st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=5), max_size=2)


def encoded(pieces: Iterator[Piece], count: int) -> list[tuple[int | None, bytes]]:
    """(partition, row) of each message, by its number."""
    found: dict[int, tuple[int | None, bytes]] = {}
    for piece in pieces:
        assert piece
        for run in piece:
            made, sizes = run.rows, run.sizes
            if sizes is not None:
                (body,) = made
                ends = np.cumsum([0, *sizes])
                made = [body[a:b] for a, b in pairwise(ends)]
                assert ends[-1] == len(body)
            assert len(made) == len(run.numbers) > 0 and run.size == sum(map(len, made))
            assert list(run.numbers) == sorted(run.numbers), "in order"
            for number, row in zip(run.numbers, made, strict=True):
                assert number not in found
                found[int(number)] = run.partition, row
    assert sorted(found) == list(range(count))
    return [found[number] for number in range(count)]


def check_same(made: list[tuple[int | None, bytes]], expected: list[tuple[int | None, bytes]]) -> None:
    """The same rows in the same partitions, where single messages have one."""
    assert [row for _, row in made] == [row for _, row in expected]
    for (partition, _), (wanted, _) in zip(made, expected, strict=True):
        assert partition == wanted if wanted is not None else partition in (None, GATHERS)


def one_by_one(config: ProducerConfig, messages: list[Message]) -> list[tuple[int | None, bytes]]:
    encoder = Encoder(config, lambda topic: PARTITIONS, lambda topic, partition: 0)
    return [encoder.plain(message) for message in messages]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(VALUES, KEYS, HEADERS), max_size=40),
    keyed=st.booleans(),
    one_header=st.booleans(),
    partition=st.none() | st.integers(0, 3),
)
def test_lists_are_encoded_as_single_messages_are(
    rows: list[tuple[bytes, bytes | None, Any]], keyed: bool, one_header: bool, partition: int | None
) -> None:
    values = [value for value, _, _ in rows]
    keys = [key for _, key, _ in rows] if keyed else None
    headers: Any = {"a": b"b"} if one_header else [mapping for _, _, mapping in rows]
    columns = Columns(SMALL, "t", PARTITIONS, values, keys, headers, partition)
    messages = [
        Message("t", value, key if keyed else None, {"a": b"b"} if one_header else mapping or {}, partition)
        for value, key, mapping in rows
    ]
    check_same(encoded(columns.pieces(lambda: GATHERS), len(columns)), one_by_one(SMALL, messages))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=st.lists(st.tuples(VALUES, KEYS), max_size=40))
def test_tables_are_encoded_as_single_messages_are(
    data: st.DataObject, rows: list[tuple[bytes, bytes | None]]
) -> None:
    kinds = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]
    before = data.draw(st.integers(0, 3))  # a slice: its buffers begin elsewhere

    def column(cells: list[Any]) -> pa.ChunkedArray:
        kind = data.draw(st.sampled_from(kinds))
        cut = data.draw(st.integers(0, len(cells)))
        chunks = [pa.array([b"zz"] * before + part, kind)[before:] for part in (cells[:cut], cells[cut:])]
        return pa.chunked_array(chunks, kind)

    keyed = data.draw(st.booleans())
    partition = data.draw(st.none() | st.integers(0, 3))
    table = pa.table({"v": column([value for value, _ in rows]), "k": column([key for _, key in rows])})
    made = TableRows(SMALL, "t", PARTITIONS, table, "v", "k" if keyed else None, partition)
    messages = [Message("t", value, key if keyed else None, partition=partition) for value, key in rows]
    check_same(encoded(made.pieces(lambda: GATHERS), len(made)), one_by_one(SMALL, messages))


@pytest.mark.parametrize("size", [0, 255, 256, 65_535, 65_536, 100_000])
@pytest.mark.parametrize("key", [None, b"", b"k" * 255, b"k" * 256, b"k" * 65_536])
def test_lengths_at_which_headers_grow(size: int, key: bytes | None) -> None:
    config, value = ProducerConfig(), b"v" * size
    expected = one_by_one(config, [Message("t", value, key), Message("t", b"x")])
    table = pa.table({"value": pa.array([value, b"x"]), "key": pa.array([key, None], pa.binary())})
    made = TableRows(config, "t", PARTITIONS, table, "value", "key", None)
    check_same(encoded(made.pieces(lambda: GATHERS), 2), expected)
    assert row_sizes(table["value"], table["key"]).tolist() == [len(row) for _, row in expected]
    columns = Columns(config, "t", PARTITIONS, [value, b"x"], [key, None], None, None)
    check_same(encoded(columns.pieces(lambda: GATHERS), 2), expected)


TEXTS = ["ä", "", "x" * 300, "日本"]


@pytest.mark.parametrize(
    "made",
    [
        lambda: pa.table({"value": TEXTS}),
        lambda: pa.record_batch({"value": pa.array(TEXTS, pa.large_string())}),
        lambda: pa.table({"value": pa.array(TEXTS, pa.string_view())}),
        lambda: pa.table({"value": pa.array(TEXTS).dictionary_encode()}),
        lambda: pd.DataFrame({"value": TEXTS}),
        lambda: pd.DataFrame({"value": TEXTS}, index=[3, 3, 1, 0]),
        lambda: pd.DataFrame({"value": [text.encode() for text in TEXTS]}),
        lambda: pd.DataFrame({"value": pd.Categorical(TEXTS)}),
        lambda: pd.DataFrame({"value": pd.array(TEXTS, "string")}),
        lambda: pd.DataFrame({"value": pd.Series(TEXTS, dtype=pd.ArrowDtype(pa.string()))}),
    ],
)
def test_texts_and_frames_of_pandas(cluster: InMemoryCluster, made: Callable[[], Any]) -> None:
    sent = producer_of_memory(cluster).send_table("t", made(), partition=1)
    assert sent.result(1.0) is sent
    assert values_of(cluster) == [text.encode() for text in TEXTS]


def test_bytes_of_a_fixed_size_and_a_column_that_is_both(cluster: InMemoryCluster) -> None:
    table = pa.table({"id": pa.array([b"aa", b"bb"], pa.binary(2)), "none": pa.nulls(2)})
    producer = producer_of_memory(cluster)
    producer.send_table("t", table, value="id", key="id").result(1.0)
    producer.send_table("t", table, value="id", key="none").result(1.0)
    assert sorted(values_of(cluster)) == [b"aa", b"aa", b"bb", b"bb"]


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("keyed", ["all", "some", "none"])
@pytest.mark.parametrize("table", [True, False], ids=["table", "lists"])
def test_each_row_finds_its_offset(cluster: InMemoryCluster, keyed: str, table: bool) -> None:
    producer = producer_of_memory(cluster, request_bytes=5_000)
    values = [b"%d" % i for i in range(3_000)]
    keys = [None if keyed == "some" and i % 3 else b"%d" % (i % 50) for i in range(3_000)]
    if table:
        sent = producer.send_table(
            "t", pa.table({"value": values, "key": keys}), key=None if keyed == "none" else "key"
        )
    else:
        sent = producer.send_many("t", values, None if keyed == "none" else keys)
    assert sent.wait(1.0) and sent.done() and len(sent) == 3_000 and not sent.errors and sent.failed == 0
    offsets, partitions, timestamps = sent.offsets, sent.partitions, sent.timestamps
    assert offsets.dtype == partitions.dtype == timestamps.dtype == np.int64
    for row in (0, 1, 17, 1_500, 2_999, -1):
        expected = RecordMetadata("t", int(partitions[row]), int(offsets[row]), int(timestamps[row]))
        assert sent[row] == sent.future(row).result(0) == expected
    assert sent[10:12] == [sent[10], sent[11]]
    stored = {}
    with cluster.consumer("reader", ["t"], auto_offset_reset="earliest") as consumer:
        while records := consumer.poll():
            stored.update({(r.partition, r.offset): (r.key, r.value) for r in records})
    assert len(stored) == 3_000
    for row, value in enumerate(values):
        assert stored[int(partitions[row]), int(offsets[row])] == (
            None if keyed == "none" else keys[row],
            value,
        )
    for partition in range(PARTITIONS):
        assert (np.diff(offsets[partitions == partition]) == 1).all(), "rows of a partition keep their order"
    assert set(partitions.tolist()) == {0, 1, 2, 3}, "without a key they go to the partitions in turn"
    with pytest.raises(IndexError):
        sent[3_000]


@pytest.mark.parametrize("table", [True, False], ids=["table", "lists"])
def test_without_keys_a_topic_of_one_partition_gets_them_in_order(
    cluster: InMemoryCluster, table: bool
) -> None:
    cluster.admin.create_topic("one", partitions=1)
    producer, values = producer_of_memory(cluster, request_bytes=2_000), [b"%d" % i for i in range(2_000)]
    if table:
        sent = producer.send_table("one", pa.table({"value": values}))
    else:
        sent = producer.send_many("one", values)
    assert sent.result(1.0).offsets.tolist() == list(range(2_000))


def test_nothing_is_something_that_can_be_sent(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    for sent in (
        producer.send_many("t", []),
        producer.send_table("t", pa.table({"value": pa.array([], pa.binary())})),
    ):
        assert sent.wait(0) and sent.result(0) is sent and len(sent) == 0 and list(sent) == []
        assert sent.offsets.tolist() == [] and sent.errors == {}


def test_rows_fail_batch_by_batch_and_the_result_says_which() -> None:
    sent = SentMany()
    first, _ = parcel_of(b"1", b"2", b"3")
    second, _ = parcel_of(b"4", b"5", partition=1)
    sent.add(first, [0, 2, 4])
    sent.add(second, [1, 3])
    assert not sent.done() and not sent.wait(0.01) and sent.offsets.tolist() == [-1] * 5
    with pytest.raises(TimeoutError):
        sent.result(0.01)
    store(second, 20, 0, 2)
    fail(first, Unavailable("no leader"), 1, 3)
    assert sent.offsets.tolist() == [-1, 20, -1, 21, -1] and not sent.done() and sent.failed == 2
    threading.Timer(0.05, lambda: store(first, 7, 0, 1)).start()
    with pytest.raises(Unavailable):
        sent.result(5.0)
    errors = sent.errors
    assert sent.done() and list(errors) == [2, 4] and errors[2] is errors[4], "one for the batch"
    assert sent.offsets.tolist() == [7, 20, -1, 21, -1] and sent.partitions.tolist() == [0, 1, -1, 1, -1]
    assert sent[0].offset == 7 and isinstance(sent.future(4).exception(0), Unavailable)
    with pytest.raises(Unavailable):
        sent[2]
    assert "done" in repr(sent)


def test_they_keep_the_order_among_single_sends(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    producer.send(Message("t", b"warm", partition=1)).result(1.0)
    cluster.stage.held.depth += 1
    for number in range(0, 30, 3):
        producer.send(Message("t", b"%d" % number, partition=2))
        producer.send_many("t", [b"%d" % (number + 1)], partition=2)
        producer.send_table("t", pa.table({"value": [b"%d" % (number + 2)]}), partition=2)
    cluster.stage.held.depth -= 1
    assert producer.flush(5.0)
    assert [value for value in values_of(cluster) if value != b"warm"] == [b"%d" % n for n in range(30)]


def test_an_event_loop_waits_for_all(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)

    async def main() -> tuple[SentMany, SentMany]:
        many = await producer.aio.send_many("t", [b"%d" % i for i in range(500)], [b"k"] * 500)
        assert many.done()
        table = await producer.aio.send_table("t", pa.table({"value": ["x"] * 500}))
        assert table.done()
        with pytest.raises(InvalidMessage, match="row 1: value"):
            await producer.aio.send_many("t", [b"", "text"])  # type: ignore[list-item]
        return many, table

    many, table = asyncio.run(main())
    assert many.result(0).offsets.tolist() == list(range(500)) and not table.errors


def test_futures_of_one_row_are_one_to_those_who_wait_for_them() -> None:
    """Somebody waits for the whole call already, with objects of its own."""
    (parcel, _), sent = parcel_of(b"1", b"2", b"3"), SentMany()
    sent.add(parcel, range(3))
    waiting = threading.Thread(target=sent.wait)
    waiting.start()
    futures = [sent.future(row) for row in range(3)]
    threading.Timer(0.1, store, (parcel, 10, 0, 3)).start()
    assert sorted(done.result().offset for done in as_completed(futures, timeout=5.0)) == [10, 11, 12]
    waiting.join(5.0)
    assert sent.future(0) == futures[0] != futures[1] and len({sent.future(1), futures[1]}) == 1


def test_who_gives_up_sends_no_further_rows(cluster: InMemoryCluster) -> None:
    """As a cancelled task of an event loop does."""
    with cluster.producer(app="shop", config=SMALL) as producer:
        asked = iter((False, True))
        values = [b"%040d" % number for number in range(200)]
        sent = sent_many.send_many(
            producer.core, "t", values, None, None, 0, given_up=lambda: next(asked, True)
        )
        assert 0 < len(sent) < len(values)
        assert sent.wait(10.0)
        assert producer.statistics().messages == len(sent)


def test_no_object_per_row_that_the_collector_knows(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    producer.send(Message("t", b"warm")).result(1.0)
    values, keys = [b"%d" % i for i in range(10_000)], [b"%d" % i for i in range(10_000)]
    table = pa.table({"value": values, "key": keys})
    gc.collect()
    before = len(gc.get_objects())
    cluster.stage.held.depth += 1
    kept = [producer.send_many("t", values, keys), producer.send_table("t", table, key="key")]
    cluster.stage.held.depth -= 1
    assert len(gc.get_objects()) - before < 300
    assert producer.flush(10.0) and all(sent.done() for sent in kept)


# ---------------------------------------------------------------- limits


def test_a_table_larger_than_the_buffer_is_fed_as_room_comes(
    brokers: Brokers, topic: str, producer_of: ProducerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_of(
        brokers,
        buffer_bytes=64_000,
        message_bytes_max=9_000,
        transaction_bytes_max=9_000,
        request_bytes=8_000,
    )
    most, core = [0], producer.core
    hand_over = core.hand_over

    def watched(*args: Any) -> Any:
        parcels = hand_over(*args)
        most[0] = max(most[0], core.buffered)
        return parcels

    monkeypatch.setattr(core, "hand_over", watched)
    values = [b"%06d" % i + b"x" * 200 for i in range(5_000)]
    sent = producer.send_table(
        topic, pa.table({"value": values, "key": [b"%d" % (i % 9) for i in range(5_000)]}), key="key"
    )
    assert sent.result(30.0) is sent and most[0] <= 64_000
    again = producer.send_many(topic, values)
    assert again.result(30.0) is again and most[0] <= 64_000
    found = {(p, o): row[1] for p, o, row in rows(brokers, topic, PARTITIONS)}
    for result in (sent, again):
        stored = zip(result.partitions.tolist(), result.offsets.tolist(), strict=True)
        assert [found[at] for at in stored] == values


class Shut(ClientCalls):
    """Submits get no answer until it is opened."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers)
        self.shut, self.kept, self.lock = False, list[Callable[[], None]](), threading.Lock()

    def call(self, gid, rid, method, args, done):  # type: ignore[no-untyped-def]
        with self.lock:
            if method == "submit" and self.shut:
                self.kept.append(lambda: super(Shut, self).call(gid, rid, method, args, done))
                return
        super().call(gid, rid, method, args, done)

    def open(self) -> None:
        with self.lock:
            self.shut = False
        for call in self.kept:
            call()


def test_without_room_the_first_rows_are_refused_and_later_ones_say_so(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    calls = Shut(brokers)
    producer = producer_of(
        brokers,
        calls=calls,
        buffer_bytes=20_000,
        message_bytes_max=5_000,
        transaction_bytes_max=5_000,
        buffer_wait_s=0.3,
    )
    producer.send(Message(topic, b"warm")).result(5.0)
    calls.shut = True
    sent = producer.send_many(topic, [b"%04d" % i + b"x" * 1_000 for i in range(40)])
    assert len(sent) == 40 and 0 < sent.failed < 40 and not sent.done()
    first = min(sent.errors)
    assert list(sent.errors) == list(range(first, 40)) and isinstance(sent.errors[first], Overloaded)
    with pytest.raises(Overloaded, match="was full"):
        producer.send_table(topic, pa.table({"value": [b"x" * 4_000] * 3}))
    calls.open()
    assert sent.wait(10.0) and list(sent.errors) == list(range(first, 40))
    assert (sent.offsets[:first] >= 0).all() and (sent.offsets[first:] == -1).all()
    stored = [row[1][:4] for _, _, row in rows(brokers, topic, PARTITIONS) if row[1] != b"warm"]
    assert sorted(stored) == [b"%04d" % i for i in range(first)], "what was refused is not stored"


def test_a_body_of_many_rows_is_cut_between_them(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, request_bytes=700)
    values = [b"%04d" % i * (1 + i % 60) for i in range(400)]
    sent = producer.send_table(topic, pa.table({"value": values}), partition=3).result(10.0)
    assert sent.offsets.tolist() == list(range(400))
    assert [row[1] for p, _, row in rows(brokers, topic, PARTITIONS) if p == 3] == values


def test_rows_of_a_body_are_those_of_the_log() -> None:
    made = TableRows(
        SMALL, "t", 4, pa.table({"value": [b"v"] * 3, "key": [None, b"k", b""]}), "value", "key", None
    )
    bodies = {
        run.partition: decode_rows(run.rows[0], len(run.numbers))
        for piece in made.pieces(lambda: GATHERS)
        for run in piece
    }
    assert bodies[GATHERS][0] == (None, b"v", None, None)
    assert sum(map(len, bodies.values())) == 3


def test_threads_that_send_one_many_and_tables_share_a_producer(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, request_bytes=600, linger_ms=0.5)

    def work(thread: int) -> list[tuple[RecordMetadata, bytes]]:
        waiting: list[tuple[Any, list[bytes]]] = []
        for turn in range(30):
            values = [b"%d.%d.%d" % (thread, turn, i) for i in range(1 + 7 * (turn % 4))]
            keys = [b"%d" % (i % 3) for i in range(len(values))]
            if turn % 3 == 0:
                waiting.append((producer.send_many(topic, values, keys), values))
            elif turn % 3 == 1:
                table = pa.table({"value": values, "key": keys})
                waiting.append((producer.send_table(topic, table, key="key"), values))
            else:
                futures = [
                    producer.send(Message(topic, value, key)) for value, key in zip(values, keys, strict=True)
                ]
                waiting += [
                    ([future.result(20.0)], [value]) for future, value in zip(futures, values, strict=True)
                ]
        return [found for sent, values in waiting for found in zip(sent, values, strict=True)]

    with ThreadPoolExecutor(6) as pool:
        sent = list(pool.map(work, range(6)))
    stored = {(p, o): row[1] for p, o, row in rows(brokers, topic, PARTITIONS)}
    assert len(stored) == sum(map(len, sent))
    for mine in sent:
        last: dict[int, int] = {}
        for metadata, value in mine:
            assert stored[metadata.partition, metadata.offset] == value
            assert metadata.offset > last.get(metadata.partition, -1), "each thread's own order"
            last[metadata.partition] = metadata.offset
