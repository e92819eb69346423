"""What producers and consumers tell of themselves, over real broker services."""

from __future__ import annotations

import threading

import pytest

from escrowmq import Message, TransactionState
from escrowmq.replication.errors import ConfigError, UnknownTopic
from tests.support.polling import numbered, read, settle


def test_a_producer_counts_what_it_has_done(brokers, topic, producer_of):
    producer = producer_of(brokers)
    assert producer.statistics().latency_p99_s is None
    for future in [producer.send(Message(topic, value=b"v")) for _ in range(20)]:
        future.result(10)
    decisions = [TransactionState.COMMITTED] * 3 + [TransactionState.ROLLBACK] * 2
    for decision in decisions:
        producer.send_message_in_transaction(Message(topic, value=b"t"), lambda tx, d=decision: d)
    producer.send_transactions([[Message(topic, value=b"b")]] * 7)
    told = producer.statistics()
    assert (told.app, told.messages, told.messages_failed) == ("shop", 20, 0)
    assert told.message_bytes >= 20
    assert told.transactions_prepared == 12
    assert (told.transactions_committed, told.transactions_rolled_back) == (10, 2)
    assert 3 <= told.requests <= 40 and told.request_bytes > told.message_bytes
    assert told.requests_repeated == told.requests_in_flight == 0
    assert told.buffered_bytes == 0 and told.buffer_fill == 0.0
    assert 0 < told.latency_p50_s <= told.latency_p99_s < 10.0
    assert producer.aio.statistics().messages == 20


def test_a_fail_over_shows_as_retries_and_a_refusal_as_failed(brokers, topic, producer_of):
    producer = producer_of(brokers)
    producer.send(Message(topic, value=b"v")).result(10)
    brokers.delete(topic)
    with pytest.raises(UnknownTopic):
        producer.send(Message(topic, value=b"v")).result(10)
    assert producer.statistics().messages_failed == 1
    assert producer.statistics().messages == 1


def test_a_consumer_counts_what_it_has_done(brokers, topic, unique, consumer_of):
    brokers.produce(topic, 0, numbered(0, 30))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    assert consumer.statistics().lag == {}
    read(consumer, 20)
    consumer.commit()
    told = consumer.statistics()
    assert told.records == 20 and told.commits == told.assignments == 1
    assert told.lag == {(topic, 0): 10} and told.lag_total == 10
    assert told.bytes > 30 and told.fetches >= 1 and told.fetches_failed == 0
    assert 0 < told.fetch_p50_s <= told.fetch_p99_s and 0 < told.commit_p50_s <= told.commit_p99_s
    assert told.buffered_bytes > 0 and 0 < told.buffer_fill < 1
    consumer.nack(read(consumer, 10)[0], 100.0)
    told = consumer.aio.statistics()
    assert told.nacked == 1 and told.lag_total == told.buffered_bytes == 0


def test_a_position_that_nobody_has_told_yet_has_no_lag(brokers, topic, unique, consumer_of):
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    consumer.core.fetch.close()
    settle([consumer], lambda: bool(consumer.assignment()))
    assert consumer.statistics().lag == {(topic, 0): None}


def test_callbacks(brokers, topic, unique, consumer_of, producer_of, monkeypatch):
    told, enough = [], threading.Event()

    def callback(statistics):
        told.append(type(statistics).__name__)
        if len(set(told)) == 2:
            enough.set()

    from escrowmq.actors.producer.producer import Producer
    from tests.support.brokers import ClientCalls

    before = set(threading.enumerate())  # tests before this one may have left some
    quick = {"statistics_callback": callback, "statistics_interval_s": 0.1}
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic], **quick)
    with Producer(brokers.info, app="shop", calls=ClientCalls(brokers), **quick) as producer:
        assert enough.wait(10.0)
    consumer.close()
    names = {thread.name for thread in threading.enumerate() if thread not in before}
    assert "escrowmq-statistics" not in names
    assert producer.statistics().messages == 0, "also after close"
    with pytest.raises(ConfigError):
        Producer(
            brokers.info, app="shop", calls=ClientCalls(brokers), statistics_callback=print,
            statistics_interval_s=0,
        )  # fmt: skip
