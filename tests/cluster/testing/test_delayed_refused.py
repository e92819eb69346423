"""Delayed messages that are refused: a typed error each, nothing half done, and nothing of the others
lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from escrowmq import (
    BrokerConfig,
    Config,
    InvalidMessage,
    Message,
    OutcomeUnknown,
    Producer,
    TooManyScheduled,
    TransactionIdTaken,
    Unavailable,
    UnknownTopic,
)
from escrowmq.actors.client.cancelling import ScheduleId
from escrowmq.testing import InMemoryCluster
from tests.support.in_memory import COMMITTED, ROLLBACK, readable

START = datetime(2026, 7, 1, tzinfo=UTC)
LIMIT = 3


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START, config=Config(broker=BrokerConfig(timers_max=LIMIT))) as made:
        made.admin.create_topic("orders")
        yield made


@pytest.fixture
def producer(cluster: InMemoryCluster) -> Iterator[Producer]:
    with cluster.producer("shop") as made:
        yield made


def later(value: bytes = b"later", **given: Any) -> Message:
    return Message("orders", value, **given or {"delay_s": 60})


def _send(producer: Producer, message: Message) -> None:
    producer.send(message).result(0)


def _transaction(producer: Producer, message: Message) -> None:
    with producer.transaction() as tx:
        tx.send(Message("orders", b"with it"), message)


def _bulk(producer: Producer, message: Message) -> None:
    now, refused = producer.send_transactions([Message("orders", b"beside"), message])
    assert now.state is COMMITTED and refused.error is not None
    assert refused.state is ROLLBACK
    raise refused.error


def _asynchronous(producer: Producer, message: Message) -> None:
    asyncio.run(producer.aio.send(message))


def _asynchronous_transaction(producer: Producer, message: Message) -> None:
    async def send() -> None:
        async with producer.aio.transaction() as tx:
            await tx.send(Message("orders", b"with it"), message)

    asyncio.run(send())


WAYS = [_send, _transaction, _bulk, _asynchronous, _asynchronous_transaction]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_beyond_the_limit_of_waiting_messages_nothing_is_done_and_it_passes(
    cluster: InMemoryCluster, producer: Producer, way: Callable[[Producer, Message], None]
) -> None:
    for number in range(LIMIT):
        producer.send(later(b"first %d" % number)).result(0)
    with pytest.raises(TooManyScheduled, match=f"{LIMIT} messages wait") as refused:
        way(producer, later())
    assert refused.value.retry_after_s > 0
    assert producer.send(Message("orders", b"plain")).result(0).offset >= 0  # is not concerned
    expected = [b"first 0", b"first 1", b"first 2", b"plain", *([b"beside"] if way is _bulk else [])]
    cluster.clock.advance(60)
    assert readable(cluster) == sorted(expected)
    way(producer, later()) if way is not _bulk else producer.send(later())  # there is room again
    cluster.clock.advance(60)
    assert b"later" in readable(cluster)


def test_a_cancelled_message_makes_room(producer: Producer) -> None:
    texts = [producer.send(later()).result(0).schedule_id for _ in range(LIMIT)]
    with pytest.raises(TooManyScheduled):
        producer.send(later()).result(0)
    assert texts[0] is not None and producer.cancel(texts[0])
    producer.send(later()).result(0)


@pytest.mark.parametrize(
    "given",
    [{"delay_s": math.nan}, {"delay_s": -1}, {"deliver_at": datetime(2030, 1, 1)}, {"delay_s": "soon"}],
)
def test_a_row_with_a_wrong_time_is_named_and_none_is_sent(
    cluster: InMemoryCluster, producer: Producer, given: dict[str, Any]
) -> None:
    ((name, wrong),) = given.items()
    right = 1 if name == "delay_s" else START
    with pytest.raises(InvalidMessage, match="row 1: "):
        producer.send_many("orders", [b"1", b"2", b"3"], **{name: [right, wrong, right]})
    with pytest.raises(InvalidMessage):
        producer.send_many("orders", [b"1"], delay_s=1, deliver_at=START)
    with pytest.raises(InvalidMessage, match="2 values, but 1 of delay_s"):
        producer.send_many("orders", [b"1", b"2"], delay_s=[1])
    cluster.clock.advance(10)
    assert readable(cluster) == []


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([START.replace(tzinfo=None)] * 2), "no time zone"),
        (pa.array(["soon", "later"]), "a timestamp with a time zone, or numbers"),
        (pa.array([1_800_000_000, 1]), "row 0: .*looks like seconds"),
    ],
)
def test_a_column_that_is_no_time_is_refused(
    cluster: InMemoryCluster, producer: Producer, column: pa.Array, text: str
) -> None:
    table = pa.table({"value": ["1", "2"], "due": column})
    for send in (producer.send_table, producer.send_transactions_table):
        with pytest.raises(InvalidMessage, match=text):
            send("orders", table, deliver_at="due")
    with pytest.raises(InvalidMessage, match="needs one column 'when'"):
        producer.send_table("orders", table, deliver_at="when")


def test_a_time_beyond_ten_years_is_refused_before_anything_is_sent(
    cluster: InMemoryCluster, producer: Producer
) -> None:
    far = START + timedelta(days=3_661)
    with pytest.raises(InvalidMessage, match="ten years"):
        producer.send(later(deliver_at=far))
    with pytest.raises(InvalidMessage, match="ten years"), producer.transaction() as tx:
        tx.send(Message("orders", b"with it"))
        tx.send(later(deliver_at=far))
    for huge in (10**30, 10**400, 10**5_000):
        for about in ({"deliver_at": huge}, {"delay_s": huge}):
            with pytest.raises(InvalidMessage, match="ten years"):
                producer.send(later(**about))
            with pytest.raises(InvalidMessage, match="ten years"):
                producer.send_many("orders", [b"later"], **{name: [huge] for name in about})
    cluster.clock.advance(1)
    assert readable(cluster) == []


def test_an_id_given_again_with_another_time_is_another_transaction(
    cluster: InMemoryCluster, producer: Producer
) -> None:
    def send(due: datetime) -> None:
        with producer.transaction(tx_id="mine") as tx:
            tx.send(later(deliver_at=due))

    send(START + timedelta(seconds=60))
    send(START + timedelta(seconds=60))
    with pytest.raises(TransactionIdTaken):
        send(START + timedelta(seconds=61))
    cluster.clock.advance(100)
    assert readable(cluster) == [b"later"]


# ---------------------------------------------------------------- cancelling


@pytest.mark.parametrize("text", ["", "orders/0/1/2/3", "orders/0/1/2/3/deadbeef", None, 7])
def test_what_is_no_id_cannot_be_cancelled(producer: Producer, text: Any) -> None:
    with pytest.raises(InvalidMessage, match="schedule id"):
        producer.cancel(text)
    with pytest.raises(InvalidMessage, match="schedule id"):
        asyncio.run(producer.aio.cancel(text))


def test_an_id_of_another_cluster_is_refused_and_cancels_nothing(
    cluster: InMemoryCluster, producer: Producer
) -> None:
    with InMemoryCluster(start=START) as other, other.producer("shop") as theirs:
        other.admin.create_topic("orders")
        text = theirs.send(later()).result(0).schedule_id
    assert text is not None
    with pytest.raises(InvalidMessage, match="another cluster"):
        producer.cancel(text)


def test_an_id_of_a_topic_or_partition_that_does_not_exist_is_refused(
    cluster: InMemoryCluster, producer: Producer
) -> None:
    for unknown in (ScheduleId("no such", 0, 1, 2, 3), ScheduleId("orders", 9, 1, 2, 3)):
        with pytest.raises(UnknownTopic):
            producer.cancel(unknown.text(cluster.admin.info.cluster_id))
        with pytest.raises(UnknownTopic):
            asyncio.run(producer.aio.cancel(unknown.text(cluster.admin.info.cluster_id)))


def test_an_id_that_nobody_gave_is_not_cancelled(cluster: InMemoryCluster, producer: Producer) -> None:
    assert (
        producer.cancel(ScheduleId("orders", 0, 1 << 45, 2, 3).text(cluster.admin.info.cluster_id)) is False
    )


def test_a_deleted_topic_takes_its_waiting_messages_along(
    cluster: InMemoryCluster, producer: Producer
) -> None:
    text = producer.send(later()).result(0).schedule_id
    assert text is not None
    cluster.admin.delete_topic("orders")
    with pytest.raises(UnknownTopic):
        producer.cancel(text)
    cluster.admin.create_topic("orders")
    assert producer.cancel(text) is False  # of the earlier topic of that name
    producer.send(later(b"new")).result(0)
    cluster.clock.advance(100)
    assert readable(cluster) == [b"new"]


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
def test_a_cancel_without_an_answer_can_be_repeated(
    cluster: InMemoryCluster, producer: Producer, error: type[Exception]
) -> None:
    text = producer.send(later(delay_s=120)).result(0).schedule_id
    assert text is not None
    cluster.fail_next("cancel", error, carried_out=error is OutcomeUnknown)  # type: ignore[arg-type]
    with pytest.raises(error):
        producer.cancel(text)
    assert producer.cancel(text)
    cluster.clock.advance(200)
    assert readable(cluster) == []
