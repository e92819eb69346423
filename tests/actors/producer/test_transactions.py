"""Transactions through real broker services: parts, timeouts, one-way commits, closing, many threads."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from escrowmq.replication.errors import Closed, OutcomeUnknown, TransactionConflict
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, UNKNOWN, ProducerOf, never, open_transactions, values


def test_a_transaction_in_many_parts_is_one_transaction(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, part_bytes=1000)
    messages = [Message(topic, b"%03d" % i + b"x" * 300) for i in range(20)]
    result = producer.send_message_in_transaction(messages, lambda: True, tx_id="parts-a")
    assert result == producer.send_message_in_transaction(messages, never, tx_id="parts-a")
    producer.send_message_in_transaction(messages, lambda: False, tx_id="parts-b")
    with pytest.raises(TransactionConflict, match="ROLLBACK"):
        producer.send_message_in_transaction(messages, never, tx_id="parts-b")
    assert values(brokers, topic) == [message.value for message in messages]
    assert not open_transactions(brokers, topic)


def test_a_later_part_with_other_content_is_a_conflict_and_leaves_the_open_one_alone(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, part_bytes=500)
    messages = [Message(topic, b"%d" % i + b"x" * 300) for i in range(4)]
    producer.send_message_in_transaction(messages, lambda: UNKNOWN, tx_id="late-part")
    with pytest.raises(TransactionConflict):
        producer.send_message_in_transaction([*messages[:3], Message(topic, b"o")], never, tx_id="late-part")
    assert len(open_transactions(brokers, topic)) == 1


def test_the_time_to_the_first_check_is_the_callers(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    with producer.transaction(transaction_timeout_s=3600.5) as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        (entry,) = open_transactions(brokers, topic)
        assert entry.timeout_ms == 3_600_500


def test_a_one_way_commit_is_not_waited_for_and_still_arrives(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    result = producer.send_message_in_transaction(Message(topic, b"a"), lambda: None, one_way_commit=True)
    assert result.state is COMMITTED
    producer.flush()
    assert values(brokers, topic) == [b"a"]


def test_a_one_way_commit_of_nothing_is_a_commit(brokers: Brokers, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    with producer.transaction(one_way_commit=True) as tx:
        tx.prepare()
    assert tx.state is COMMITTED

    async def main() -> None:
        async with producer.aio.transaction(one_way_commit=True) as alike:
            await alike.prepare()
        assert alike.state is COMMITTED

    asyncio.run(main())


def test_a_check_finds_a_transaction_running_until_it_is_decided(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    running = producer.core.running
    with producer.transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        assert tx.tx_id in running
    assert not running
    with pytest.raises(KeyError):
        producer.send_message_in_transaction(Message(topic, b"a"), lambda: {}["no such customer"])
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: UNKNOWN)
    assert not running


def test_a_transaction_that_the_application_forgot_can_be_checked(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    tx = producer.transaction()
    tx.send(Message(topic, b"a"))
    tx.prepare()
    assert tx.tx_id in producer.core.running and len(producer.core.running) == 1
    del tx
    assert not producer.core.running and len(open_transactions(brokers, topic)) == 1


def test_a_closed_producer_says_so(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    producer.send(Message(topic, b"a"))
    producer.close()
    producer.close()
    for call in (
        lambda: producer.send(Message(topic, b"a")),
        lambda: producer.transaction(),
        lambda: producer.send_message_in_transaction(Message(topic, b"a"), never),
        lambda: producer.send_transactions([]),
        lambda: producer.flush(),
    ):
        with pytest.raises(Closed):
            call()
    assert values(brokers, topic) == [b"a"], "close flushes"


def test_closing_under_an_open_transaction_leaves_it_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    with pytest.raises(OutcomeUnknown), producer.transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        producer.close()
    assert [o.tx_id for o in open_transactions(brokers, topic)] == [tx.tx_id]


def test_many_threads_share_calls(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    before = len(brokers.asked)
    with ThreadPoolExecutor(32) as pool:
        results = list(
            pool.map(
                lambda i: producer.send_message_in_transaction(Message(topic, b"%d" % i), lambda: None),
                range(320),
            )
        )
    assert {r.state for r in results} == {COMMITTED}
    assert sorted(int(v) for v in values(brokers, topic)) == list(range(320))
    calls = sum(1 for _, _, method in brokers.asked[before:] if method == "submit")
    assert calls < 320, f"{calls} calls for 640 operations"


def test_a_lone_transaction_does_not_wait_for_company(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, transaction_linger_ms=20_000.0, linger_ms=20_000.0)
    producer.send_message_in_transaction(Message(topic, b"warm"), lambda: None)
    start = time.monotonic()
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: None)
    assert time.monotonic() - start < 10.0
