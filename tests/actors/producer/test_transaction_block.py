"""Transactions in a ``with`` block: what its end, its exceptions and decisions made inside it mean."""

from __future__ import annotations

import pytest

from escrowmq.actors.producer.transactions.results import TransactionResult
from escrowmq.replication.errors import InvalidMessage, TransactionConflict
from escrowmq.replication.model import Message, TransactionState
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ROLLBACK, UNKNOWN, ProducerOf, open_transactions, values


def test_a_block_commits_at_its_end(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    with producer_of(brokers).transaction(query_id="42") as tx:
        tx.send(Message(topic, b"a"))
        tx.send(Message(topic, b"b"), Message(topic, b"c"))
        tx.prepare()
        assert tx.state is TransactionState.PREPARE and values(brokers, topic) == []
    assert tx.result == TransactionResult(tx.tx_id, COMMITTED)
    assert values(brokers, topic) == [b"a", b"b", b"c"]


def test_a_block_without_prepare_prepares_and_commits(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    with producer_of(brokers).transaction() as tx:
        tx.send(Message(topic, b"a"))
    assert tx.state is COMMITTED and values(brokers, topic) == [b"a"]


def test_a_block_without_messages_is_nothing(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    with producer_of(brokers).transaction() as tx:
        tx.prepare()
    assert tx.state is COMMITTED and not open_transactions(brokers, topic)


def test_an_exception_in_a_block_rolls_back(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    for prepared in (False, True):
        with pytest.raises(KeyError), producer.transaction() as tx:
            tx.send(Message(topic, b"a"))
            if prepared:
                tx.prepare()
            raise KeyError("x")
        assert tx.state is ROLLBACK
    assert not open_transactions(brokers, topic) and values(brokers, topic) == []


def test_a_block_can_be_left_to_the_check(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    with producer.transaction() as said:
        said.send(Message(topic, b"a"))
        said.prepare()
        said.unknown()
    with pytest.raises(ConnectionError), producer.transaction() as said_and_raised:
        said_and_raised.send(Message(topic, b"a"))
        said_and_raised.prepare()
        said_and_raised.unknown()
        raise ConnectionError("lost during the database's commit")
    assert said.state is UNKNOWN and said_and_raised.state is UNKNOWN
    assert len(open_transactions(brokers, topic)) == 2


def test_decisions_can_be_made_in_the_block_and_stand(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    with producer.transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        tx.rollback()
        tx.rollback()
        with pytest.raises(TransactionConflict, match="ROLLBACK"):
            tx.commit()
    with producer.transaction() as tx:
        tx.send(Message(topic, b"b"))
        tx.commit()
        with pytest.raises(TransactionConflict, match="COMMITTED"):
            tx.rollback()
    assert values(brokers, topic) == [b"b"]


def test_nothing_can_be_added_once_it_is_prepared(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    with producer_of(brokers).transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        with pytest.raises(InvalidMessage, match="before prepare"):
            tx.send(Message(topic, b"late"))
    assert values(brokers, topic) == [b"a"]
