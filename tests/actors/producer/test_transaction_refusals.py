"""What is refused before the local transaction runs, and before anything is sent."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import InvalidMessage, MessageTooLarge, UnknownTopic
from escrowmq.replication.format import ops
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ROLLBACK, ProducerOf, Unique, never, open_transactions, values


def test_an_unknown_topic_is_refused_before_anything_happens(
    brokers: Brokers, topic: str, unique: Unique, producer_of: ProducerOf
) -> None:
    with pytest.raises(UnknownTopic, match="create it: admin"):
        producer_of(brokers).send_message_in_transaction(
            [Message(topic, b"a"), Message(unique("nowhere"), b"a")], never
        )
    assert not open_transactions(brokers, topic)


def test_a_topic_deleted_meanwhile_fails_only_what_touches_it(
    brokers: Brokers, topic: str, unique: Unique, producer_of: ProducerOf
) -> None:
    gone = unique("gone")
    brokers.topic(gone)
    producer = producer_of(brokers, transaction_linger_ms=100.0)
    producer.send(Message(gone, b"x")).result(5.0)
    brokers.groups[0].submit(ops.delete_topic(gone))
    batch = [([Message(topic, b"1")], "1"), ([Message(topic, b"2"), Message(gone, b"2")], "2"),
             ([Message(topic, b"3")], "3")]  # fmt: skip
    results = producer.send_transactions(batch)
    assert [r.state for r in results] == [COMMITTED, ROLLBACK, COMMITTED]
    assert isinstance(results[1].error, UnknownTopic) and results[1].error.topic == gone
    assert values(brokers, topic) == [b"1", b"3"]


@pytest.mark.parametrize("partition", [1, 7])
def test_a_partition_out_of_range_is_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf, partition: int
) -> None:
    with pytest.raises(UnknownTopic, match=rf"no partition {partition} \(it has 1\)"):
        producer_of(brokers).send_message_in_transaction(Message(topic, b"a", partition=partition), never)


def test_messages_and_transactions_over_the_limit_are_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, message_bytes_max=1000, transaction_bytes_max=3000)
    with pytest.raises(MessageTooLarge, match="limit of 1000"):
        producer.send_message_in_transaction(Message(topic, b"x" * 1001), never)
    with pytest.raises(MessageTooLarge, match="limit of 3000"):
        producer.send_message_in_transaction([Message(topic, b"x" * 900)] * 4, never)
    with producer.transaction() as tx:
        for _ in range(3):
            tx.send(Message(topic, b"x" * 900))
        with pytest.raises(MessageTooLarge):
            tx.send(Message(topic, b"x" * 900))
    assert len(values(brokers, topic)) == 3


@pytest.mark.parametrize("bad", ["", "x" * 513, 42, "\ud800"])
def test_ids_are_checked_where_they_are_given(
    brokers: Brokers, topic: str, producer_of: ProducerOf, bad: object
) -> None:
    producer = producer_of(brokers)
    for name in ("tx_id", "query_id"):
        with pytest.raises(InvalidMessage, match=name):
            producer.send_message_in_transaction(Message(topic, b"a"), never, **{name: bad})


def test_what_is_no_message_or_no_callback_is_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    for nothing in ([], ()):
        with pytest.raises(InvalidMessage, match="at least one message"):
            producer.send_message_in_transaction(nothing, never)
    with pytest.raises(InvalidMessage, match="expected an escrowmq"):
        producer.send_message_in_transaction(["text"], never)  # type: ignore[list-item]
    with pytest.raises(InvalidMessage, match="callable"):
        producer.send_message_in_transaction(Message(topic), None)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="cannot be encoded"):
        producer.send_message_in_transaction(Message(topic, headers={"\ud800": b""}), never)
    for timeout in (0, -1.0, True, "6"):
        with pytest.raises(InvalidMessage, match="transaction_timeout_s"):
            producer.transaction(transaction_timeout_s=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["order\n42", "\x00", "a\x7f", "\x85", "a\u2028b"])
def test_ids_with_control_characters_are_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf, bad: str
) -> None:
    producer = producer_of(brokers)
    for ids in ({"tx_id": bad}, {"query_id": bad}):
        with pytest.raises(InvalidMessage, match="use an id without them"):
            producer.send_message_in_transaction(Message(topic, b"a"), never, **ids)
    (result,) = producer.send_transactions([(Message(topic, b"a"), "1", bad)])
    assert isinstance(result.error, InvalidMessage)
    assert not open_transactions(brokers, topic) and values(brokers, topic) == []


def test_ids_may_have_any_other_characters(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    sent = producer_of(brokers).send_message_in_transaction(
        Message(topic, b"a"), lambda: True, tx_id="Bestellung 42/ü\u00a0\u3000😀", query_id=" "
    )
    assert sent.state is COMMITTED
