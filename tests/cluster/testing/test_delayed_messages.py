"""Delayed messages in a cluster in memory, in every way to send: when they can be read, and what is
cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from escrowmq import Message, OutcomeUnknown, Producer, RecordMetadata, TransactionRequest
from escrowmq.testing import InMemoryCluster
from tests.support.in_memory import COMMITTED, ROLLBACK, Calls


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=datetime(2026, 7, 1, tzinfo=UTC)) as made:
        made.admin.create_topic("orders")
        made.admin.create_topic("wide", partitions=4)
        yield made


@pytest.fixture
def producer(cluster: InMemoryCluster) -> Iterator[Producer]:
    with cluster.producer("shop") as made:
        yield made


@pytest.fixture
def read(cluster: InMemoryCluster) -> Iterator[Callable[[], list[bytes]]]:
    """What has become readable since it was last asked."""
    with cluster.consumer("readers", ["orders", "wide"], auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout_s=0)  # joins the group
        yield lambda: [record.value for record in consumer.poll(timeout_s=0)]


def now_ms(cluster: InMemoryCluster) -> int:
    return round(cluster.clock.time() * 1000)


def test_a_delay_ends_after_so_many_seconds_and_not_before(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    sent = producer.send(Message("orders", b"later", delay_s=60)).result(0)
    assert sent.offset == -1 and sent.deliver_at == now_ms(cluster) + 60_000
    cluster.clock.advance(59.999)
    assert read() == []
    cluster.clock.advance(0.001)
    assert read() == [b"later"]


def test_a_record_has_the_time_at_which_it_became_readable(
    cluster: InMemoryCluster, producer: Producer
) -> None:
    producer.send(Message("orders", b"later", b"key", {"h": b"1"}, delay_s=2.5)).result(0)
    due = now_ms(cluster) + 2_500
    cluster.clock.advance(10)
    with cluster.consumer("one", ["orders"], auto_offset_reset="earliest") as consumer:
        (record,) = consumer.poll()
    assert (record.offset, record.timestamp, record.key, record.headers) == (0, due, b"key", {"h": b"1"})
    assert record.tx_id is None


@pytest.mark.parametrize("given", ["datetime", "ms"])
def test_a_time_can_be_a_datetime_or_ms(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]], given: str
) -> None:
    when = cluster.clock.now() + timedelta(minutes=4)
    ms = now_ms(cluster) + 4 * 60_000
    message = Message("orders", b"later", deliver_at=when if given == "datetime" else ms)
    assert producer.send(message).result(0).deliver_at in (ms, ms + 1)  # a datetime has microseconds
    cluster.clock.advance(4 * 60 - 1)
    assert read() == []
    cluster.clock.advance(1.001)
    assert read() == [b"later"]


def test_a_time_that_is_past_means_at_once(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    past = cluster.clock.now() - timedelta(days=400)
    for message in (Message("orders", b"1", delay_s=0), Message("orders", b"2", deliver_at=past)):
        assert producer.send(message).result(0).offset == -1
    with producer.transaction() as tx:
        tx.send(Message("orders", b"3", deliver_at=past))
    cluster.clock.advance(0.002)
    assert sorted(read()) == [b"1", b"2", b"3"]


def test_messages_of_one_time_keep_their_order_and_others_are_ordered_by_time(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    due = now_ms(cluster) + 5_000
    for number in range(50):
        producer.send(Message("orders", b"%02d" % number, deliver_at=due))
    producer.send(Message("orders", b"first", deliver_at=due - 1))
    producer.flush()
    cluster.clock.advance(5)
    assert read() == [b"first", *(b"%02d" % number for number in range(50))]


def test_others_are_not_held_up(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    producer.send(Message("orders", b"later", delay_s=1))
    assert producer.send(Message("orders", b"now")).result(0).offset == 0
    assert read() == [b"now"]
    cluster.clock.advance(1)
    assert read() == [b"later"]


# ---------------------------------------------------------------- transactions


def test_in_a_transaction_a_delay_counts_from_the_commit(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    with producer.transaction() as tx:
        tx.send(Message("orders", b"now"), Message("orders", b"later", delay_s=10))
        tx.prepare()
        cluster.clock.advance(4)
    assert read() == [b"now"]
    cluster.clock.advance(9.999)
    assert read() == []
    cluster.clock.advance(0.001)
    assert read() == [b"later"]


def test_a_rolled_back_transaction_leaves_nothing_waiting(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        tx.send(
            Message("orders", b"1", delay_s=1), Message("orders", b"2", deliver_at=now_ms(cluster) + 1_000)
        )
        tx.prepare()
        raise ZeroDivisionError
    cluster.clock.advance(100)
    assert read() == []


def test_a_transaction_left_to_the_check_is_scheduled_when_the_check_commits(
    cluster: InMemoryCluster,
) -> None:
    """The loop that brokers of another kind had: the check of a transaction with a delayed message found that
    message again and again. The check must be asked once, and the message must come once."""
    asked = Calls(cluster, lambda query_id: COMMITTED)
    with cluster.producer("shop", tx_status_querier=asked) as producer:
        with producer.transaction(query_id="42", transaction_timeout_s=5) as tx:
            tx.send(Message("orders", b"later", delay_s=60))
            tx.prepare()
            tx.unknown()
        cluster.clock.advance(30)
        assert [query_id for query_id, _ in asked.asked] == ["42"]
        assert cluster.admin.list_transactions() == []
        with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
            assert consumer.poll(timeout_s=1) == []
            cluster.clock.advance(200)
            assert [record.value for record in consumer.poll(timeout_s=0)] == [b"later"]
            cluster.clock.advance(200)
            assert consumer.poll(timeout_s=0) == []
    assert [query_id for query_id, _ in asked.asked] == ["42"]


def test_a_check_that_rolls_back_leaves_nothing_waiting(cluster: InMemoryCluster) -> None:
    asked = Calls(cluster, lambda query_id: ROLLBACK)
    with cluster.producer("shop", tx_status_querier=asked) as producer:
        with producer.transaction(query_id="42", transaction_timeout_s=5) as tx:
            tx.send(Message("orders", b"later", delay_s=60), Message("orders", b"now"))
            tx.prepare()
            tx.unknown()
        cluster.clock.advance(200)
    with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
        assert consumer.poll(timeout_s=1) == []


def test_a_commit_whose_answer_was_lost_schedules_once(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    def send() -> None:
        with producer.transaction(tx_id="mine") as tx:
            tx.send(Message("orders", b"later", delay_s=60))

    cluster.fail_next("commit", OutcomeUnknown, carried_out=True)
    with pytest.raises(OutcomeUnknown):
        send()
    send()
    cluster.clock.advance(120)
    assert read() == [b"later"]


def test_a_send_whose_answer_was_lost_may_be_there_and_is_not_twice(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    cluster.fail_next("send", OutcomeUnknown, carried_out=True)
    with pytest.raises(OutcomeUnknown):
        producer.send(Message("orders", b"one", delay_s=60)).result(60)
    producer.send(Message("orders", b"two", delay_s=60)).result(0)
    cluster.clock.advance(120)
    assert read() == [b"one", b"two"]


# ---------------------------------------------------------------- every way to send


def body(number: int) -> bytes:
    """A value that compression makes smaller."""
    return b"%d" % number + b" " * 2_000


def _send(producer: Producer, due: int) -> list[RecordMetadata]:
    futures = [producer.send(Message("wide", body(n), b"k%d" % n, deliver_at=due)) for n in range(6)]
    return [future.result(0) for future in futures]


def _send_many(producer: Producer, due: int) -> list[RecordMetadata]:
    values = [body(n) for n in range(6)]
    return list(
        producer.send_many("wide", values, keys=[b"k%d" % n for n in range(6)], deliver_at=due).result(0)
    )


def _send_many_each(producer: Producer, due: int) -> list[RecordMetadata]:
    return list(producer.send_many("wide", [body(n) for n in range(6)], deliver_at=[due] * 6).result(0))


def _send_table(producer: Producer, due: int) -> list[RecordMetadata]:
    times = pa.array([due] * 6, pa.timestamp("ms", "UTC"))
    table = pa.table({"value": [body(n) for n in range(6)], "key": ["a", "b"] * 3, "due": times})
    return list(producer.send_table("wide", table, key="key", deliver_at="due").result(0))


def _send_table_one(producer: Producer, due: int) -> list[RecordMetadata]:
    table = pa.table({"value": [body(n) for n in range(6)]})
    return list(producer.send_table("wide", table, deliver_at=due).result(0))


def _transaction(producer: Producer, due: int) -> list[str | None]:
    with producer.transaction() as tx:
        tx.send(*(Message("wide", body(n), partition=n % 4, deliver_at=due) for n in range(3)))
        tx.send(*(Message("wide", body(n), deliver_at=due) for n in range(3, 6)))
    return list(tx.schedule_ids)


def _callback(producer: Producer, due: int) -> list[str | None]:
    ids: list[str | None] = []
    messages = [Message("wide", body(n), deliver_at=due) for n in range(6)]
    assert (
        producer.send_message_in_transaction(messages, lambda tx: ids.extend(tx.schedule_ids)).state
        is COMMITTED
    )
    return ids


def _bulk(producer: Producer, due: int) -> list[str | None]:
    requests = [TransactionRequest(Message("wide", body(n), deliver_at=due)) for n in range(3)]
    requests.append(TransactionRequest([Message("wide", body(n), deliver_at=due) for n in range(3, 6)]))
    results = producer.send_transactions(requests)
    assert {result.state for result in results} == {COMMITTED}
    return [one for result in results for one in result.schedule_ids]


def _bulk_table(producer: Producer, due: int) -> list[str | None]:
    table = pa.table({"value": [body(n) for n in range(6)], "due": [due] * 6})
    results = producer.send_transactions_table("wide", table, deliver_at="due")
    assert results.committed == 6
    ids: list[str | None] = results.schedule_ids.to_pylist()
    assert ids == [result.schedule_ids[0] for result in results]
    return ids


def _asynchronous(producer: Producer, due: int) -> list[Any]:
    async def send() -> list[Any]:
        first = await producer.aio.send(Message("wide", body(0), deliver_at=due))
        many = await producer.aio.send_many("wide", [body(1), body(2)], deliver_at=due)
        async with producer.aio.transaction() as tx:
            await tx.send(Message("wide", body(3), deliver_at=due))
        table = pa.table({"value": [body(4)], "due": [due]})
        sent = await producer.aio.send_table("wide", table, deliver_at="due")
        row = pa.table({"value": [body(5)]})
        told = await producer.aio.send_transactions_table("wide", row, deliver_at=due)
        return [first, *many, *tx.schedule_ids, *sent, *told[0].schedule_ids]

    return asyncio.run(send())


WAYS: list[Callable[[Producer, int], Any]] = [
    _send, _send_many, _send_many_each, _send_table, _send_table_one, _transaction, _callback, _bulk,
    _bulk_table, _asynchronous,
]  # fmt: skip


@pytest.mark.parametrize(
    "settings", [{}, {"compression": "zstd", "compress_from": 1}], ids=["plain", "packed"]
)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_send_can_delay_and_cancel(
    cluster: InMemoryCluster,
    read: Callable[[], list[bytes]],
    way: Callable[..., Any],
    settings: dict[str, Any],
) -> None:
    due = now_ms(cluster) + 60_000
    with cluster.producer("shop", **settings) as producer:
        told = way(producer, due)
        assert read() == []
        expected = [body(n) for n in range(6)]
        texts = [one if isinstance(one, str) else one.schedule_id for one in told]
        assert len(set(texts)) == 6
        assert producer.cancel(texts[2])
        expected.remove(body(2))
        cluster.clock.advance(60)
        assert sorted(read()) == expected
        assert producer.statistics().values_compressed == (6 if settings else 0)


def test_rows_of_one_call_may_have_different_times_and_none(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    sent = producer.send_many("orders", [b"a", b"b", b"c"], delay_s=[3, None, 1]).result(0)
    assert sent.offsets.tolist() == [-1, -1, -1] and sent[0].schedule_id != sent[2].schedule_id
    table = pa.table({"value": ["d", "e"], "wait": [2.5, None], "id": ["x", "y"]})
    producer.send_table("orders", table, delay_s="wait").result(0)
    results = producer.send_transactions_table("orders", table, delay_s="wait", tx_id="id")
    assert results.tx_ids.to_pylist() == ["x", "y"]
    cluster.clock.advance(0.002)
    assert sorted(read()) == [b"b", b"e", b"e"]
    cluster.clock.advance(5)
    assert read() == [b"c", b"d", b"d", b"a"]


def test_bulk_results_have_the_id_of_each_message_that_has_one(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    due = now_ms(cluster) + 60_000
    sent = producer.send_many("orders", [b"a", b"b", b"c"], deliver_at=[None, due, due]).result(0)
    assert sent.schedule_ids == [None, sent[1].schedule_id, sent[2].schedule_id]
    assert producer.send_many("orders", [b"now"]).result(0).schedule_ids == [None]
    at_once, delayed = Message("orders", b"d"), Message("orders", b"e", deliver_at=due)
    batch = [[at_once, delayed, Message("orders", b"f", delay_s=60), delayed], at_once, [delayed], [delayed]]
    results = producer.send_transactions(batch, lambda txs: [True, True, True, False])  # type: ignore[list-item]
    first, plain, one, rolled_back = (result.schedule_ids for result in results)
    assert [text is not None for text in first] == [False, True, False, True]
    assert plain == rolled_back == ()
    returned = producer.send_message_in_transaction([delayed, at_once], lambda: True, tx_id="mine")
    again = producer.send_message_in_transaction([delayed, at_once], lambda: True, tx_id="mine")
    assert again == returned and returned.schedule_ids[1] is None
    for text in (sent.schedule_ids[1], first[3], one[0], returned.schedule_ids[0]):
        assert text is not None and producer.cancel(text)
    cluster.clock.advance(61)
    assert sorted(read()) == [b"a", b"c", b"d", b"d", b"d", b"e", b"f", b"now"]


def test_rows_of_a_table_of_transactions_have_ids_unless_they_are_rolled_back(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    due = now_ms(cluster) + 60_000
    table = pa.table({"value": ["a", "b", "c", "d"], "due": [due, None, due, due]})
    results = producer.send_transactions_table(
        "orders", table, lambda txs: [True, True, False, True], deliver_at="due"
    )
    ids = results.schedule_ids.to_pylist()
    assert [text is not None for text in ids] == [True, False, False, True]
    assert [result.schedule_ids for result in results] == [(ids[0],), (), (), (ids[3],)]
    assert producer.cancel(ids[3]) and results[-1].schedule_ids == (ids[3],)
    cluster.clock.advance(60)
    assert read() == [b"b", b"a"]


def test_objects_can_be_delayed(cluster: InMemoryCluster) -> None:
    with (
        cluster.producer("shop", value_serializer="json", compression="zstd", compress_from=1) as producer,
        cluster.consumer(
            "r", ["orders"], auto_offset_reset="earliest", value_deserializer="json"
        ) as consumer,
    ):
        producer.send(Message("orders", {"n": [1] * 500}, delay_s=1))
        with producer.transaction() as tx:
            tx.send(Message("orders", {"n": [2] * 500}, delay_s=1))
        assert producer.statistics().values_compressed == 2
        cluster.clock.advance(1)
        assert sorted(record.value["n"][0] for record in consumer.poll()) == [1, 2]


# ---------------------------------------------------------------- cancelling


def test_what_is_cancelled_is_never_read_and_what_can_be_read_is_not_cancelled(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    one, two = (producer.send(Message("orders", value, delay_s=60)).result(0) for value in (b"1", b"2"))
    assert one.schedule_id is not None and two.schedule_id is not None
    assert producer.cancel(one.schedule_id) is True
    assert producer.cancel(one.schedule_id) is True  # again
    cluster.clock.advance(60)
    assert read() == [b"2"]
    assert producer.cancel(two.schedule_id) is False
    assert asyncio.run(producer.aio.cancel(two.schedule_id)) is False


def test_another_producer_and_an_event_loop_can_cancel(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    with producer.transaction() as tx:
        due = now_ms(cluster) + 60_000
        tx.send(Message("wide", b"1", b"k", deliver_at=due), Message("orders", b"2", delay_s=60))
        assert tx.schedule_ids[1] is None and tx.schedule_ids[0] is not None
        tx.prepare()
        assert producer.cancel(tx.schedule_ids[0]) is False  # nothing waits before the commit
    with cluster.producer("other") as other:
        assert asyncio.run(other.aio.cancel(tx.schedule_ids[0]))
    cluster.clock.advance(60)
    assert read() == [b"2"]


def test_two_rows_of_a_transaction_are_cancelled_one_by_one(
    cluster: InMemoryCluster, producer: Producer, read: Callable[[], list[bytes]]
) -> None:
    due = now_ms(cluster) + 60_000
    with producer.transaction(tx_id="mine") as tx:
        tx.send(*(Message("orders", b"%d" % n, deliver_at=due) for n in range(4)))
    for text in (tx.schedule_ids[1], tx.schedule_ids[2]):
        assert text is not None and producer.cancel(text)
    cluster.clock.advance(60)
    assert read() == [b"0", b"3"]
