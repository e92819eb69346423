"""``poll_arrow`` returns what ``poll`` returns, whatever was sent, and whoever of the two is called when."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq import Closed, ConfigError, Consumer, ConsumerRecord, InvalidMessage, Message
from escrowmq.actors.consumer.arrow_batches import SCHEMA, batches_of
from escrowmq.actors.consumer.positions import Positions
from escrowmq.actors.consumer.record_drain import RecordDrain, Redelivery
from escrowmq.actors.consumer.statistics import Counted
from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format.codec import encode_row
from escrowmq.testing import InMemoryCluster

PARTITIONS = 3
messages = st.builds(
    lambda partition, key, value, headers: (partition, key, value, headers),
    st.integers(0, PARTITIONS - 1),
    st.none() | st.binary(max_size=8),
    st.binary(max_size=30) | st.binary(min_size=900, max_size=2_000),
    st.just({}) | st.dictionaries(st.text(min_size=1, max_size=3), st.binary(max_size=3), max_size=2),
)
#: Messages sent together, and whether plainly, in a transaction that commits, rolls back, or stays open.
sendings = st.tuples(
    st.sampled_from(["plain", "commit", "rollback", "open"]), st.lists(messages, min_size=1, max_size=6)
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        yield made


def records_of(table: pa.Table) -> list[ConsumerRecord]:
    """The rows as ``poll`` would return them. Checks that they are sound."""
    table.validate(full=True)
    assert table.schema == SCHEMA
    rows = table.set_column(3, "timestamp", table.column("timestamp").cast(pa.int64())).to_pylist()
    return [
        ConsumerRecord(**{**row, "headers": {h["key"]: h["value"] for h in row["headers"]}}) for row in rows
    ]


def send(cluster: InMemoryCluster, topic: str, sent: list[tuple[str, list[tuple]]]) -> None:
    with cluster.producer("shop") as producer:
        for how, content in sent:
            batch = [
                Message(topic, value, key=key, partition=partition, headers=headers)
                for partition, key, value, headers in content
            ]
            if how == "plain":
                for message in batch:
                    producer.send(message).result(1)
            else:
                with producer.transaction() as transaction:
                    transaction.send(*batch)
                    transaction.prepare()
                    getattr(transaction, {"open": "unknown"}.get(how, how))()


def all_of(consumer: Consumer, take: st.DataObject | None = None) -> list[ConsumerRecord]:
    """Everything up to the end; with ``take``, each time in another form and amount."""
    records: list[ConsumerRecord] = []
    while True:
        limit = 1_000 if take is None else take.draw(st.integers(1, 7))
        if take is None or take.draw(st.booleans()):
            found = consumer.poll(limit, 0)
        else:
            found = records_of(consumer.poll_arrow(limit, 0))
        assert len(found) <= limit
        if not found:
            return sorted(records, key=lambda record: record.partition)  # stable: keeps the order within
        records += found


@settings(max_examples=60, deadline=None)
@given(st.lists(sendings, max_size=8), st.data())
def test_both_read_the_same_in_any_turn_and_any_amount(
    cluster: InMemoryCluster, sent: list[tuple[str, list[tuple]]], data: st.DataObject
) -> None:
    topic = f"orders-{uuid.uuid4().hex}"
    cluster.admin.create_topic(topic, partitions=PARTITIONS)
    send(cluster, topic, sent)
    tps = [(topic, partition) for partition in range(PARTITIONS)]
    fetch_bytes = data.draw(st.sampled_from([200, 5_000, 1 << 20]))
    with (
        cluster.consumer(auto_offset_reset="earliest") as one,
        cluster.consumer(auto_offset_reset="earliest", fetch_bytes=fetch_bytes) as other,
    ):
        one.assign(tps)
        other.assign(tps)
        expected = all_of(one)
        assert all_of(other, data) == expected
        assert [other.position(*tp) for tp in tps] == [one.position(*tp) for tp in tps]
        assert len(expected) == sum(len(content) for how, content in sent if how in ("plain", "commit"))
        assert other.statistics().records == len(expected)


def test_a_group_commits_what_it_has_polled_and_the_next_member_goes_on(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("members", partitions=2)
    send(cluster, "members", [("plain", [(n % 2, None, b"%d" % n, {}) for n in range(10)])])
    with cluster.consumer("g", ["members"], auto_offset_reset="earliest") as first:
        table = first.poll_arrow(4)
        assert table.num_rows == 4
        first.commit()
        first.poll_arrow(3)  # not committed
    with cluster.consumer("g", ["members"]) as second:
        rest = second.poll_arrow()
    read = [int(value.as_py()) for value in [*table["value"], *rest["value"]]]
    assert sorted(read) == list(range(10))
    assert rest["topic"].combine_chunks().dictionary.to_pylist() == ["members"]


def test_several_topics_have_one_number_each(cluster: InMemoryCluster) -> None:
    for topic in ("apples", "pears"):
        cluster.admin.create_topic(topic, partitions=2)
        send(cluster, topic, [("plain", [(0, None, b"0", {}), (1, None, b"1", {})])])
    with cluster.consumer("fruit", ["apples", "pears"], auto_offset_reset="earliest") as consumer:
        table = consumer.poll_arrow()
    assert sorted(table["topic"].to_pylist()) == ["apples", "apples", "pears", "pears"]
    assert len({tuple(chunk.dictionary.to_pylist()) for chunk in table["topic"].chunks}) == 1


def test_what_was_nacked_comes_again_as_rows(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("again")
    send(cluster, "again", [("plain", [(0, b"k", b"%d" % n, {"h": b"v"}) for n in range(5)])])
    with cluster.consumer("g", ["again"], auto_offset_reset="earliest") as consumer:
        records = records_of(consumer.poll_arrow(4))
        consumer.nack(records[1], delay_s=2)
        assert records_of(consumer.poll_arrow(4))[0].offset == 4
        cluster.clock.advance(3)
        assert records_of(consumer.poll_arrow(4)) == [records[1]]


def test_nothing_is_a_table_without_rows(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("empty")
    with cluster.consumer("g", ["empty"]) as consumer:
        table = consumer.poll_arrow(timeout_s=0.1)
        assert table.num_rows == 0 and table.schema == SCHEMA
        for wrong in ({"max_records": 0}, {"timeout_s": -1}):
            with pytest.raises(InvalidMessage):
                consumer.poll_arrow(**wrong)
    with pytest.raises(Closed):
        consumer.poll_arrow()


def test_times_are_times(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("times")
    before = cluster.clock.now()
    send(cluster, "times", [("plain", [(0, None, b"x", {})])])
    with cluster.consumer("g", ["times"], auto_offset_reset="earliest") as consumer:
        (time,) = consumer.poll_arrow()["timestamp"].to_pylist()
    assert isinstance(time, datetime) and time.tzinfo is not None
    assert abs((time.astimezone(UTC) - before).total_seconds()) < 2


def test_asyncio_has_it_too(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("async")
    send(cluster, "async", [("commit", [(0, None, b"%d" % n, {}) for n in range(5)])])

    async def read() -> list[ConsumerRecord]:
        with cluster.consumer("g", ["async"], auto_offset_reset="earliest") as consumer:
            found = records_of(await consumer.aio.poll_arrow(3, timeout_s=5))
            found += await consumer.aio.poll(1, timeout_s=5)
            return found + records_of(await consumer.aio.poll_arrow(timeout_s=5))

    assert [record.value for record in asyncio.run(read())] == [b"0", b"1", b"2", b"3", b"4"]


def test_without_pyarrow_it_says_what_to_install_and_takes_nothing(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.admin.create_topic("bare")
    send(cluster, "bare", [("plain", [(0, None, b"x", {})])])
    with cluster.consumer("g", ["bare"], auto_offset_reset="earliest") as consumer:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "pyarrow", None)
            patch.delitem(sys.modules, "escrowmq.actors.consumer.arrow_batches")
            with pytest.raises(ConfigError, match=r"pip install 'escrowmq\[arrow\]'"):
                consumer.poll_arrow()
        assert [record.value for record in consumer.poll()] == [b"x"]


@pytest.mark.parametrize("form", ["records", "batches"])
def test_a_record_that_comes_again_is_not_lost_when_the_next_bytes_are_damaged(form: str) -> None:
    positions, redelivery = Positions(fetch_bytes=500, buffer_bytes=4_000, linger_s=0), Redelivery()
    positions.assign({("t", 0): 0}, ())
    state = positions.states()[0]
    positions.resolve(("t", 0), state.epoch, 1)
    damaged = b"\xc1" * len(encode_row(None, b"x", None, None))
    positions.fetched(("t", 0), state.epoch, 1, [(1, 1, 5, len(damaged))], damaged, (0, 2), 0.0, early=False)
    again = ConsumerRecord("t", 0, 0, 5, None, b"again", {}, None)
    redelivery.add(again, 1.0)
    taking = RecordDrain(positions, redelivery, Counted(), lambda: None)
    found = getattr(taking, form)(10, 2.0)
    assert found == ([again] if form == "records" else batches_of([again]))
    assert state.position == 1 and not state.chunks, "the damaged chunk is fetched from another replica"
    positions.fetched(("t", 0), state.epoch, 1, [(1, 1, 5, len(damaged))], damaged, (0, 2), 0.0, early=False)
    with pytest.raises(CorruptLog):
        getattr(taking, form)(10, 2.0)
